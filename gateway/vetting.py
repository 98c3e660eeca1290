"""Meets the daemons of new placeholders: none counts as free before its own has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from gateway import versions
from gateway.daemons import NotListeningError
from gateway.roster import is_free
from sandman.errors import SandmanError, VersionSkewError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.daemons import Daemons
    from gateway.model import Instance
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


class Vetting:
    """Those that are being met.

    Args:
        roster: is told of who answered.
        daemons: the way to them.
        tell: called when there is one more.
    """

    def __init__(self, roster: Roster, daemons: Daemons, tell: Callable[[], None]) -> None:
        self._roster = roster
        self._daemons = daemons
        self._tell = tell
        self._under_way: set[str] = set()
        self._limiter = trio.CapacityLimiter(VETS_AT_ONCE)

    def begin(self, instance: Instance, nursery: trio.Nursery) -> None:
        """Vet this one in the nursery, unless that is under way."""
        if instance.uid not in self._under_way:
            self._under_way.add(instance.uid)
            nursery.start_soon(self._vet, instance)

    async def _vet(self, instance: Instance) -> None:
        """A placeholder counts as free once its daemon has answered, with its boot id."""
        try:
            info = await self._meet(instance)
        finally:
            self._under_way.discard(instance.uid)
        # Of what was prepared nothing is left in another start.
        starts = {None, info.boot_id} if info is not None else set()
        if info is not None and info.claim_id is None and instance.prepared_boot_id in starts:
            self._roster.vetted(instance.uid, info.boot_id)
            self._tell()

    async def _meet(self, instance: Instance) -> wire.Info | None:
        """What the placeholder's daemon says; None when it is no placeholder any more."""
        count = 0
        while (now := self._roster.registry.get(instance.uid)) is not None and is_free(now):
            try:
                async with self._limiter:
                    info = await self._daemons.info(now)
                versions.check(info.version)
            except VersionSkewError as error:
                if now.uid not in self._roster.skewed:
                    log.warning("placeholder is of no use", pod=now.name, error=str(error))
                self._roster.skewed.add(now.uid)
            except (NotListeningError, SandmanError) as error:
                # One odd pod (an unknown key, a stranger on the port) must not end the gateway.
                if count == len(VET_PAUSES_S):
                    log.warning("placeholder is of no use", pod=now.name, error=str(error))
            else:
                self._roster.skewed.discard(now.uid)
                return info
            await trio.sleep(VET_PAUSES_S[count] if count < len(VET_PAUSES_S) else VET_AGAIN_S)
            count += 1
        return None
