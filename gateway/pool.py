"""The pool: requests in, sandboxes out. Async shell over `allocation`, which decides.

Whatever way a call ends, by success, failure or cancellation at any await, the pod it took is
either handed over or deleted, and its place in the queue is given up.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import choice, conditions, pace, quota
from gateway.admission import Admission
from gateway.fairness import PLACE_MAX
from gateway.keylocks import KeyLocks
from gateway.model import DEFAULT_SHARE, Purpose, Ready, Share, Timings
from gateway.outcomes import Outcomes
from gateway.provider import BusyError, ClaimLostError, PoolSeen
from gateway.reseating import Reseating
from gateway.resizing import NotResizedError
from gateway.steps import prepared_hash
from gateway.trials import Trials
from gateway.vetting import Vetting
from gateway.waiting import Waiter
from gateway.wants import Waiting, Want, key_label, record
from sandman.errors import (
    CapacityError,
    ConflictError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.fairness import Ticket
    from gateway.fulfilment import Fulfilment
    from gateway.model import Instance, SandboxRequest
    from gateway.outcomes import Outcome
    from gateway.provider import News
    from gateway.roster import Roster

log = structlog.get_logger()

SETTLE_EVERY_S = 5.0
"""Seconds between tries to give up pods that could not be: the API server was away."""


class Pool:
    """All pools of this gateway.

    Args:
        roster: what is there.
        fulfilment: carries out orders.
        daemons: reaches placeholders for vetting.
        settings: limits.
    """

    def __init__(
        self, roster: Roster, fulfilment: Fulfilment, daemons: Daemons, settings: Settings
    ) -> None:
        self._roster = roster
        self._allocation = roster.allocation
        self._fulfilment = fulfilment
        self.networks = fulfilment.networks
        fulfilment.spent = self._spent
        self._vetting = Vetting(roster, daemons, self._pump)
        self._settings = settings
        self._numbers = itertools.count(1)
        self._waiters: dict[int, Waiter] = {}
        self.outcomes = Outcomes()
        self._keys = KeyLocks()
        self._trials = Trials(roster, self._waiters.values, settings.image_mirrors)
        self._frozen = trio.Event()
        """Set while a pause may be going on."""
        self._paces: dict[str, pace.Pace] = {}
        self._admission = Admission(roster, fulfilment, settings.queue_max)
        self._reseating = Reseating(self._allocation, roster.registry, fulfilment.made)

    def __repr__(self) -> str:
        return f"<Pool {self._allocation!r} keys={len(self._keys)}>"

    async def run(self, news: trio.MemoryReceiveChannel[News]) -> None:
        """Take in the provider's news until its channel closes."""
        async with news, trio.open_nursery() as nursery:
            nursery.start_soon(self._settle)
            nursery.start_soon(self._thaw)
            async for item in news:
                fresh = self._roster.apply(item)
                if isinstance(item, PoolSeen):
                    self._trials.pool_seen(item.spec.name)
                if fresh is not None:
                    self._vetting.begin(fresh, nursery)
                self._pump()
            nursery.cancel_scope.cancel()

    async def _settle(self) -> None:
        while True:
            await trio.sleep(SETTLE_EVERY_S)
            await self._fulfilment.settle_again()
            self._pump()

    async def _thaw(self) -> None:
        """Go on when a pause for the API server's sake is over: nothing else may happen then."""
        while True:
            await self._frozen.wait()
            await trio.sleep_until(self._fulfilment.backoff.paused_until())
            self._frozen = trio.Event()
            self._pump()

    # --- allocation ---

    async def allocate(
        self, tenant: str, request: SandboxRequest, key: str | None, *, share: Share = DEFAULT_SHARE
    ) -> Ready:
        """A sandbox for this request, ready for commands.

        Args:
            tenant: whose it will be.
            request: what is wanted.
            key: the caller's idempotency key: the same one gives the same sandbox.
            share: what the tenant may have.

        Raises:
            CapacityError: none was free within `wait_s`, or the queue is full.
            QuotaError: the tenant has as many as it may.
            SandmanError: the image or the pod failed.
        """
        label = None if key is None else key_label(tenant, key)
        want = self.want(tenant, request, label, share=share)
        with self.counted(want) as outcome:
            if want.key is None:
                return outcome.made(await self._allocate(want))
            async with self._keys.alone(want.key, want.deadline):
                old = self.made_before(want)
                made = None if old is None else await self.again(old, want)
                return outcome.made(made or await self._allocate(want))

    def counted(self, want: Want) -> AbstractContextManager[Outcome]:
        """Count what becomes of this want in the block."""
        return self.outcomes.of(want.request.pool, self._roster.pools)

    def want(
        self,
        tenant: str,
        request: SandboxRequest,
        label: str | None,
        *,
        share: Share,
        gang: str = "",
        reservation: str | None = None,
    ) -> Want:
        """What is asked for, with all that the gateway adds to it. `label` is the value of the pod's key label.

        Raises:
            BadRequestError: there is no such pool, or none that can give this.
            NetworkDeniedError: its egress profile is not to be had.
        """
        with self.outcomes.of(request.pool, self._roster.pools):
            pools = {name: s for name, s in self._roster.pools.items() if s.admits(tenant)}
            spec = choice.pool_of(request, pools)
            image = self._trials.image(request, spec)
            network = choice.network_of(request.network, spec, share)
        kept = record(request)
        waits = request.network_wait
        if waits is None:
            waits = request.purpose is Purpose.EVAL and self._settings.eval_network_wait
        request = dataclasses.replace(
            request,
            pool=spec.name,
            prepare=request.prepare or spec.prepare,
            avoid_nodes=self._roster.avoidable(request.avoid_nodes),
        )
        request, agreed = conditions.agreed(request, spec, kept, waits=waits)
        return Want(
            request=request,
            image=image,
            tenant=tenant,
            key=label,
            record=agreed,
            arrived=trio.current_time(),
            share=share,
            gang=gang,
            cost=quota.of_request(spec, request.resources),
            prepared=prepared_hash(tenant, image, request.prepare),
            reservation=reservation,
            network=network,
            waits_for_network=waits,
        )

    async def reserve(
        self, tenant: str, request: SandboxRequest, reservation: str, *, share: Share
    ) -> Ready:
        """A placeholder that is prepared for such requests of this tenant; as `allocate`."""
        want = self.want(tenant, request, None, share=share, reservation=reservation)
        return await self._allocate(want)

    def has_in_hand(self, claim_id: str | None) -> bool:
        """Whether this claim is being carried out here."""
        return claim_id in self._fulfilment.in_hand

    async def _allocate(self, want: Want) -> Ready:
        [waiter] = self.enter([want])
        with trio.CancelScope(deadline=want.deadline):
            return await self.see_through(waiter)
        raise self._timed_out(waiter, want)

    def enter(self, wants: Sequence[Want]) -> list[Waiter]:
        """Places in the queue for all of these, or for none; each must be seen through.

        Raises:
            CapacityError: the queue is full.
            QuotaError: the tenant may not have as many.
        """
        for want in wants[:1]:
            self._trials.refuse(want)
            self.networks.refuse(want.request.pool)
        self._admission.enter(wants, trio.current_time())
        if wants and not self._allocation.has_queue(wants[0].request.pool):
            self._pace(wants[0]).begin(trio.current_time())
        waiters = [Waiter(want.ticket(next(self._numbers)), want) for want in wants]
        for waiter in waiters:
            self._waiters[waiter.ticket.number] = waiter
            self._allocation.arrive(waiter.ticket)
        self._pump()
        return waiters

    async def see_through(self, waiter: Waiter) -> Ready:
        """The sandbox that this place in the queue brings, ready for commands. However it ends, the place
        is given up.

        Raises:
            CapacityError: every placeholder tried was lost.
            SandmanError: the image or the pod failed.
        """
        try:
            made = await self._attempts(waiter, waiter.want)
            self._pace(waiter.want).served(trio.current_time())
        finally:
            if trio.current_time() >= waiter.want.deadline:
                # Only who waited in vain is told; thousands may end at once otherwise.
                waiter.place = self._allocation.position(waiter.ticket)
                waiter.is_waiting = self._allocation.is_waiting(waiter.ticket)
            del self._waiters[waiter.ticket.number]
            self._admission.leave(waiter.want)
            self._reseating.leave(waiter.ticket)
            self._allocation.leave(waiter.ticket)
            self._pump()
        return made

    def stands(self, waiter: Waiter) -> tuple[bool, int | None, float]:
        """Whether it waits in the queue, its place there, and in how many seconds it is likely served."""
        if not self._allocation.is_waiting(waiter.ticket):
            return False, None, pace.LEAST_S
        place = self._allocation.position(waiter.ticket)
        wait_s = self._pace(waiter.want).wait_s(place or PLACE_MAX, trio.current_time())
        return True, place, wait_s

    def _pace(self, want: Want) -> pace.Pace:
        return self._paces.setdefault(want.request.pool, pace.Pace())

    async def abandon(self, made: Ready) -> None:
        """Delete a sandbox that nobody came for."""
        await self._fulfilment.abandon(made.instance)

    async def _attempts(self, waiter: Waiter, want: Want) -> Ready:
        lost = 0
        while True:
            order = await waiter.wait_order()
            pause = 0.0
            try:
                carry_out = functools.partial(self._fulfilment.carry_out, order, want)
                made = await self._reseating.attempt(order, carry_out)
                if made is not None:
                    return self._trials.succeeded(order, made)
            except ClaimLostError:
                lost += 1
                log.info("claim lost", attempt=lost, slot=order.slot and order.slot.uid)
            except NotResizedError as error:
                # One more placeholder, on another node perhaps; then a pod that has it from the start.
                lost += 1
                is_fresh = error.fresh or lost > 1
                waiter.ticket = dataclasses.replace(waiter.ticket, is_fresh=is_fresh)
            except BusyError as busy:
                log.info("the API server is busy", error=str(busy.error))
            except SandmanError as error:
                lost += 1
                again = lost < self._settings.claim_attempts
                pause = self._trials.failed(order, want, error, again=again)
                waiter.trouble = error
            finally:
                waiter.order = None
                self._allocation.done(waiter.ticket)
                self._pump()
            if lost == self._settings.claim_attempts:
                raise CapacityError("every placeholder tried was lost", retry_after=1.0)
            await trio.sleep(pause)
            self._allocation.arrive(waiter.ticket, first=True)
            self._reseating.leave(waiter.ticket)
            self._pump()

    def _spent(self, ticket: Ticket, node: str) -> None:
        """Its order is carried out as far as others must wait for it: its image runs."""
        self._allocation.images.succeeded(ticket, node)
        self._allocation.done(ticket)
        self._pump()

    def _timed_out(self, waiter: Waiter, want: Want) -> SandmanError:
        if waiter.trouble is not None:
            return waiter.trouble
        facts: dict[str, object] = {"waited_s": want.request.wait_s, "place": waiter.place}
        doing = "starting"
        if waiter.is_waiting:
            place = waiter.place or f"more than {PLACE_MAX}"
            doing = f"number {place} in the queue"
        return CapacityError(
            f"no sandbox within wait_s={want.request.wait_s:g} (it was {doing})",
            retry_after=1.0,
            facts=facts,
        )

    def _pump(self) -> None:
        """Let the allocation decide, and hand its orders to those who wait for them."""
        now, backoff = trio.current_time(), self._fulfilment.backoff
        claims, cold = backoff.limits(now, self._roster.open_nodes)
        self._allocation.limit(claims=claims, cold=cold)
        if now < backoff.paused_until():
            self._frozen.set()
        for order in self._allocation.assign():
            self._waiters[order.ticket.number].give(order)
        self._reseating.look()

    def waiting(self) -> list[Waiting]:
        """Each request that waits for an order."""
        now = trio.current_time()
        waiters = [(one.ticket, one.want) for one in self._waiters.values()]
        return [
            Waiting(ticket.tenant, now - want.arrived, ticket.pool, want.image, ticket.run)
            for ticket, want in waiters
            if self._allocation.is_waiting(ticket)
        ]

    # --- the same key again ---

    def made_before(self, want: Want) -> Instance | None:
        """The living sandbox of the want's key.

        Raises:
            ConflictError: it was made for another request.
        """
        made = self._fulfilment.made_before(want.key) if want.key is not None else None
        if made is not None and made.request.get("fingerprint") != want.record["fingerprint"]:
            raise ConflictError(
                "this Idempotency-Key was used with another request", sandbox=made.id
            )
        return made

    def has_key(self, label: str) -> bool:
        """Whether a living sandbox has this value of the key label."""
        return self._fulfilment.made_before(label) is not None

    async def again(self, made: Instance, want: Want, *, at_least_s: float = 0.0) -> Ready | None:
        """The sandbox that this key made before; finishes its handshake if nobody did, within `wait_s` or
        this many seconds. None where it was half prepared: it is deleted then, and another may be made."""
        claim = self._fulfilment.handshake(made, want.request)
        with trio.CancelScope(deadline=max(want.deadline, want.arrived + at_least_s)):
            if want.request.prepare and made.prepared != want.prepared:
                met = await self._fulfilment.starting.wait_ready(
                    made, claim, self._fulfilment.preparation.meet
                )
                if met.claim_id is None:
                    # Whoever began it is gone, and steps are not done twice.
                    await self._fulfilment.give_up(made)
                    return None
            try:
                info = await self._fulfilment.ready(made, claim, want.request.resources)
            except NotResizedError as error:
                await self._fulfilment.abandon(made)
                raise CapacityError(f"it could not be resized: {error}", retry_after=1.0) from error
            await self._fulfilment.wait_network(made, want)
            now = self._roster.registry.get(made.uid) or made
            waited = (trio.current_time() - want.arrived) * 1e3
            return Ready(now, info.boot_id, Timings(0.0, 0.0, waited))
        raise UnreachableError("the sandbox of this key does not answer", sandbox=made.id)
