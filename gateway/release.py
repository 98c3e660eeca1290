"""Gives sandboxes back: deletes their pods, by uid, and remembers that it was the owner's wish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gateway.model import Ending
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import Instance
    from gateway.provider import Provider
    from gateway.registry import Registry

DELETES_AT_ONCE = 16
"""Deletions in flight for one run: half of the connections to the API server."""


class Releaser:
    """Releases sandboxes.

    Args:
        wall: seconds since the epoch.
    """

    def __init__(self, registry: Registry, provider: Provider, wall: Callable[[], float]) -> None:
        self._registry = registry
        self._provider = provider
        self._wall = wall

    async def release(self, instance: Instance) -> None:
        """Delete the pod. Its pending calls end with `released` once the API server has agreed.

        The reason is written first: of a pod that is only deleted the other replicas could not tell
        whose wish that was, and would blame the sandbox or the infrastructure.
        """
        ending = self._ending()
        if instance.ending is None:
            await self._provider.mark(instance, ending)
        await self._provider.delete(instance)
        self._registry.remove(instance.uid, ending)

    def released(self, instances: Iterable[Instance]) -> None:
        """Another replica has released them, at its word: they are not shown here any more either."""
        for instance in instances:
            self._registry.remove(instance.uid, self._ending())

    def _ending(self) -> Ending:
        return Ending("released", "it was released", at=self._wall())

    async def release_all(self, instances: Iterable[Instance]) -> int:
        """Release each, also when one of them fails; answers how many there were.

        Raises:
            SandmanError: the first failure.
        """
        limiter = trio.CapacityLimiter(DELETES_AT_ONCE)
        count = 0
        failures: list[SandmanError] = []

        async def one(instance: Instance) -> None:
            async with limiter:
                try:
                    await self.release(instance)
                except SandmanError as error:
                    failures.append(error)

        async with trio.open_nursery() as nursery:
            for instance in instances:
                count += 1
                nursery.start_soon(one, instance)
        if failures:
            raise failures[0]
        return count
