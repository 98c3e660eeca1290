"""Ends what nobody holds any more: one replica, the allocator, in rounds.

    sandboxes   whose lease has lapsed, that are idle, whose life is over; whose node is lost
    orphans     claimed and never handed over; free pods of a pool that is no more; pods that never went though
                they were told to; Leases of runs that are over
    daemons     are told in time that a gateway is there, where no call tells them

`leases` decides about the first, `orphans` about the second; here it is asked, told and carried out. What has
ended by itself is the `janitor`'s.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from gateway import leases, orphans
from gateway.daemons import NotListeningError
from gateway.ground import RunKey
from gateway.leases import Activity, Verdict
from gateway.model import Ending
from gateway.release import DELETES_AT_ONCE
from sandman import names
from sandman.errors import INFRASTRUCTURE, SandmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable

    from gateway.daemons import Daemons
    from gateway.ground import Runs
    from gateway.model import Instance
    from gateway.provider import Provider
    from gateway.roster import Roster

T = TypeVar("T")
log = structlog.get_logger()

EVERY_S = 5.0
"""Seconds from one sweep to the next: a third of the quarter of a minute within which a lapsed lease is gone, for
asking, deleting and the pod's own second of grace."""
LEAST_S = 0.1
"""Seconds without a sweep between two, however long the last one took."""
ASKS_AT_ONCE = 32
"""Daemons asked at once; each has a second to answer."""
LOOKS_PER_SWEEP = 1000
"""Daemons told in one sweep that a gateway is there, or asked whom they belong to: a millisecond each. After a
change of the leader twelve thousand take a minute."""
NEWS_S = 60.0
"""Seconds within which a new leader begins to tell all daemons, however long ago the last one did."""


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """What is to be ended, and why."""

    instance: Instance
    ending: Ending


class Sweeper:
    """Sweeps.

    Args:
        roster: what there is.
        daemons: are asked and told.
        provider: ends sandboxes.
        runs: knows their heartbeats.
        is_leader: whether this replica is the allocator.
        in_hand: claims that are being carried out just now.
        grace_s: how long daemons outlive a lease that nobody renews.
    """

    def __init__(
        self,
        roster: Roster,
        daemons: Daemons,
        provider: Provider,
        runs: Runs,
        *,
        is_leader: Callable[[], bool],
        in_hand: Container[str | None],
        grace_s: float,
    ) -> None:
        self._roster = roster
        self._registry = roster.registry
        self._ledger = roster.ledger
        self._daemons = daemons
        self._provider = provider
        self._runs = runs
        self._is_leader = is_leader
        self._in_hand = in_hand
        self._grace_s = grace_s
        self._since: float | None = None
        self._due: dict[str, float] = {}
        """When each daemon is to be told that a gateway is there."""
        self._watched = orphans.Watched()

    def __repr__(self) -> str:
        return f"<Sweeper since={self._since}>"

    async def run(self) -> None:
        """Sweep while this replica is the allocator, until cancelled."""
        began = trio.current_time()
        while True:
            # Thousands that lapse together take longer than that: the next sweep follows at once.
            await trio.sleep_until(max(began + EVERY_S, trio.current_time() + LEAST_S))
            began = trio.current_time()
            if not self._is_leader() or not self._roster.synced.is_set():
                self._since = None
                self._due.clear()
                continue
            if self._since is None:
                self._since = trio.current_time()
            await self.sweep(self._since)

    async def sweep(self, since: float) -> None:
        """One round. `since`: since when this replica leads."""
        # What is in hand may be being prepared: nobody has it yet.
        leased = [
            one
            for one in self._registry.all()
            if _is_held(one) and one.claim_id not in self._in_hand
        ]
        await self._end_lapsed(leased, since)
        await self._end_lost(leased)
        await self._end_orphans()
        # The leader before may have told nobody for long.
        is_new = trio.current_time() - since < EVERY_S
        await self._tell_daemons(leased, NEWS_S if is_new else math.inf)
        living = {(one.tenant or "", one.run or "") for one in self._registry.all()}
        await self._runs.tidy(living, trio.current_time())

    # --- leases ---

    async def _end_lapsed(self, leased: Iterable[Instance], since: float) -> None:
        suspects = [one for one in leased if self._verdict(one, since) is not Verdict.KEEP]
        asked = [one for one in suspects if self._verdict(one, since) is Verdict.ASK]
        await _each(asked, self._ask, ASKS_AT_ONCE)
        lapsed = [one for one in suspects if self._verdict(one, since) is Verdict.LAPSED]
        confirmed = await self._confirm(lapsed)
        due = []
        for one in suspects:
            verdict = self._verdict(one, since)
            ending = leases.ending(one, verdict)
            is_doubtful = verdict is Verdict.LAPSED and _beats_of(one) not in confirmed
            if ending is not None and not is_doubtful:
                due.append(Due(one, ending))
        await self._end(due)

    def _verdict(self, one: Instance, since: float) -> Verdict:
        return self._ledger.verdict(one.uid, trio.current_time(), since)

    async def _ask(self, one: Instance) -> bool:
        """What a daemon knows of its callers; whether it answered."""
        asked = trio.current_time()
        try:
            info = await self._daemons.info(one)
        except (NotListeningError, SandmanError):
            info = None
        if info is None or info.claim_id != one.claim_id:
            self._ledger.tried(one.uid, asked)
            return False
        self._watched.met(one.uid)
        activity = Activity(info.used_s, info.renewed_s, info.idle_s)
        self._ledger.heard(one.uid, asked, trio.current_time(), activity)
        return True

    async def _confirm(self, lapsed: Iterable[Instance]) -> set[RunKey | None]:
        """Before a run's sandboxes go its heartbeat is looked for at its source; of which runs it was, and
        None, for sandboxes that live by no run."""
        confirmed: set[RunKey | None] = {None}

        async def look(key: RunKey) -> None:
            await self._runs.confirm(key)
            confirmed.add(key)

        keys = {key for key in map(_beats_of, lapsed) if key is not None}
        await _each(keys, look, ASKS_AT_ONCE)
        return confirmed

    # --- nodes ---

    async def _end_lost(self, leased: Iterable[Instance]) -> None:
        """Of a node whose kubelet is not heard of go those sandboxes that are not heard of either."""
        suspects = orphans.on_lost_nodes(leased, self._roster.lost_nodes, trio.current_time())
        silent: list[Instance] = []

        async def look(one: Instance) -> None:
            if not await self._ask(one):
                silent.append(one)

        await _each(suspects, look, ASKS_AT_ONCE)
        gone = self._watched.silent(suspects, silent)
        text = "its node is not heard of, and neither is it"
        ending = Ending("node_lost", text, cause=INFRASTRUCTURE)
        await self._end([Due(one, ending) for one in gone])

    # --- orphans ---

    async def _end_orphans(self) -> None:
        now, found = trio.current_time(), self._registry.all()
        unmet = self._watched.unmet(found, now, self._in_hand)[:LOOKS_PER_SWEEP]
        strays: list[Instance] = []

        async def look(one: Instance) -> None:
            if await self._is_stray(one):
                strays.append(one)

        await _each(unmet, look, ASKS_AT_ONCE)
        ending = Ending("released", "nobody was given it")
        await self._end([Due(one, ending) for one in strays])
        await _each(
            self._watched.to_delete(found, self._roster.pools, now), self._delete, DELETES_AT_ONCE
        )
        buried = self._watched.to_bury(found, self._roster.lost_nodes, now)
        await _each(buried, self._bury, DELETES_AT_ONCE)

    async def _is_stray(self, one: Instance) -> bool:
        """Whether no daemon took this claim, and none will: its allocator is gone."""
        try:
            info = await self._daemons.info(one)
        except (NotListeningError, SandmanError):
            return self._watched.is_hopeless(one, trio.current_time())
        if info.claim_id is None:
            return True
        self._watched.met(one.uid)
        return False

    async def _delete(self, one: Instance) -> None:
        await self._provider.delete(one)
        log.info("a pod that nobody needs was deleted", pod=one.name, state=one.state)

    async def _bury(self, one: Instance) -> None:
        await self._provider.bury(one)
        log.info("a pod of a lost node was taken off its list", pod=one.name, node=one.node)

    # --- daemons ---

    async def _tell_daemons(self, leased: Iterable[Instance], soon: float) -> None:
        """A daemon that no call reaches for its `ttl_s` and the grace ends its sandbox: each is told three
        times in that span that a gateway is there. `soon`: seconds until those are told that nothing is known
        of."""
        now = trio.current_time()
        held = {one.uid: one for one in leased if one.terms.ttl_s is not None}
        self._due = {
            uid: self._due.get(uid, now + min(self._span(one), soon)) for uid, one in held.items()
        }
        due = sorted((at, uid) for uid, at in self._due.items() if at <= now)
        todo = [held[uid] for _, uid in due[:LOOKS_PER_SWEEP]]
        await _each(todo, self._tell, ASKS_AT_ONCE)

    def _span(self, one: Instance) -> float:
        return ((one.terms.ttl_s or 0.0) + self._grace_s) / 3

    async def _tell(self, one: Instance) -> None:
        try:
            await self._daemons.renew(one, one.terms.ttl_s or 0.0, asked=False)
        except (NotListeningError, SandmanError) as error:
            log.info("a daemon could not be told", pod=one.name, error=str(error))
            return
        self._due[one.uid] = trio.current_time() + self._span(one)

    # --- the end ---

    async def _end(self, due: Iterable[Due]) -> None:
        await _each(due, self._reclaim, DELETES_AT_ONCE)

    async def _reclaim(self, one: Due) -> None:
        """What fails, or was renewed at the last moment, is looked at again in the next sweep."""
        if await self._provider.reclaim(one.instance, one.ending):
            self._registry.remember(one.instance, one.ending)


def _is_held(one: Instance) -> bool:
    return one.state == names.STATE_LEASED and one.ending is None and not one.deleting


def _beats_of(one: Instance) -> RunKey | None:
    """The run by whose heartbeats it lives, if it does."""
    if not one.terms.of_run or one.tenant is None or one.run is None:
        return None
    return RunKey(one.tenant, one.run)


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[object]], at_once: int) -> None:
    """Do it for each, so many at once; what fails is told and left for the next sweep."""
    if not (todo := list(items)):
        return
    limiter = trio.CapacityLimiter(at_once)

    async def one(item: T) -> None:
        async with limiter:
            try:
                await work(item)
            except SandmanError as error:
                log.warning("a part of a sweep failed", what=str(item)[:200], error=str(error))

    async with trio.open_nursery() as nursery:
        for item in todo:
            nursery.start_soon(one, item)
