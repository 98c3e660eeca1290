"""Attaching to users' workloads: who may, which container, and the way out again.

The claim of a container is the creation of a Lease whose name comes of pod and container: of two one fails. The
pod itself is neither written nor deleted; leaving ends what Sandman has started in it, and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gateway import audit, parting, workloads
from gateway.daemons import NotListeningError
from gateway.model import Ending, Timings
from gateway.provider.attachments import TakenError
from gateway.workloads import Attachment
from sandman import wire
from sandman.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.attached import Attached
    from gateway.config import Settings
    from gateway.ground import Access, Attachments
    from gateway.model import Identity, Instance, Principal
    from gateway.upstream import Upstream
    from gateway.workloads import Wanted, Workload

log = structlog.get_logger()

UNFINISHED_S = 60.0
"""Seconds for a handshake: an attachment without one after that is left over from a gateway that is gone."""
CLEANUP_S = 15.0
"""Seconds to leave after a failure, daemon and Lease together."""
DIAL_PAUSES_S = (0.1, 0.4)
"""Pauses between tries of a handshake: the daemon has run for long, so that only a lost packet is in the way."""
NEWS_S = 5.0
"""Seconds for the watch to show a pod that the API server has: usually milliseconds."""
ASKED_MAX = 64
"""Pods of one call that the API server is asked about one by one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """An attachment that was just made."""

    instance: Instance
    boot_id: str
    timings: Timings


class Reading(Protocol):
    """What `find` needs of the API server."""

    async def read(self, name: str) -> Attachment | None:
        """The attachment of this name."""


class Attacher:
    """Attaches callers to containers.

    Args:
        attached: what is there.
        store: the Leases.
        access: who may.
        daemons: handshakes.
        settings: `outage_grace_s`, `workload_namespaces`.
        wall: seconds since the epoch.
        make_id: gives a claim id that nobody can guess.
    """

    def __init__(
        self,
        attached: Attached,
        store: Attachments,
        access: Access,
        daemons: Upstream,
        settings: Settings,
        wall: Callable[[], float],
        make_id: Callable[[], str],
    ) -> None:
        self.attached = attached
        self._store = store
        self._access = access
        self._daemons = daemons
        self._settings = settings
        self._wall = wall
        self._make_id = make_id

    # --- who may ---

    async def allowed(
        self, who: Identity | None, namespace: str, found: Iterable[Workload]
    ) -> list[Workload]:
        """Those of a namespace that he may run commands in.

        Raises:
            ForbiddenError: the cluster does not know him.
            SandmanError: the API server gives no verdict.
        """
        if who is None:
            raise ForbiddenError(
                "this key has no Kubernetes user: make one with --kubernetes-user to attach to workloads"
            )
        there = list(found)
        if await self._access.may_exec(who, namespace):
            return there
        verdicts = {
            pod: await self._access.may_exec(who, namespace, pod)
            for pod in sorted({one.pod for one in there})[:ASKED_MAX]
        }
        return [one for one in there if verdicts.get(one.pod)]

    async def listing(self, who: Identity | None, namespace: str | None) -> list[Workload]:
        """All that he may attach to, also what is taken just now.

        Raises:
            SandmanError: as `allowed`.
        """
        found = self.attached.attachable()
        shown = []
        for name in self._settings.workload_namespaces:
            if namespace in {None, name}:
                here = [one for one in found if one.namespace == name]
                shown += await self.allowed(who, name, here)
        return shown

    # --- attaching ---

    async def attach(self, principal: Principal, wanted: Wanted, key: str | None) -> Joined:
        """Attach to one container that is meant, allowed and free.

        Args:
            principal: who calls.
            wanted: what he means.
            key: hash of tenant and idempotency key: the same one again gives the same attachment.

        Raises:
            ForbiddenError: he may not, or there is none; the answer is the same.
            ConflictError: all that are meant are taken.
            SandmanError: the daemon does not answer, or refuses.
        """
        started = trio.current_time()
        who = principal.identity
        meant = await self.allowed(who, wanted.namespace, self.attached.attachable(wanted))
        if not meant and await self._is_new(who, wanted):
            meant = await self.allowed(who, wanted.namespace, self.attached.attachable(wanted))
        if not meant:
            raise self._none(who, wanted)
        taken = self.attached.taken()
        first_free = sorted(
            meant, key=lambda one: workloads.name_of(one.uid, one.container) in taken
        )
        for workload in first_free:
            attachment = self._attachment(principal, wanted, workload, key)
            if (made := await self._take(attachment, workload)) is None:
                continue
            if made.claim_id != attachment.claim_id:
                return self._joined(made, workload, started, trio.current_time())
            claimed = trio.current_time()
            made = await self._meet(made, workload, wanted)
            audit.attached(workloads.instance(made, workload), principal.identity)
            return self._joined(made, workload, started, claimed)
        raise ConflictError("everything that is meant has somebody attached already")

    async def _is_new(self, who: Identity | None, wanted: Wanted) -> bool:
        """Whether a pod that was named was only not seen yet, and is now.

        Raises:
            UnreachableError: it is there, and this replica's watch does not show it.
            SandmanError: the API server gives no answer.
        """
        if who is None or wanted.pod is None:
            return False
        if not await self._access.may_exec(who, wanted.namespace, wanted.pod):
            return False
        there = await self._store.pod(wanted.namespace, wanted.pod)
        fitting = [one for one in there if one.is_attachable and wanted.means(one)]
        if not fitting or self.attached.knows(fitting[0]):
            return bool(fitting)
        with trio.move_on_after(NEWS_S):
            await self.attached.wait_change(fitting[0].uid)
            return True
        raise UnreachableError(
            f"pod {wanted.pod} is there, but this gateway was not told of it yet", retry_after=1.0
        )

    def _none(self, who: Identity | None, wanted: Wanted) -> SandmanError:
        user = who.user if who else ""
        what = f"pod {wanted.pod}" if wanted.pod else "pod with these labels"
        where = f"container {wanted.container} of it" if wanted.container else "it"
        return ForbiddenError(
            f"no {what} with a daemon in {where} in namespace {wanted.namespace} in which {user} may create pods/exec"
        )

    def _attachment(
        self, principal: Principal, wanted: Wanted, workload: Workload, key: str | None
    ) -> Attachment:
        now = self._wall()
        return Attachment(
            name=workloads.name_of(workload.uid, workload.container),
            tenant=principal.tenant,
            run=wanted.run,
            key=key,
            claim_id=self._make_id(),
            namespace=workload.namespace,
            pod=workload.pod,
            pod_uid=workload.uid,
            container=workload.container,
            restarts=workload.restarts,
            identity=principal.identity,
            created_at=now,
            expires_at=now + (wanted.terms.max_s or self._settings.life_default_s),
            terms=wanted.terms,
            request={"labels": dict(wanted.labels)},
        )

    async def _take(self, attachment: Attachment, workload: Workload) -> Attachment | None:
        """The attachment as it was made, or was made before with the same key; None: somebody has it."""
        try:
            return await self._store.create(attachment)
        except TakenError:
            there = await self._store.read(attachment.name)
        same = (attachment.tenant, attachment.key)
        if there is not None and attachment.key and (there.tenant, there.key) == same:
            return there if there.boot_id is not None else None
        if there is not None and workloads.ending(there, workload) is None:
            if not self.is_over(there):
                return None
            await self._leave(there, workload)
        elif there is not None:
            await self._store.delete(there)
        try:
            return await self._store.create(attachment)
        except TakenError:
            return None

    def is_over(self, one: Attachment) -> bool:
        """Whether nothing speaks for it any more: it has run out, or was never finished."""
        now = self._wall()
        return now >= one.expires_at or (
            one.boot_id is None and now - one.created_at >= UNFINISHED_S
        )

    async def _meet(self, made: Attachment, workload: Workload, wanted: Wanted) -> Attachment:
        """Handshake, and write down who answered; whatever else happens the container is free again."""
        is_met = False
        try:
            info = await self._claim(made, workload, wanted)
            met = await self._store.met(made, info.boot_id)
            is_met = True
        finally:
            if not is_met:
                with trio.move_on_after(CLEANUP_S, shield=True):
                    await self._leave_quietly(made, workload)
        self.attached.seen(met)
        return met

    async def _claim(self, made: Attachment, workload: Workload, wanted: Wanted) -> wire.Info:
        claim = wire.Claim(
            claim_id=made.claim_id,
            env=wanted.env,
            workdir=wanted.workdir,
            user=wanted.user,
            lease=wire.LeaseTerms(
                wanted.terms.ttl_s or made.expires_at - made.created_at,
                self._settings.outage_grace_s,
            ),
        )
        target = workloads.instance(made, workload)
        pauses = iter(DIAL_PAUSES_S)
        while True:
            try:
                return await self._shake(target, claim)
            except NotListeningError as error:
                if (pause := next(pauses, None)) is None:
                    raise UnreachableError(
                        f"the daemon of pod {workload.pod} does not answer: {error}; do the namespace's "
                        "network policies let the gateway in?",
                        sandbox=target.id,
                    ) from error
                await trio.sleep(pause)

    async def _shake(self, target: Instance, claim: wire.Claim) -> wire.Info:
        try:
            return await self._daemons.claim(target, claim)
        except ConflictError:
            # Of a guest whose Lease is gone while its daemon was out of reach: the Lease is what counts.
            info = await self._daemons.info(target)
            if info.claim_id is not None:
                await parting.release(self._daemons, target, info.claim_id)
            return await self._daemons.claim(target, claim)

    def _joined(
        self, made: Attachment, workload: Workload, started: float, claimed: float
    ) -> Joined:
        now = trio.current_time()
        timings = Timings(0.0, (claimed - started) * 1000, (now - claimed) * 1000)
        shown = workloads.instance(made, workload)
        return Joined(shown, made.boot_id or "", timings)

    # --- leaving ---

    async def release(self, instance: Instance) -> None:
        """End the attachment; the workload goes on.

        Raises:
            SandmanError: the API server did not do it.
        """
        one = self.attached.attachment(instance.uid) or await self._store.read(instance.name)
        if one is None or one.uid != instance.uid:
            return
        await self.end(one, Ending("released", "it was released", at=self._wall()))

    async def end(self, one: Attachment, why: Ending) -> None:
        """End an attachment for this reason.

        Raises:
            SandmanError: the API server did not do it.
        """
        workload = self.attached.workload(one)
        if one.ending is None:
            await self._store.mark(one, why)
        await self._leave(one, workload)
        self.attached.gone(one.uid, one.ending or why)

    async def _leave(self, one: Attachment, workload: Workload | None) -> None:
        """Have the daemon end what was started, then give the container free."""
        if workload is not None and workload.is_attachable and workload.restarts == one.restarts:
            try:
                target = workloads.instance(one, workload)
                await parting.release(self._daemons, target, one.claim_id)
            except (NotListeningError, SandmanError) as error:
                # It ends them by itself when nobody has reached it for long enough.
                log.warning("a workload's daemon was not told", pod=one.pod, error=str(error))
        await self._store.delete(one)

    async def _leave_quietly(self, one: Attachment, workload: Workload | None) -> None:
        try:
            await self._leave(one, workload)
        except SandmanError as error:
            log.warning("an attachment is left over", pod=one.pod, error=str(error))

    # --- finding ---

    async def ending(self, one: Attachment) -> Ending | None:
        """Why it is no more; a pod that no watch has shown is looked for at its source.

        Raises:
            SandmanError: no answer.
        """
        if self.attached.workload(one) is None and await self._store.workload(one) is None:
            return one.ending or workloads.GONE
        return self.attached.ending(one)

    async def read(self, _namespace: str, name: str) -> Instance | None:
        """The attachment of this name as the API server has it now."""
        one = await self._store.read(name)
        if one is None or one.boot_id is None:
            return None
        workload = await self._store.workload(one)
        return workloads.instance(one, workload, workloads.GONE if workload is None else None)


def not_found(namespace: str, served: tuple[str, ...]) -> NotFoundError:
    """No workloads are served in this namespace."""
    known = ", ".join(served) or "none"
    return NotFoundError(
        f"this gateway serves no workloads in namespace {namespace}; it does in: {known}",
        field="namespace",
    )
