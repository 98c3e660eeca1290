"""Where requests wait whose callers may come and go.

A *case* is what is decided as one: a request for one sandbox, or a gang of them. It has a task of its
own, and callers that ask for it. While nobody asks, it keeps its place in the queue, and what
became ready is kept, for `cases.LINGER_S`; then it is given up, and a sandbox that nobody came for is deleted.
A case that nobody could ask for again (no key, its id never told) ends with its only caller.

The desk is memory of the allocator alone. When that is lost, callers repeat their call with its key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from typing import TYPE_CHECKING

import structlog
import trio

from gateway.cases import Case, Dropped, Member, Outcome, member_ids
from gateway.keylocks import KeyLocks
from gateway.model import Ready
from gateway.wants import Queued, key_label
from sandman.errors import (
    ConflictError,
    InternalError,
    NotFoundError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gateway.model import SandboxRequest, Share
    from gateway.pool import Pool
    from gateway.waiting import Waiter
    from gateway.wants import Want

log = structlog.get_logger()

PROGRESS_S = 15.0
"""Seconds of silence in a stream before it says how far it is: load balancers cut longer ones."""
AGAIN_S = 5.0
"""Seconds at least for the handshake with a sandbox that is there already, whatever `wait_s` says."""
ABANDON_S = 12.0
"""Seconds for the deletion of what nobody came for: somewhat longer than it takes at most, since what could not
be deleted by then is tried again by the pool."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at whether this replica is the allocator still."""


class Desk:
    """The cases of this replica.

    Args:
        pool: where sandboxes come from.
        is_allocator: whether this replica decides.
    """

    def __init__(self, pool: Pool, is_allocator: Callable[[], bool]) -> None:
        self._pool = pool
        self._is_allocator = is_allocator
        self._cases: dict[str, Case] = {}
        self._keys = KeyLocks()
        self._dropped = Dropped()
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Desk cases={len(set(self._cases.values()))}>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See cases through until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await self._look_around()
            finally:
                self._nursery = None

    async def _look_around(self) -> None:
        """Give up what nobody asks for when another replica decides: who comes back is handed to that one,
        which knows nothing of it."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            for case in set(self._cases.values()) if not self._is_allocator() else ():
                if not case.askers:
                    case.scope.cancel()

    # --- what callers ask ---

    async def allocate(
        self, tenant: str, request: SandboxRequest, key: str | None, share: Share
    ) -> Ready | Queued:
        """A sandbox for this request, or where it stands when `wait_s` is over.

        Raises:
            SandmanError: it cannot be.
        """
        group = await self.open(tenant, request, key, share)
        [member] = group
        if member.case is None:
            return await self._again(member)
        return await self._wait(member.case, member.id, request.wait_s)

    async def ask(self, tenant: str, request: str, wait_s: float) -> Ready | Queued:
        """The same for a request that was made before, by its id.

        Raises:
            NotFoundError: none such is known, or it is another's.
        """
        case = self._cases.get(request)
        if case is None or case.tenant != tenant or case.is_ending:
            raise NotFoundError(
                f"no request {request[:80]} waits here: repeat the call, with its key if it had one"
            )
        return await self._wait(case, request, wait_s)

    async def drop(self, tenant: str, requests: Sequence[str]) -> None:
        """Give up these requests, the first of which stands for all; what was made for them and given to nobody is
        deleted on return."""
        for request in requests[:1]:
            self._dropped.add(tenant, request)
        for request in requests:
            case = self._cases.get(request)
            if case is not None and case.tenant == tenant:
                case.scope.cancel()
                await case.gone.wait()

    async def open(
        self, tenant: str, request: SandboxRequest, key: str | None, share: Share
    ) -> list[Member]:
        """The members of a call, each with its place in the queue unless it is made already. The same key
        finds the same again.

        Raises:
            ConflictError: the key was used with another request.
            SandmanError: they cannot be had, at once and for all of them.
        """
        whole = key_label(tenant, key) if key is not None else secrets.token_hex(20)
        ids = member_ids(whole, request.size)
        others = member_ids(whole, 2)[:1] if request.size == 1 else [whole]
        await self._wait_gone([*ids, *others])
        gang = whole if request.gang else ""
        wants = [
            self._pool.want(
                tenant, request, one if key is not None else None, share=share, gang=gang
            )
            for one in ids
        ]
        self._check_other_use(wants[0], others)
        found = [
            self._find(index, *pair) for index, pair in enumerate(zip(ids, wants, strict=True))
        ]
        # Its giving up may have overtaken it: then its caller is gone, and will not come back.
        can_return = key is not None and not self._dropped.has(tenant, whole)
        new = [one for one in found if one.case is None and one.made is None]
        self._enter(new, can_return=can_return)
        return [dataclasses.replace(one, case=self._cases.get(one.id)) for one in found]

    # --- a stream of several ---

    async def follow(
        self,
        members: Sequence[Member],
        wait_s: float,
        tell: Callable[[Member, Outcome], Awaitable[None]],
        pause: Callable[[int], Awaitable[None]],
    ) -> list[tuple[Member, Queued]]:
        """Tell of each member as soon as it is decided, and answer where the others stand after `wait_s`.

        Args:
            members: of one call.
            wait_s: seconds.
            tell: is given each outcome; what it raises ends this.
            pause: is called in longer silence, with how many are not decided.
        """
        cases = {one.case for one in members if one.case is not None}
        left = {one.index: one for one in members}
        with contextlib.ExitStack() as attended:
            for case in cases:
                attended.enter_context(case.attended())
            async with self._outcomes(members) as outcomes:
                begun = trio.current_time()
                while left:
                    is_any_made = any(one.made is not None for one in left.values())
                    # A moment more, so that what it raises when its time is up is heard.
                    limit_s = max(wait_s, AGAIN_S) + 1.0 if is_any_made else wait_s
                    one = await _next(outcomes, begun + limit_s)
                    if one is None:
                        break
                    if isinstance(one, _Silence):
                        await pause(len(left))
                        continue
                    member, outcome = one
                    await tell(member, outcome)
                    del left[member.index]
                    if member.case is not None:
                        with contextlib.suppress(Exception):
                            member.case.take(member.id)
            for case in cases:
                case.can_return = True
            return [(one, self.stands(one)) for one in left.values()]

    def stands(self, member: Member) -> Queued:
        """Where a member stands that is not decided."""
        if member.case is None:
            return Queued(member.id, is_waiting=False, place=None, retry_after=1.0)
        return self._stands(member.case, member.id)

    @contextlib.asynccontextmanager
    async def _outcomes(
        self, members: Sequence[Member]
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[Member, Outcome]]]:
        send, receive = trio.open_memory_channel[tuple[Member, Outcome]](len(members))
        async with trio.open_nursery() as nursery:
            for member in members:
                if member.case is not None and member.case.decided.is_set():
                    send.send_nowait((member, member.case.outcome(member.id)))
                else:
                    nursery.start_soon(self._report, member, send)
            yield receive
            nursery.cancel_scope.cancel()

    async def _report(
        self, member: Member, send: trio.MemorySendChannel[tuple[Member, Outcome]]
    ) -> None:
        outcome: Outcome
        again: Outcome | Queued
        if member.case is not None:
            await member.case.decided.wait()
            outcome = member.case.outcome(member.id)
        else:
            try:
                again = await self._again(member)
            except SandmanError as error:
                again = error
            if isinstance(again, Queued):
                return  # its time is up
            outcome = again
        send.send_nowait((member, outcome))

    # --- beneath ---

    async def _wait_gone(self, requests: Sequence[str]) -> None:
        """Return when none of these is about to be given up: what it had made must not be found again."""
        while True:
            known = [self._cases[one] for one in requests if one in self._cases]
            ending = next((case for case in known if case.is_ending), None)
            if ending is None:
                return
            await ending.gone.wait()

    def _check_other_use(self, want: Want, others: Sequence[str]) -> None:
        """A key stands for one request: for one sandbox, or for so many."""
        for other in others if want.key is not None else ():
            if other in self._cases or self._pool.has_key(other):
                raise ConflictError("this Idempotency-Key was used with another request")

    def _find(self, index: int, request: str, want: Want) -> Member:
        case = self._cases.get(request)
        if case is None:
            return Member(index, request, want, None, self._pool.made_before(want))
        if case.waiters[request].want.record["fingerprint"] != want.record["fingerprint"]:
            raise ConflictError("this Idempotency-Key was used with another request")
        return Member(index, request, want, case)

    def _enter(self, members: Sequence[Member], *, can_return: bool) -> None:
        """Places for those that have none; one case for a gang, else one each."""
        if self._nursery is None:
            raise UnreachableError("this gateway is starting, or about to end", retry_after=1.0)
        if not members:
            return
        with self._pool.counted(members[0].want):
            waiters = self._pool.enter([one.want for one in members])
        placed = {one.id: waiter for one, waiter in zip(members, waiters, strict=True)}
        want = members[0].want
        groups = [placed] if want.gang else [{one: waiter} for one, waiter in placed.items()]
        for group in groups:
            case = Case(want.tenant, group, can_return=can_return)
            self._cases |= dict.fromkeys(group, case)
            self._nursery.start_soon(self._work, case)

    async def _again(self, member: Member) -> Ready | Queued:
        """The sandbox that was made before; finishes its handshake if nobody did. Where nobody can, it is made
        anew, as a case: whoever else asks by the key waits for the same."""
        if member.made is None:
            raise NotFoundError("the request was given up")
        want = member.want
        until = max(want.deadline, want.arrived + AGAIN_S)
        async with self._keys.alone(member.id, until):
            made = None if member.id in self._cases else self._pool.made_before(want)
            if made is not None:
                with self._pool.counted(want) as outcome:
                    again = await self._pool.again(made, want, at_least_s=AGAIN_S)
                    if again is not None:
                        return outcome.made(again)
            await self._wait_gone([member.id])
            if member.id not in self._cases:
                can_return = not self._dropped.has(want.tenant, member.id)
                self._enter([member], can_return=can_return)
            case = self._cases[member.id]
        # To wait until another case of this key was gone may have taken all of its time.
        return await self._wait(case, member.id, max(0.0, until - trio.current_time()))

    async def _wait(self, case: Case, request: str, wait_s: float) -> Ready | Queued:
        with case.attended():
            if not case.decided.is_set():
                with trio.move_on_after(wait_s):
                    await case.decided.wait()
            if case.decided.is_set():
                return case.take(request)
            case.can_return = True
            return self._stands(case, request)

    def _stands(self, case: Case, request: str) -> Queued:
        waiter = case.waiters[request]
        is_waiting, place, wait_s = self._pool.stands(waiter)
        return Queued(request, is_waiting, place, wait_s, waiter.trouble)

    # --- a case's own task ---

    async def _work(self, case: Case) -> None:
        try:
            with case.scope:
                await self._decide(case)
                case.decided.set()
                await case.told.wait()
        finally:
            case.scope.cancel()
            case.decided.set()
            left = [case.outcomes[one] for one in case.untold if one in case.outcomes]
            with trio.move_on_after(ABANDON_S, shield=True):
                await self._abandon(left)
            for one in case.waiters:
                del self._cases[one]
            case.gone.set()

    async def _decide(self, case: Case) -> None:
        """An outcome for each member: of a gang sandboxes for all of them, or what failed for all."""
        failures: list[Exception] = []

        async def see_through(request: str, waiter: Waiter) -> None:
            try:
                with self._pool.counted(waiter.want) as outcome:
                    made = outcome.made(await self._pool.see_through(waiter))
                case.outcomes[request] = made
            except SandmanError as error:
                failures.append(error)
            except Exception as error:
                log.exception("a request failed", pool=waiter.ticket.pool)
                failures.append(InternalError(f"a fault of the gateway: {type(error).__name__}"))
            if failures:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for request, waiter in case.waiters.items():
                nursery.start_soon(see_through, request, waiter)
        if failures:
            made = list(case.outcomes.values())
            case.outcomes = dict.fromkeys(case.waiters, failures[0])
            with trio.move_on_after(ABANDON_S, shield=True):
                await self._abandon(made)

    async def _abandon(self, outcomes: Sequence[Outcome]) -> None:
        """Delete what nobody came for."""
        async with trio.open_nursery() as nursery:
            for one in outcomes:
                if isinstance(one, Ready):
                    nursery.start_soon(self._pool.abandon, one)


class _Silence:
    """Nothing was decided for PROGRESS_S."""


async def _next(
    outcomes: trio.MemoryReceiveChannel[tuple[Member, Outcome]], deadline: float
) -> tuple[Member, Outcome] | _Silence | None:
    """What is decided next; None when the time is up."""
    with contextlib.suppress(trio.WouldBlock):
        return outcomes.receive_nowait()
    until = min(deadline, trio.current_time() + PROGRESS_S)
    with trio.move_on_at(until):
        return await outcomes.receive()
    return None if until == deadline else _Silence()
