"""Gives a sandbox other resources than its placeholder had: a second write, and the wait for its kubelet.

A resize may be refused, put off until the node has room, or be impossible there. A sandbox that has less
than was asked for then is not handed over: another placeholder is tried, or a pod is made that has it from
the start. One that has more is handed over as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from gateway import choice, sizing
from gateway.provider import RefusedError
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from gateway.model import Amounts, Bounds, Instance
    from gateway.provider import Provider
    from gateway.roster import Roster

log = structlog.get_logger()

ACTUATED_S = 10.0
"""Seconds for a kubelet to do it: 0.5 to 2 when it has nothing else to do. A new pod takes one."""
GIVEN_UP = frozenset({"Deferred", "Infeasible", "Error"})
"""What a kubelet says of a resize that it does not do, now or ever."""
NO_ROOM = "enough allocatable resources"
"""What an API server (1.36) says of a resize that the pod's node could never do; others leave it to the kubelet."""


class NotResizedError(Exception):
    """The pod did not get what was asked for; `fresh`: no other placeholder would, but a new pod may."""

    def __init__(self, why: str, *, fresh: bool) -> None:
        super().__init__(why)
        self.fresh = fresh


class Resizing:
    """Resizes pods that were just claimed.

    Args:
        provider: writes.
        roster: what the pods have become.
    """

    def __init__(self, provider: Provider, roster: Roster) -> None:
        self._provider = provider
        self._roster = roster

    async def begin(self, instance: Instance, asked: Amounts) -> Bounds | None:
        """Write what it shall have; None when there is nothing to wait for.

        Raises:
            NotResizedError: it was refused.
        """
        spec = self._roster.spec(instance.pool, instance.namespace)
        if sizing.is_exact(instance.bounds, asked):
            return None
        enough = sizing.fits(instance.bounds, asked)
        if spec is None or not choice.may_resize(spec, asked):
            if enough:
                return None
            raise NotResizedError("its pool allows no resize", fresh=True)
        wanted = sizing.scaled(instance.bounds, asked)
        try:
            await self._provider.resize(instance, wanted)
        except (RefusedError, SandmanError) as error:
            log.warning("a resize was refused", pod=instance.name, error=str(error))
            if enough:
                return None
            raise NotResizedError(str(error), fresh=NO_ROOM not in str(error)) from error
        return wanted

    async def finish(self, instance: Instance, wanted: Bounds) -> None:
        """Wait until the kubelet has done it.

        Raises:
            NotResizedError: it will not, or not in time.
        """
        why = "not done in time"
        with trio.move_on_after(ACTUATED_S):
            while True:
                now = self._roster.registry.get(instance.uid) or instance
                if is_done(now, wanted):
                    return
                if now.resize in GIVEN_UP:
                    why = now.resize
                    break
                await self._roster.wait_change(instance.uid)
        log.warning("a resize was not done", pod=instance.name, node=instance.node, why=why)
        if not sizing.fits(instance.bounds, wanted.limits):
            raise NotResizedError(why, fresh=False)


def is_done(instance: Instance, wanted: Bounds) -> bool:
    """Whether the container runs with these limits; with these requests where it has no limits. Of cpu
    requests below a share the kernel keeps less than was written, so that they are not compared."""
    actual = instance.actual
    if actual is None:
        return False
    return all(
        have == limit if limit is not None else asked is None or known == asked
        for have, limit, known, asked in zip(
            actual.limits, wanted.limits, actual.requests, wanted.requests, strict=True
        )
    )
