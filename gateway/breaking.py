"""Carries out what `breaker` decides: stops pools, and starts them again once their template was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from gateway import breaker
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.model import Broken, PoolSpec
    from gateway.provider import Provider
    from gateway.roster import Roster

log = structlog.get_logger()

LOOK_EVERY_S = 0.1
"""Seconds between two looks: a placeholder of a broken pool is replaced at once, and takes a second to fail."""
AGAIN_S = 5.0
"""Seconds until a write that the watch has not told of yet, or that failed, is tried again."""


class Breaking:
    """Stops and starts pools.

    Args:
        roster: what is there.
        provider: carries it out.
        is_leader: whether this replica is the allocator, which alone acts.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        roster: Roster,
        provider: Provider,
        is_leader: Callable[[], bool],
        wall: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._provider = provider
        self._is_leader = is_leader
        self._wall = wall
        self._asked: dict[breaker.PoolKey, float] = {}

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._is_leader():
                await self._look()

    async def _look(self) -> None:
        now, specs = trio.current_time(), self._roster.specs()
        self._asked = {key: at for key, at in self._asked.items() if now - at < AGAIN_S}
        if not self._roster.breaker.is_calm:
            # To count what is of use among ten thousand takes milliseconds.
            for trip in self._roster.breaker.due(specs, self._roster.useful(), now):
                await self._stop(trip.spec, breaker.opened(trip, self._wall()))
        for spec in specs:
            if breaker.is_to_restart(spec):
                await self._write(spec, "pool restarted", spec.broken, self._provider.restart_pool)
            elif breaker.is_to_stop_again(spec) and spec.broken is not None:
                await self._stop(spec, spec.broken)

    async def _stop(self, spec: PoolSpec, broken: Broken) -> None:
        await self._write(spec, "pool stopped", broken, self._provider.stop_pool, broken)

    async def _write(
        self,
        spec: PoolSpec,
        what: str,
        why: Broken | None,
        call: Callable[..., Awaitable[None]],
        *arguments: object,
    ) -> None:
        """One write, and no second one before the watch can have told of it."""
        key = breaker.PoolKey(spec.namespace, spec.name)
        if key in self._asked:
            return
        self._asked[key] = trio.current_time()
        try:
            await call(spec, *arguments)
        except SandmanError as error:
            log.warning("a pool could not be changed", pool=spec.name, error=str(error))
        else:
            reason = why.reason if why else None
            log.warning(what, pool=spec.name, namespace=spec.namespace, reason=reason)
