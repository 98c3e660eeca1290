"""Takes away what nobody needs any more: pods that have ended, once their reason had time to be heard,
and what pods that are gone left behind in this process (idle connections, pins)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import structlog
import trio

from gateway.release import DELETES_AT_ONCE
from sandman import names
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.model import Ending, Instance
    from gateway.provider import Provider
    from gateway.proxy import Proxy
    from gateway.registry import Registry
    from gateway.upstream import Upstream

log = structlog.get_logger()

EVERY_S = 30.0
"""Seconds between two rounds: as long as an idle connection is kept anyway."""
PLACEHOLDERS_PER_ROUND = 20
"""Failed placeholders that are deleted in one round. Each makes room in the quota for one more, and with
an image that does not start that would go on as fast as the cluster can."""


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """A pod to be deleted, and what its callers are told from then on."""

    instance: Instance
    ending: Ending


def due(
    instances: Iterable[Instance], first_seen: Mapping[str, float], *, now: float, retain_s: float
) -> list[Due]:
    """Which pods are to be deleted now. Pure.

    Args:
        instances: every pod.
        first_seen: by uid, when this process first saw that the pod had ended.
        now: seconds since the epoch, as is `first_seen`.
        retain_s: how long an ended sandbox stays, so that a gateway which only starts knows why it ended.
    """
    found, placeholders = [], 0
    for one in instances:
        if one.deleting:
            continue
        if one.state == names.STATE_FREE:
            placeholders += one.ending is not None
            if one.ending is not None and placeholders <= PLACEHOLDERS_PER_ROUND:
                found.append(Due(one, one.ending))
        elif (
            one.ending is not None
            and now - _ended_at(one.ending, first_seen.get(one.uid, now)) >= retain_s
        ):
            found.append(Due(one, one.ending))
    return found


def _ended_at(ending: Ending, first_seen: float) -> float:
    """The earlier of what is told and what was seen: the node's clock may be ahead."""
    return first_seen if ending.at is None else min(ending.at, first_seen)


class Janitor:
    """Cleans up in rounds.

    Args:
        is_leader: whether this replica is the allocator, which alone deletes pods.
        retain_s: see `due`.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        proxy: Proxy,
        provider: Provider,
        *,
        is_leader: Callable[[], bool],
        retain_s: float,
        wall: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._proxy = proxy
        self._provider = provider
        self._is_leader = is_leader
        self._retain_s = retain_s
        self._wall = wall
        self._first_seen: dict[str, float] = {}

    async def run(self) -> None:
        """Clean up until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            self._proxy.forget_ended()
            await self._upstream.close_unused(lambda uid: self._registry.get(uid) is not None)
            await self._delete_due()

    async def _delete_due(self) -> None:
        now, instances = self._wall(), self._registry.all()
        # Kept by every replica: the next allocator may be this one.
        self._first_seen = {
            one.uid: self._first_seen.get(one.uid, now)
            for one in instances
            if one.ending is not None
        }
        if not self._is_leader():
            return
        limiter = trio.CapacityLimiter(DELETES_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for one in due(instances, self._first_seen, now=now, retain_s=self._retain_s):
                nursery.start_soon(self._delete, one, limiter)

    async def _delete(self, one: Due, limiter: trio.CapacityLimiter) -> None:
        """Delete one pod, by uid; what fails is due again in the next round."""
        async with limiter:
            if one.instance.state != names.STATE_FREE:
                self._registry.remember(one.instance, one.ending)
            try:
                await self._provider.delete(one.instance)
            except SandmanError as error:
                log.warning(
                    "an ended pod could not be deleted", pod=one.instance.name, error=str(error)
                )
                return
            log.info("ended pod deleted", pod=one.instance.name, reason=one.ending.reason)
