"""Looks again and again whether the cluster enforces network policies at all: a placeholder has no network, so
what it reaches, everybody in its namespace does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import structlog
import trio

from gateway.roster import is_free
from sandman import names

if TYPE_CHECKING:
    from gateway.model import Instance
    from gateway.networks import Networks
    from gateway.roster import Roster

log = structlog.get_logger()

EVERY_S = 60.0
"""Seconds between two looks at a namespace: one probe of a dozen addresses, from one pod."""
FIRST_S = 5.0
"""Seconds after the start, and between looks until there is something to look from."""
AGAIN_S = 10.0
"""Seconds until what was found open is looked at again, from another pod perhaps: some network plugins leave a new pod
open for a moment."""


class EnforcementWatch:
    """Probes placeholders.

    Args:
        roster: what there is.
        networks: probes, and is told.
        namespaces: where to look.
    """

    def __init__(self, roster: Roster, networks: Networks, namespaces: tuple[str, ...]) -> None:
        self._roster = roster
        self._networks = networks
        self._namespaces = namespaces
        self._doubts: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        pause = FIRST_S
        while True:
            await trio.sleep(pause)
            verdicts = [await self.look(namespace) for namespace in self._namespaces]
            pause = FIRST_S if None in verdicts else EVERY_S
            if self._doubts:
                pause = min(pause, AGAIN_S)

    async def look(self, namespace: str) -> bool | None:
        """Whether policies are enforced in a namespace, as far as one pod tells; None: nobody could."""
        instance = self._choose(namespace)
        found = None if instance is None else await self._networks.look(instance)
        if instance is None or found is None:
            return None
        if not found:
            self._doubts.discard(namespace)
            self._say(namespace, instance, found)
            return True
        if namespace in self._doubts:
            self._say(namespace, instance, found)
        self._doubts.add(namespace)
        return False

    def _choose(self, namespace: str) -> Instance | None:
        # One that is older shows what is, and not how fast it came to be.
        free = [
            one
            for one in self._roster.registry.all()
            if one.namespace == namespace
            and one.state == names.STATE_FREE
            and is_free(one)
            and one.network == names.NETWORK_NONE
            and self._roster.boot_id(one.uid) is not None
        ]
        return random.choice(free) if free else None  # noqa: S311 - spreads the looks, guards nothing

    def _say(self, namespace: str, instance: Instance, found: list[str]) -> None:
        before, now = self._networks.enforced.get(namespace), not found
        self._networks.enforced[namespace] = now
        if now and before is not True:
            log.info("network policies are enforced", namespace=namespace)
        if not now:
            log.warning(
                "network policies are NOT enforced",
                namespace=namespace,
                pod=instance.name,
                found=found,
            )
