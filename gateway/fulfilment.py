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

from gateway import audit, conditions
from gateway.backoff import Backoff
from gateway.daemons import claim_of
from gateway.model import Assignment, Ending, Ready, Tier, Timings
from gateway.networks import HAND_OVER_S, Networks
from gateway.preparation import REPLACEABLE, Preparation, check_boot
from gateway.provider import BusyError, ClaimLostError, RefusedError
from gateway.resizing import Resizing
from gateway.starting import Starting
from sandman.errors import (
    BadRequestError,
    NetworkUnsupportedError,
    QuotaError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.fairness import Ticket
    from gateway.model import Amounts, Instance, PoolSpec, SandboxRequest
    from gateway.orders import Order
    from gateway.provider import Provider
    from gateway.roster import Roster
    from gateway.starting import Greeting
    from gateway.wants import Want
    from sandman import wire


log = structlog.get_logger()

CLEANUP_S = 10.0
"""Seconds for the deletion of a pod whose caller is gone; after that it is tried again later."""
LOOKS_APART_S = 5.0
"""Seconds between the two looks that must not find a claim before it counts as not written: a write whose
caller has gone may be on its way through admission (3 s) and storage still."""


@dataclasses.dataclass(slots=True, eq=False)
class _Taken:
    """What an order may have taken, or has when the API server answered. Without an order it is a sandbox
    that was ready, and that nobody came for."""

    order: Order | None
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
        self.made: dict[int, tuple[str, float]] = {}
        """New pods that are not ready yet, by their tickets' numbers: uid, and since when it is there."""
        self.in_hand: set[str | None] = set()
        """Claims that are being carried out: their pods are known, and nobody's yet."""
        self.networks = Networks(provider, daemons, roster, settings)
        self.resizing = Resizing(provider, roster)
        self.starting = Starting(provider, daemons, roster, settings, self.in_hand)
        self._unsettled: list[_Taken] = []
        self.backoff = Backoff(
            claims_max=settings.claims_max,
            cold_max=settings.cold_max,
            cold_per_node=settings.cold_per_node,
        )
        """How much is asked of the API server at once, as it bears."""

    async def carry_out(self, order: Order, want: Want) -> Ready:
        """Take the pod and bring it to the point where commands run.

        Raises:
            ClaimLostError: the placeholder was lost before the handshake, through nobody's fault
                that concerns the caller: another one may be tried.
            BusyError: nothing was taken, the API server has too much to do.
            SandmanError: final.
        """
        assignment = self._assignment(order, want)
        self.in_hand.add(assignment.claim_id)
        try:
            return await self._carry_out(order, want, assignment)
        finally:
            self.in_hand.discard(assignment.claim_id)
            self.made.pop(order.ticket.number, None)

    async def _carry_out(self, order: Order, want: Want, assignment: Assignment) -> Ready:
        begun = trio.current_time()
        placeholder = self._placeholder(order)
        taken = _Taken(order, *self._target(order, placeholder), assignment.claim_id)
        try:
            instance = await self._take(taken, order, placeholder, assignment)
            claimed = trio.current_time()
            self._roster.taken(instance, uid_was_known=order.slot is not None)
            if order.slot is None:
                self.made[order.ticket.number] = instance.uid, claimed
            claim = self.handshake(assignment, want.request)
            info = await self._make_ready(order, instance, claim, want)
            await self.wait_network(instance, want)
        except ClaimLostError:
            raise
        except RefusedError as refused:
            self._roster.allocation.give_back(order)
            if isinstance(refused, BusyError):
                raise
            raise self._refused(taken, order, refused.error) from refused
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
        now = self._roster.registry.get(instance.uid) or instance
        return audit.allocated(Ready(now, info.boot_id, timings))

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
            # Its steps may need the network, too.
            await self.wait_network(now, want)
            await self.preparation.run(now, info.boot_id, want.request.prepare)
            if want.reservation is not None:
                now = await self._provider.mark_prepared(now, want.prepared, info.boot_id)
                self._roster.prepared(now)
                return info
            return check_boot(await self.starting.wait_ready(instance, claim), info.boot_id)
        return check_boot(await self.ready(instance, claim, asked), boot_id)

    async def wait_network(self, instance: Instance, want: Want) -> None:
        """Let nobody have it before its egress profile is in force, where its caller wants it so. Of an evaluation
        that does not ask for it by itself it is told when nobody can know.

        Raises:
            NetworkNotAppliedError: it is not.
            NetworkUnsupportedError: nobody can know, and its caller asks for it.
        """
        if not want.waits_for_network or want.reservation is not None:
            return
        now = self._roster.registry.get(instance.uid) or instance
        try:
            await self.networks.prove(now, now.network, HAND_OVER_S)
        except NetworkUnsupportedError as error:
            if want.request.network_wait:
                raise
            await self._is_unproved(now, error)

    async def _is_unproved(self, instance: Instance, error: NetworkUnsupportedError) -> None:
        """Write on an evaluation that its network is not proved; where it says so already, nothing."""
        record = conditions.unproved(instance.request)
        if record is None:
            return
        log.info("a network is not proved", pod=instance.name, error=str(error))
        await self._provider.agree(instance, record)
        # The watch tells of it later, and may have told more meanwhile: also that the pod is gone.
        known = self._roster.registry.get(instance.uid)
        if known is not None:
            self._roster.registry.put(dataclasses.replace(known, request=record), claimed=True)

    def handshake(self, taken: Assignment | Instance, request: SandboxRequest) -> wire.Claim:
        """What the daemon is told; its lease is as long as the sandbox's has yet to run, counted from
        when it hears of it, so never shorter."""
        # Of one that is just taken its life is counted from when the daemon hears of it.
        is_new = isinstance(taken, Assignment)
        left_s = None if taken.expires_at is None else taken.expires_at - self._wall()
        left_s = request.terms.ttl_s or (request.max_s if is_new else left_s)
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
        info = await self.starting.wait_ready(instance, claim, greet)
        if wanted is not None:
            await self.resizing.finish(instance, wanted)
        return info

    # --- taking ---

    async def _take(
        self, taken: _Taken, order: Order, placeholder: Instance | None, assignment: Assignment
    ) -> Instance:
        """The one write; what it answers."""
        owner = assignment.owner
        if owner is not None and owner.namespace != taken.namespace:
            text = f"what was free is in {taken.namespace}, its owner is not"
            raise RefusedError(BadRequestError(text, field="owner.namespace"))
        window = self.backoff.claims if placeholder is not None else self.backoff.cold
        try:
            if placeholder is None:
                spec = self._spec(order, taken.namespace)
                instance = await self._provider.create(spec, taken.name, assignment)
            else:
                instance = await self._provider.claim(placeholder, assignment)
        except BusyError as busy:
            window.refused(trio.current_time(), busy.error.retry_after)
            raise
        except UnreachableError as error:
            window.refused(trio.current_time(), error.retry_after)
            raise
        window.succeeded()
        taken.is_answered = True
        return instance

    def _assignment(self, order: Order, want: Want) -> Assignment:
        slot = order.slot
        swapped = slot is not None and not slot.prepared and slot.image != want.image
        prepared = (
            self._roster.registry.get(slot.uid) if slot is not None and slot.prepared else None
        )
        return Assignment(
            claim_id=secrets.token_hex(16),
            previous_boot_id=(self._roster.boot_id(slot.uid) if swapped and slot else None),
            swapped=prepared is not None and prepared.was_swapped,
            tier=order.tier,
            tenant=want.tenant,
            image=want.image,
            expires_at=self._wall() + want.request.max_s,
            max_s=want.request.max_s,
            request=want.record,
            run=want.request.run,
            key=want.key,
            reservation=want.reservation,
            network=want.network,
            resources=want.request.resources,
            avoid_nodes=want.request.avoid_nodes,
            terms=want.request.terms,
            owner=want.request.owner,
            start_s=0.0 if order.tier is Tier.WARM else self._settings.start_s,
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

    def _refused(self, taken: _Taken, order: Order, error: SandmanError) -> Exception:
        """What a refusal means: a quota that is used up leaves the pool's other namespaces."""
        if order.slot is None and isinstance(error, QuotaError):
            self._roster.is_full(taken.namespace)
            best = next(iter(self._roster.places(order.ticket.pool)), None)
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
            if taken.order is not None:
                self._roster.allocation.give_back(taken.order)
        self._unsettled.remove(taken)
        if ours is None:
            return
        # At once, and not when the watch tells: the same key must not find it again meanwhile.
        ending = Ending("released", "the call that made it did not end well", at=self._wall())
        self._roster.registry.forget(ours, ending)

    async def abandon(self, instance: Instance) -> None:
        """Delete a sandbox that was ready, and that nobody came for; tried again until it is done."""
        taken = _Taken(None, instance.namespace, instance.name, instance.claim_id or "", True)
        self._unsettled.append(taken)
        with trio.move_on_after(CLEANUP_S, shield=True):
            await self._settle(taken)

    async def settle_again(self) -> None:
        """Try once more what could not be given up."""
        for taken in list(self._unsettled):
            with trio.move_on_after(CLEANUP_S):
                await self._settle(taken)


def _went_away(order: Order) -> BadRequestError:
    return BadRequestError(f"pool {order.ticket.pool!r} went away", field="pool")
