"""The pool: requests in, sandboxes out. Async shell over `allocation`, which decides.

Whatever way a call ends, by success, failure or cancellation at any await, the pod it took is
either handed over or deleted, and its place in the queue is given up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import choice, wanting
from gateway.daemons import NotListeningError
from gateway.fairness import PLACE_MAX, Ticket
from gateway.model import DEFAULT_SHARE, Ready, Share, Timings
from gateway.outcomes import Outcomes
from gateway.provider import ClaimLostError, PoolSeen
from gateway.resizing import NotResizedError
from gateway.roster import is_free
from gateway.trials import Trials
from sandman.errors import (
    CapacityError,
    ConflictError,
    QuotaError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.allocation import Order
    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.fulfilment import Fulfilment, Want
    from gateway.model import Instance, PoolSpec, SandboxRequest
    from gateway.provider import News
    from gateway.roster import Roster
    from sandman import wire

log = structlog.get_logger()

VETS_AT_ONCE = 32
"""Handshakes with new placeholders in flight: each costs both sides about a millisecond."""
VET_PAUSES_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries to reach a new placeholder's daemon, which starts within 30 ms."""
VET_AGAIN_S = 30.0
"""Pause after that, for as long as it is there: nothing else would bring it in. 900 that do not
answer, at a second each, take up all of VETS_AT_ONCE."""
QUOTA_RETRY_S = 5.0
"""Seconds after which a caller who has all that it may is told to ask again."""
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
        fulfilment.spent = self._spent
        self._daemons = daemons
        self._settings = settings
        self._numbers = itertools.count(1)
        self._waiters: dict[int, _Waiter] = {}
        self.outcomes = Outcomes()
        self._keys: dict[str, _KeyLock] = {}
        self._trials = Trials(roster, self._waiters.values, settings.image_mirrors)

    def __repr__(self) -> str:
        return f"<Pool {self._allocation!r} keys={len(self._keys)}>"

    async def run(self, news: trio.MemoryReceiveChannel[News]) -> None:
        """Take in the provider's news until its channel closes."""
        limiter = trio.CapacityLimiter(VETS_AT_ONCE)
        async with news, trio.open_nursery() as nursery:
            vetting: set[str] = set()
            nursery.start_soon(self._settle)
            async for item in news:
                fresh = self._roster.apply(item)
                if isinstance(item, PoolSeen):
                    self._trials.pool_seen(item.spec.name)
                if fresh is not None and fresh.uid not in vetting:
                    vetting.add(fresh.uid)
                    nursery.start_soon(self._vet, fresh, vetting, limiter)
                self._pump()
            nursery.cancel_scope.cancel()

    async def _settle(self) -> None:
        while True:
            await trio.sleep(SETTLE_EVERY_S)
            await self._fulfilment.settle_again()
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
        with self.outcomes.of(request.pool, self._roster.pools) as outcome:
            pools = {name: s for name, s in self._roster.pools.items() if s.admits(tenant)}
            spec = choice.pool_of(request, pools)
            outcome.pool = spec.name
            return outcome.made(await self._allocate_once(tenant, request, spec, key, share))

    async def _allocate_once(
        self, tenant: str, request: SandboxRequest, spec: PoolSpec, key: str | None, share: Share
    ) -> Ready:
        image = self._trials.image(request, spec)
        want = wanting.make(spec, tenant, request, image, share, key=key)
        if want.key is None:
            return await self._allocate(want)
        async with self._alone(want.key, want.deadline):
            made = self._fulfilment.made_before(want.key)
            return await (self._allocate(want) if made is None else self._again(made, want))

    async def reserve(
        self, tenant: str, request: SandboxRequest, reservation: str, *, share: Share
    ) -> Ready:
        """A placeholder that is prepared for such requests of this tenant; as `allocate`."""
        pools = {name: s for name, s in self._roster.pools.items() if s.admits(tenant)}
        spec = choice.pool_of(request, pools)
        image = self._trials.image(request, spec)
        want = wanting.make(spec, tenant, request, image, share, reservation=reservation)
        return await self._allocate(want)

    def has_in_hand(self, claim_id: str | None) -> bool:
        """Whether this claim is being carried out here."""
        return claim_id in self._fulfilment.in_hand

    async def _allocate(self, want: Want) -> Ready:
        if len(self._waiters) >= self._settings.queue_max:
            raise CapacityError("the queue is full", retry_after=1.0, facts={"queue": "full"})
        self._trials.refuse(want)
        self._check_quota(want)
        waiter = _Waiter(_ticket(next(self._numbers), want), want.arrived)
        self._waiters[waiter.ticket.number] = waiter
        try:
            with trio.CancelScope(deadline=want.deadline):
                return await self._attempts(waiter, want)
        finally:
            if trio.current_time() >= want.deadline:
                # Only who waited in vain is told; thousands may end at once otherwise.
                waiter.place = self._allocation.position(waiter.ticket)
                waiter.is_waiting = self._allocation.is_waiting(waiter.ticket)
            del self._waiters[waiter.ticket.number]
            self._allocation.leave(waiter.ticket)
            self._pump()
        raise self._timed_out(waiter, want)

    def _check_quota(self, want: Want) -> None:
        limit = want.share.concurrent
        if limit is None:
            return
        asked = sum(one.ticket.tenant == want.tenant for one in self._waiters.values())
        besides = self._fulfilment.in_hand
        if want.reservation is None:
            # Those that are prepared for this will be what is asked for.
            besides = besides | self._roster.prepared_claims(want.prepared)
        held = self._roster.registry.count(want.tenant, besides=besides, enough=limit - asked)
        used = asked + held
        if used >= limit:
            raise QuotaError(
                f"the tenant may have {limit} sandboxes at once, and has or is getting as many: "
                "release some",
                retry_after=QUOTA_RETRY_S,
                facts={"limit": limit, "used": used},
            )

    async def _attempts(self, waiter: _Waiter, want: Want) -> Ready:
        for attempt in range(self._settings.claim_attempts):
            self._allocation.arrive(waiter.ticket, first=attempt > 0)
            self._pump()
            order = await waiter.wait_order()
            pause = 0.0
            try:
                made = await self._fulfilment.carry_out(order, want)
                return self._trials.succeeded(order, made)
            except ClaimLostError:
                log.info("claim lost", attempt=attempt, slot=order.slot and order.slot.uid)
            except NotResizedError as error:
                # One more placeholder, on another node perhaps; then a pod that has it from the start.
                is_fresh = error.fresh or attempt > 0
                waiter.ticket = dataclasses.replace(waiter.ticket, is_fresh=is_fresh)
            except SandmanError as error:
                pause = self._trials.failed(
                    order, want, error, again=attempt + 1 < self._settings.claim_attempts
                )
            finally:
                waiter.order = None
                self._allocation.done(waiter.ticket)
                self._pump()
            await trio.sleep(pause)
        raise CapacityError("every placeholder tried was lost", retry_after=1.0)

    def _spent(self, ticket: Ticket, node: str) -> None:
        """Its order is carried out as far as others must wait for it: its image runs."""
        self._allocation.images.succeeded(ticket, node)
        self._allocation.done(ticket)
        self._pump()

    def _timed_out(self, waiter: _Waiter, want: Want) -> CapacityError:
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
        for order in self._allocation.assign():
            self._waiters[order.ticket.number].give(order)

    def waiting(self) -> list[tuple[str, float]]:
        """Tenant and seconds so far of each request that waits for an order."""
        now = trio.current_time()
        return [
            (one.ticket.tenant, now - one.arrived)
            for one in self._waiters.values()
            if self._allocation.is_waiting(one.ticket)
        ]

    # --- the same key again ---

    async def _again(self, made: Instance, want: Want) -> Ready:
        """The sandbox that this key made before; finishes its handshake if nobody did."""
        if made.request.get("fingerprint") != want.record["fingerprint"]:
            raise ConflictError(
                "this Idempotency-Key was used with another request", sandbox=made.id
            )
        claim = self._fulfilment.handshake(made, want.request)
        with trio.CancelScope(deadline=want.deadline):
            if want.request.prepare and made.prepared != want.prepared:
                met = await self._fulfilment.wait_ready(
                    made, claim, self._fulfilment.preparation.meet
                )
                if met.claim_id is None:
                    # Whoever began it is gone, and steps are not done twice.
                    await self._fulfilment.give_up(made)
                    return await self._allocate(want)
            try:
                info = await self._fulfilment.ready(made, claim, want.request.resources)
            except NotResizedError as error:
                await self._fulfilment.give_up(made)
                raise CapacityError(f"it could not be resized: {error}", retry_after=1.0) from error
            now = self._roster.registry.get(made.uid) or made
            waited = (trio.current_time() - want.arrived) * 1e3
            return Ready(now, info.boot_id, Timings(0.0, 0.0, waited))
        raise UnreachableError("the sandbox of this key does not answer", sandbox=made.id)

    @contextlib.asynccontextmanager
    async def _alone(self, key: str, deadline: float) -> AsyncIterator[None]:
        """One call at a time for each key: the others wait and then find what the first made."""
        entry = self._keys.setdefault(key, _KeyLock())
        entry.users += 1
        try:
            with trio.CancelScope(deadline=deadline) as waiting:
                await entry.lock.acquire()
            if waiting.cancelled_caught:
                raise CapacityError(
                    "an earlier call with this key is not over within wait_s", retry_after=1.0
                )
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                del self._keys[key]

    # --- vetting ---

    async def _vet(
        self, instance: Instance, vetting: set[str], limiter: trio.CapacityLimiter
    ) -> None:
        """A placeholder counts as free once its daemon has answered, with its boot id."""
        try:
            info = await self._meet(instance, limiter)
        finally:
            vetting.discard(instance.uid)
        # Of what was prepared nothing is left in another start.
        starts = {None, info.boot_id} if info is not None else set()
        if info is not None and info.claim_id is None and instance.prepared_boot_id in starts:
            self._roster.vetted(instance.uid, info.boot_id)
            self._pump()

    async def _meet(self, instance: Instance, limiter: trio.CapacityLimiter) -> wire.Info | None:
        """What the placeholder's daemon says; None when it is no placeholder any more."""
        count = 0
        while (now := self._roster.registry.get(instance.uid)) is not None and is_free(now):
            try:
                async with limiter:
                    return await self._daemons.info(now)
            except (NotListeningError, SandmanError) as error:
                # One odd pod (an unknown key, a stranger on the port) must not end the gateway.
                if count == len(VET_PAUSES_S):
                    log.warning("placeholder is of no use", pod=now.name, error=str(error))
            await trio.sleep(VET_PAUSES_S[count] if count < len(VET_PAUSES_S) else VET_AGAIN_S)
            count += 1
        return None


class _Waiter:
    """One waiting call and the order it was given."""

    def __init__(self, ticket: Ticket, arrived: float) -> None:
        self.ticket = ticket
        self.arrived = arrived
        self.order: Order | None = None
        self.place: int | None = None
        """Place in the queue when the time was up; None when it had been given something, or is far back."""
        self.is_waiting = False
        self._error: SandmanError | None = None
        self._given = trio.Event()

    def give(self, order: Order) -> None:
        self.order = order
        self._given.set()

    def refuse(self, error: SandmanError) -> None:
        """It will get nothing, and why."""
        self._error = error
        self._given.set()

    async def wait_order(self) -> Order:
        """The order that the allocation gives.

        Raises:
            SandmanError: see `refuse`.
        """
        while self.order is None:
            if self._error is not None:
                raise self._error
            self._given = trio.Event()
            await self._given.wait()
        return self.order


class _KeyLock:
    """A lock and how many use it, so that it can be forgotten."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0


def _ticket(number: int, want: Want) -> Ticket:
    request = want.request
    return Ticket(
        number,
        request.pool,
        want.image,
        tenant=want.tenant,
        run=request.run or "",
        purpose=request.purpose,
        weight=want.share.weight,
        # A reservation does not live on what it, or another, has prepared.
        prepared=want.prepared if want.reservation is None else "",
    )
