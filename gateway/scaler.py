"""Keeps the size of pools that have both `sandman.dev/min` and `sandman.dev/max`; all others are left alone.

`autoscale` decides; this looks, writes `replicas`, and looks again. The allocator alone does.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gateway import autoscale
from gateway.autoscale import Demand, Rate, Window
from gateway.breaker import is_open
from sandman import names
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.model import Instance, PoolSpec
    from gateway.roster import Roster

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""Seconds between two looks: a burst is answered within one, and a look costs milliseconds at 12,000 pods."""
TOLD_S = 5.0
"""Seconds for the watch to tell of what was written; until then it counts as written."""

Key = tuple[str, str]
"""Namespace and name of a pool."""


class Scale(Protocol):
    """What is needed of the provider."""

    async def scale(self, spec: PoolSpec, replicas: int) -> None:
        """Set how many free placeholders a pool has.

        Raises:
            SandmanError: it may not be set.
        """


class _Memory:
    """What is remembered of one pool."""

    def __init__(self, now: float, current: int, in_use: set[str]) -> None:
        self.window = Window(now, current)
        self.rate = Rate(now)
        self.in_use = in_use
        self.written: tuple[float, int, int] | None = None
        """When, over which value, and what."""

    def current(self, now: float, told: int) -> int:
        """`replicas` as they are, though the watch may be behind."""
        if self.written is None:
            return told
        at, before, value = self.written
        return value if told == before and now - at < TOLD_S else told


class Scaler:
    """Scales pools.

    Args:
        roster: pools and pods.
        provider: carries it out.
        is_leader: whether this replica is the allocator, which alone knows what waits.
        forecast: by pool, how many placeholders reservations will ask for yet.
    """

    def __init__(
        self,
        roster: Roster,
        provider: Scale,
        *,
        is_leader: Callable[[], bool],
        forecast: Callable[[], Mapping[str, int]],
    ) -> None:
        self._roster = roster
        self._provider = provider
        self._is_leader = is_leader
        self._forecast = forecast
        self._memory: dict[Key, _Memory] = {}

    async def run(self) -> None:
        """Look again and again until cancelled."""
        await self._roster.synced.wait()
        while True:
            if self._is_leader():
                await self._look()
            else:
                self._memory.clear()
            await trio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        scaled = [spec for spec in self._roster.specs() if is_scaled(spec)]
        kept = {(spec.namespace, spec.name) for spec in scaled}
        self._memory = {key: value for key, value in self._memory.items() if key in kept}
        if not scaled:
            return
        forecast, shares = self._forecast(), Counter(spec.name for spec in scaled)
        pods: dict[Key, list[Instance]] = {key: [] for key in kept}
        for one in self._roster.registry.all():
            if (one.namespace, one.pool) in pods and one.ending is None and not one.deleting:
                pods[one.namespace, one.pool].append(one)
        for spec in scaled:
            here = pods[spec.namespace, spec.name]
            ahead = forecast.get(spec.name, 0)
            await self._scale(spec, here, ahead, shares[spec.name])

    async def _scale(self, spec: PoolSpec, here: list[Instance], ahead: int, shares: int) -> None:
        now = trio.current_time()
        in_use = {one.uid for one in here if one.state != names.STATE_FREE}
        key = spec.namespace, spec.name
        memory = self._memory.get(key)
        if memory is None:
            memory = self._memory[key] = _Memory(now, spec.wanted, in_use)
        current = memory.current(now, spec.wanted)
        demand = Demand(
            free=sum(one.state == names.STATE_FREE and one.running for one in here),
            in_use=len(in_use),
            # Pools of one name in several namespaces serve the same queue.
            waiting=-(-self._roster.allocation.waiting(spec.name) // shares),
            forecast=-(-ahead // shares),
            rate=memory.rate.add(now, len(in_use - memory.in_use)),
        )
        memory.in_use = in_use
        most_wanted = memory.window.add(now, autoscale.wanted(demand, spec.least or 0))
        replicas = autoscale.target(demand, most_wanted, current, spec.most or 0)
        if replicas == current:
            return
        try:
            await self._provider.scale(spec, replicas)
        except SandmanError as error:
            log.warning("a pool could not be scaled", pool=spec.name, error=str(error))
            return
        memory.written = now, spec.wanted, replicas
        log.info("pool scaled", pool=spec.name, before=current, replicas=replicas)


def is_scaled(spec: PoolSpec) -> bool:
    """Whether this pool's size is ours to keep; of one that was stopped it is the breaker's."""
    if is_open(spec):
        return False
    return spec.least is not None and spec.most is not None and spec.least <= spec.most
