"""Carries out one order of the allocation: from placeholder or nothing to a sandbox that answers.

The pod is taken by one write; from then on it is either handed over or deleted, whatever happens
here: a failure, a cancelled caller, a reply that was lost.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from typing import TYPE_CHECKING

import structlog
import trio

from gateway.daemons import NotListeningError, claim_of
from gateway.model import DEFAULT_SHARE, Assignment, Ending, Ready, Share, Timings
from gateway.preparation import REPLACEABLE, Preparation, check_boot
from gateway.provider import ClaimLostError, RefusedError
from gateway.resizing import Resizing
from sandman.errors import (
    BadRequestError,
    DeletedError,
    ImagePullError,
    QuotaError,
    SandmanError,
    UnreachableError,
    UnschedulableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.allocation import Order
    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.fairness import Ticket
    from gateway.model import Amounts, Instance, PoolSpec, SandboxRequest
    from gateway.provider import Provider
    from gateway.roster import Roster
    from sandman import wire

    Greeting = Callable[[Instance, wire.Claim], Awaitable[wire.Info]] | None

log = structlog.get_logger()

CLEANUP_S = 10.0
"""Seconds for the deletion of a pod whose caller is gone; after that it is tried again later."""
FIRST_PAUSE_S = 0.003
"""Pause between two dials of a daemon that is just starting (a swap takes 200 ms, a start 20 ms)."""
PAUSE_EACH_S = 0.0005
"""Added up for each claim in hand it is the shortest pause: a dial that is refused costs a quarter of a
millisecond of processor, so that hundreds at once take up half of this program's."""
SWAP_FLOOR_S = 0.1
"""Seconds after a swap's claim in which no kubelet has stopped the old container and started the new
one (0.15 s at best): to dial earlier only takes processor time from that very work."""
EAGER_S = 1.0
"""Seconds for which the pause stays at its shortest: five times what a swap takes."""
LONGEST_PAUSE_S = 0.25
LOOKS_APART_S = 5.0
"""Seconds between the two looks that must not find a claim before it counts as not written: a write whose
caller has gone may be on its way through admission (3 s) and storage still."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A request with all that the gateway adds to it. `arrived` on the monotonic clock, seconds."""

    request: SandboxRequest
    image: str
    tenant: str
    key: str | None
    record: Mapping[str, object]
    arrived: float
    share: Share = DEFAULT_SHARE
    prepared: str = ""
    """What it is to be prepared for: see `steps.prepared_hash`."""
    reservation: str | None = None
    """It is for this reservation, and not for a caller."""

    @property
    def deadline(self) -> float:
        """When the caller stops waiting, on the monotonic clock."""
        return self.arrived + self.request.wait_s


@dataclasses.dataclass(slots=True, eq=False)
class _Taken:
    """What an order may have taken, or has when the API server answered."""

    order: Order
    namespace: str
    name: str
    claim_id: str
    is_answered: bool = False
    absent_at: float | None = None
    """When a look first did not find the claim, on the monotonic clock."""


class Fulfilment:
    """Carries out orders.

    Args:
        wall: seconds since the epoch, for what is written on pods.
    """

    def __init__(
        self,
        provider: Provider,
        daemons: Daemons,
        roster: Roster,
        settings: Settings,
        wall: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._daemons = daemons
        self._roster = roster
        self._settings = settings
        self._wall = wall
        self.preparation = Preparation(daemons, roster, settings)
        self.spent: Callable[[Ticket, str], None] = lambda ticket, _: roster.allocation.done(ticket)
        """Told of an order whose image runs on a node, though it is yet to be prepared: others may go on."""
        self.resizing = Resizing(provider, roster)
        self._unsettled: list[_Taken] = []
        self.in_hand: set[str | None] = set()
        """Claims that are being carried out: their pods are known, and nobody's yet."""

    async def carry_out(self, order: Order, want: Want) -> Ready:
        """Take the pod and bring it to the point where commands run.

        Raises:
            ClaimLostError: the placeholder was lost before the handshake, through nobody's fault
                that concerns the caller: another one may be tried.
            SandmanError: final.
        """
        assignment = self._assignment(order, want)
        self.in_hand.add(assignment.claim_id)
        try:
            return await self._carry_out(order, want, assignment)
        finally:
            self.in_hand.discard(assignment.claim_id)

    async def _carry_out(self, order: Order, want: Want, assignment: Assignment) -> Ready:
        begun = trio.current_time()
        placeholder = self._placeholder(order)
        taken = _Taken(order, *self._target(order, placeholder), assignment.claim_id)
        try:
            instance = await self._take(taken, placeholder, assignment)
            claimed = trio.current_time()
            self._roster.taken(instance, uid_was_known=order.slot is not None)
            claim = self.handshake(assignment, want.request)
            info = await self._make_ready(order, instance, claim, want)
        except ClaimLostError:
            raise
        except RefusedError as refused:
            self._roster.allocation.give_back(order)
            raise self._refused(taken, refused.error) from refused
        except BaseException as error:
            self._unsettled.append(taken)
            with trio.move_on_after(CLEANUP_S, shield=True):
                await self._settle(taken)
            if isinstance(error, SandmanError) and error.reason in REPLACEABLE:
                raise ClaimLostError(error.reason) from error
            raise
        ready = trio.current_time()
        timings = Timings(
            (begun - want.arrived) * 1e3, (claimed - begun) * 1e3, (ready - claimed) * 1e3
        )
        return Ready(self._roster.registry.get(instance.uid) or instance, info.boot_id, timings)

    async def _make_ready(
        self, order: Order, instance: Instance, claim: wire.Claim, want: Want
    ) -> wire.Info:
        """Prepared before its daemon is claimed: one that is was prepared to the end, whoever asks."""
        boot_id, asked = None, want.request.resources
        if order.slot is not None and order.slot.prepared:
            boot_id = self._roster.boot_id(instance.uid)
        elif want.reservation is not None or want.request.prepare:
            info = await self.ready(instance, claim, asked, self.preparation.meet)
            now = self._roster.registry.get(instance.uid) or instance
            self.spent(order.ticket, now.node or "")
            await self.preparation.run(now, info.boot_id, want.request.prepare)
            if want.reservation is not None:
                now = await self._provider.mark_prepared(now, want.prepared, info.boot_id)
                self._roster.prepared(now)
                return info
            return await self.wait_ready(instance, claim)
        return check_boot(await self.ready(instance, claim, asked), boot_id)

    def handshake(self, taken: Assignment | Instance, request: SandboxRequest) -> wire.Claim:
        """What the daemon is told; its lease is as long as the sandbox's has yet to run, counted from
        when it hears of it, so never shorter."""
        left_s = None if taken.expires_at is None else taken.expires_at - self._wall()
        grace_s = self._settings.outage_grace_s
        return claim_of(taken, request, left_s=left_s, grace_s=grace_s)

    async def ready(
        self, instance: Instance, claim: wire.Claim, asked: Amounts, greet: Greeting = None
    ) -> wire.Info:
        """As `wait_ready`, with the resources that were asked for.

        Raises:
            NotResizedError: it does not get them.
            SandmanError: why it will not become ready.
        """
        wanted = await self.resizing.begin(instance, asked)
        info = await self.wait_ready(instance, claim, greet)
        if wanted is not None:
            await self.resizing.finish(instance, wanted)
        return info

    async def wait_ready(
        self, instance: Instance, claim: wire.Claim, greet: Greeting = None
    ) -> wire.Info:
        """Dial the daemon until it accepts the claim, or until the pod's news say that it never will.

        Args:
            instance: whose.
            claim: what it is told.
            greet: how, if not by the claim itself: `Preparation.meet`.

        Raises:
            SandmanError: why it will not become ready.
        """
        with trio.move_on_after(self._settings.image_s + self._settings.handshake_s):
            return await self._dial(instance, claim, greet)
        raise self._too_late(instance)

    # --- taking ---

    async def _take(
        self, taken: _Taken, placeholder: Instance | None, assignment: Assignment
    ) -> Instance:
        """The one write; what it answers."""
        if placeholder is None:
            spec = self._spec(taken.order, taken.namespace)
            instance = await self._provider.create(spec, taken.name, assignment)
        else:
            instance = await self._provider.claim(placeholder, assignment)
        taken.is_answered = True
        return instance

    def _assignment(self, order: Order, want: Want) -> Assignment:
        slot = order.slot
        swapped = slot is not None and not slot.prepared and slot.image != want.image
        return Assignment(
            claim_id=secrets.token_hex(16),
            previous_boot_id=(self._roster.boot_id(slot.uid) if swapped and slot else None),
            tier=order.tier,
            tenant=want.tenant,
            image=want.image,
            expires_at=self._wall() + want.request.max_s,
            max_s=want.request.max_s,
            request=want.record,
            run=want.request.run,
            key=want.key,
            reservation=want.reservation,
            resources=want.request.resources,
        )

    def _placeholder(self, order: Order) -> Instance | None:
        """What the order is to take; None when it is to make one."""
        if order.slot is None:
            return None
        placeholder = self._roster.registry.get(order.slot.uid)
        if placeholder is None:
            raise ClaimLostError(order.slot.uid)
        return placeholder

    def _target(self, order: Order, placeholder: Instance | None) -> tuple[str, str]:
        """Namespace and name of the pod: a new one is named here, so that it can be found again
        when the reply to its creation is lost."""
        if placeholder is not None:
            return placeholder.namespace, placeholder.name
        spec = next(iter(self._roster.places(order.ticket.pool)), None)
        if spec is None:
            raise _went_away(order)
        # A pool's name is a label's value, which may hold what a pod's name may not.
        part = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")
        return spec.namespace, f"sandman-cold-{part}-{secrets.token_hex(5)}"

    def _spec(self, order: Order, namespace: str) -> PoolSpec:
        spec = self._roster.spec(order.ticket.pool, namespace)
        if spec is None:
            raise _went_away(order)
        return spec

    def _refused(self, taken: _Taken, error: SandmanError) -> Exception:
        """What a refusal means: a quota that is used up leaves the pool's other namespaces."""
        if taken.order.slot is None and isinstance(error, QuotaError):
            self._roster.is_full(taken.namespace)
            best = next(iter(self._roster.places(taken.order.ticket.pool)), None)
            if best is not None and best.namespace != taken.namespace:
                return ClaimLostError(taken.name)
        return error

    def made_before(self, key: str) -> Instance | None:
        """The living sandbox of this idempotency key, none that is about to be deleted."""
        given_up = frozenset(taken.claim_id for taken in self._unsettled)
        return self._roster.registry.with_key(key, now=self._wall(), given_up=given_up)

    async def give_up(self, made: Instance) -> None:
        """Delete what an earlier call with the same key left half made, so that another can be."""
        await self._provider.delete(made)
        self._roster.registry.forget(
            made, Ending("released", "it was never whole", at=self._wall())
        )

    async def _settle(self, taken: _Taken) -> None:
        """Delete what the order took. A placeholder that does not carry the claim, and did not some
        seconds ago, was never taken: it is given back. Until that is known all stays as it is: the slot
        is nobody's."""
        begun = trio.current_time()
        try:
            ours = await self._provider.discard(taken.namespace, taken.name, taken.claim_id)
        except SandmanError as error:
            log.warning("a pod could not be given up", pod=taken.name, error=str(error))
            return
        if taken not in self._unsettled:
            return
        if ours is None and not taken.is_answered:
            if taken.absent_at is None:
                taken.absent_at = trio.current_time()
            if begun - taken.absent_at < LOOKS_APART_S:
                return
            self._roster.allocation.give_back(taken.order)
        self._unsettled.remove(taken)
        if ours is None:
            return
        # At once, and not when the watch tells: the same key must not find it again meanwhile.
        ending = Ending("released", "the call that made it did not end well", at=self._wall())
        self._roster.registry.forget(ours, ending)

    async def settle_again(self) -> None:
        """Try once more what could not be given up."""
        for taken in list(self._unsettled):
            with trio.move_on_after(CLEANUP_S):
                await self._settle(taken)

    # --- becoming ready ---

    async def _dial(self, instance: Instance, claim: wire.Claim, greet: Greeting) -> wire.Info:
        uid = instance.uid
        if claim.previous_boot_id is not None:
            await trio.sleep(SWAP_FLOOR_S)
        pause, begun = FIRST_PAUSE_S, trio.current_time()
        while True:
            instance = self._roster.registry.get(uid) or instance
            await self._check(uid, instance)
            if instance.address is not None:
                try:
                    return await (greet or self._daemons.claim)(instance, claim)
                except BadRequestError as error:
                    if error.field != "lease" or claim.lease is None:
                        raise
                    # A daemon from before there were leases; its placeholder may be days old.
                    claim = claim._replace(lease=None)
                    continue
                except NotListeningError:
                    # A refused connection costs nothing beside what a late one costs the caller.
                    if trio.current_time() - begun > EAGER_S:
                        pause = min(pause * 1.3, LONGEST_PAUSE_S)
                wait = max(pause, PAUSE_EACH_S * len(self.in_hand))
            else:
                begun, wait = trio.current_time(), LONGEST_PAUSE_S
            with trio.move_on_after(wait):
                await self._roster.wait_change(uid)

    async def _check(self, uid: str, instance: Instance) -> None:
        """Raise when the pod will never be ready."""
        ended = self._roster.registry.ending(instance.id)
        ending = instance.ending or (ended[1] if ended else None)
        if ending is None and not instance.is_stuck and self._roster.registry.get(uid) is not None:
            return
        known = await self._provider.explain(instance)
        if known is not None:
            raise known.error(instance.id)
        if instance.is_stuck and ending is None and instance.waiting is not None:
            reason, message = instance.waiting
            raise ImagePullError(f"{instance.image}: {reason}: {message}", sandbox=instance.id)
        if ending is None:
            raise DeletedError("the pod went away before it was ready", sandbox=instance.id)
        raise ending.error(instance.id)

    def _too_late(self, instance: Instance) -> SandmanError:
        now = self._roster.registry.get(instance.uid) or instance
        if now.node is None:
            return UnschedulableError("no node had room in time", sandbox=instance.id)
        if not now.running:
            return ImagePullError(
                f"image {now.image} was not there in time",
                sandbox=instance.id,
                facts={"pull": "timeout"},
            )
        return UnreachableError("the daemon did not answer in time", sandbox=instance.id)


def _went_away(order: Order) -> BadRequestError:
    return BadRequestError(f"pool {order.ticket.pool!r} went away", field="pool")
