"""Word of callers: each call and renewal that comes through this replica keeps its sandbox.

It is remembered here (`leases.Ledger`), the daemon knows it by the call itself, and the pod is written only when
less than half of what stands there is left. Writes are made beside the calls, never in their way. For an attachment
to a workload nothing is written: its pod is its owner's, and its daemon is asked before it ends.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import structlog
import trio

from gateway.daemons import NotListeningError
from gateway.model import Ending
from sandman.errors import SandmanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.daemons import Daemons
    from gateway.model import Instance
    from gateway.provider import Provider
    from gateway.roster import Roster

log = structlog.get_logger()

LOOK_S = 1.0
"""Seconds between two looks at what has been called: by so much a write may be late."""
WRITES_AT_ONCE = 8
"""Renewals in flight to the API server: a quarter of the connections. Claims need the others."""


class Keeper:
    """Keeps leases.

    Args:
        roster: has the ledger, and knows which calls are open.
        daemons: are told of renewals.
        provider: writes on pods.
        wall: seconds since the epoch.
    """

    def __init__(
        self, roster: Roster, daemons: Daemons, provider: Provider, wall: Callable[[], float]
    ) -> None:
        self._roster = roster
        self._daemons = daemons
        self._provider = provider
        self._wall = wall
        self._touched: set[str] = set()

    def __repr__(self) -> str:
        return f"<Keeper touched={len(self._touched)} {self._roster.ledger!r}>"

    def use(self, instance: Instance) -> None:
        """A call on the sandbox has come."""
        self._roster.ledger.used(instance.uid, trio.current_time())
        if instance.place is None:
            self._touched.add(instance.uid)

    async def renew(self, instance: Instance) -> None:
        """Its caller renews it: from now on it has its whole `ttl_s` again.

        The daemon is told, which every replica can ask; one that does not answer or is older than this is made
        up for by a write on the pod.

        Raises:
            SandmanError: neither could be done.
        """
        ttl_s = instance.terms.ttl_s
        if ttl_s is None:
            return
        try:
            await self._daemons.renew(instance, ttl_s, asked=True)
        except (NotListeningError, SandmanError) as error:
            if instance.place is not None:
                raise self._untold(instance, error) from error
            log.info("a renewal goes to the pod", pod=instance.name, error=str(error))
            await self._provider.renew(instance, 0.0)
        self._roster.ledger.renewed(instance.uid, trio.current_time())
        if instance.place is None:
            self._touched.add(instance.uid)

    def _untold(self, instance: Instance, error: NotListeningError | SandmanError) -> SandmanError:
        """Of an attachment nothing but its daemon can be told."""
        if isinstance(error, SandmanError):
            return error
        return UnreachableError(f"its daemon could not be told: {error}", sandbox=instance.id)

    def is_over(self, instance: Instance) -> bool:
        """Whether its longest life is over: new calls are refused, though its pod has some slack for those
        that are under way."""
        return self._roster.ledger.is_over(instance.uid, trio.current_time())

    def as_of_now(self, instance: Instance) -> Instance:
        """The sandbox as callers are shown it: with the moment at which it ends unless it is renewed."""
        if instance.ending is not None:
            return instance
        if self.is_over(instance):
            ending = Ending("expired", "its longest life was over", at=instance.expires_at)
            return dataclasses.replace(instance, ending=ending)
        left = self._roster.ledger.left(instance.uid, trio.current_time())
        if left == math.inf:
            return instance
        until = self._wall() + left
        if instance.place is not None and instance.expires_at is not None:
            # It counts from when it was taken, and not from when this replica saw it.
            until = min(until, instance.expires_at)
        return dataclasses.replace(instance, expires_at=until)

    async def run(self) -> None:
        """Write what must be written, until cancelled."""
        limiter = trio.CapacityLimiter(WRITES_AT_ONCE)
        while True:
            await trio.sleep(LOOK_S)
            async with trio.open_nursery() as nursery:
                for instance, age in self._due():
                    nursery.start_soon(self._write, instance, age, limiter)

    def _due(self) -> list[tuple[Instance, float]]:
        """What is to be written now; those without an open call are then left alone until the next one."""
        registry, ledger, now = self._roster.registry, self._roster.ledger, trio.current_time()
        due: list[tuple[Instance, float]] = []
        for uid in list(self._touched):
            is_open = registry.is_called(uid)
            if is_open:
                ledger.used(uid, now)
            instance, age = registry.get(uid), ledger.to_write(uid, now)
            if instance is not None and age is not None:
                due.append((instance, age))
            elif not is_open:
                self._touched.discard(uid)
        return due

    async def _write(self, instance: Instance, age: float, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            try:
                await self._provider.renew(instance, age)
            except SandmanError as error:
                # It is due again at the next look.
                log.info("a renewal could not be written", pod=instance.name, error=str(error))
