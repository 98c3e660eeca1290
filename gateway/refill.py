"""When a pool's next placeholders may start: not while somebody waits for a sandbox.

Each claim makes the ReplicaSet create another placeholder at once, and its start (scheduling, network,
container) competes with the very claim that caused it: for the API server, and on a small node for
the processor. A pool whose template carries the scheduling gate `names.GATE_REFILL` gets its
placeholders held; the allocator lets them go when nothing is being allocated, or after `HOLD_S`
however busy it is. A pool without the gate is refilled at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.orders import Statistics
    from gateway.provider import Provider
    from gateway.roster import Roster

log = structlog.get_logger()

HOLD_S = 1.0
"""Seconds that a placeholder is held at most: some three image swaps. In a storm without end the
refill then trails by so much, and no more."""
LOOK_EVERY_S = 0.05
"""Seconds between two looks. Costs a free allocator nothing worth measuring."""
STARTS_AT_ONCE = 16
"""Writes in flight to let placeholders go."""
AGAIN_S = 5.0
"""Seconds until one that was let go is let go once more, should the watch say that it is held still: an
admission policy of somebody's may have refused the write in a way that looks like `it is gone`."""
TROUBLE_PAUSE_S = 1.0
"""Seconds without a try after one that failed: the API server has other worries."""


def due(
    held: Mapping[str, float], asked: Mapping[str, float], counts: Statistics, now: float
) -> list[str]:
    """Uids of the placeholders that may start. Pure.

    Args:
        held: by uid, since when.
        asked: by uid, when it was last let go; the watch has not told of it yet.
        counts: what the allocation has in hand.
        now: on the clock of both.
    """
    is_busy = counts.claiming + counts.cold > 0
    return [
        uid
        for uid, since in held.items()
        if (not is_busy or now - since >= HOLD_S) and now - asked.get(uid, -AGAIN_S) >= AGAIN_S
    ]


class Refill:
    """Lets held placeholders go.

    Args:
        roster: knows which are held.
        provider: carries it out.
        is_leader: whether this replica is the allocator: it alone knows what is being allocated.
    """

    def __init__(self, roster: Roster, provider: Provider, is_leader: Callable[[], bool]) -> None:
        self._roster = roster
        self._provider = provider
        self._is_leader = is_leader
        self._asked: dict[str, float] = {}

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._roster.held and self._is_leader() and not await self._let_go():
                await trio.sleep(TROUBLE_PAUSE_S)

    async def _let_go(self) -> bool:
        """One round; False when a write failed. One is held until the watch tells that it is not."""
        self._asked = {uid: at for uid, at in self._asked.items() if uid in self._roster.held}
        counts = self._roster.allocation.statistics()
        failed: list[str] = []
        limiter = trio.CapacityLimiter(STARTS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for uid in due(self._roster.held, self._asked, counts, trio.current_time()):
                nursery.start_soon(self._start, uid, limiter, failed)
        return not failed

    async def _start(self, uid: str, limiter: trio.CapacityLimiter, failed: list[str]) -> None:
        async with limiter:
            instance = self._roster.registry.get(uid)
            if instance is None:
                return
            try:
                await self._provider.start(instance)
            except SandmanError as error:
                failed.append(uid)
                log.warning("a placeholder is held still", pod=instance.name, error=str(error))
                return
            if uid in self._asked:
                log.warning("a placeholder is held still", pod=instance.name, error="no effect")
            self._asked[uid] = trio.current_time()
