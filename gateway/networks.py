"""Which egress profiles there are, and whether a sandbox's is in force: its own daemon tries the canaries.

Kubernetes takes NetworkPolicies and does not tell whether anybody enforces them. So nothing here believes what is
written: an answer "applied" is one that was probed from inside the sandbox, by process 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from gateway import audit, profiles
from gateway.daemons import NotListeningError
from gateway.profiles import Enforcement
from sandman import names
from sandman.errors import (
    DeletedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
    SandmanError,
)
from sandman.probes import Probe, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.model import Instance
    from gateway.profiles import Known, Plan, Profile
    from gateway.provider import Provider
    from gateway.roster import Roster

log = structlog.get_logger()

KNOWN_S = 5.0
"""Seconds for which a list of profiles is good: a burst asks once, and who applies one waits for no watch."""
PROBE_S = 1.0
"""Seconds for an address to answer: a packet that a policy drops answers never, and a canary is near."""
AGAIN_S = 0.25
"""Seconds between two probes while a network plugin is at work."""
HAND_OVER_S = 30.0
"""Seconds for the profile of a new sandbox to be in force when its caller waits for it."""
REFUSED_RETRY_S = 30.0
"""Seconds until a caller is told to ask again where nothing is enforced: half of a round of the check."""

Shown = list[dict[str, object]]


class Networks:
    """Profiles, and what shows that they are in force.

    Args:
        provider: knows the profiles.
        daemons: the way into the sandboxes.
        roster: other sandboxes, and what has ended.
        settings: namespaces, the daemons' port, what to do where nothing is enforced.
    """

    def __init__(
        self, provider: Provider, daemons: Daemons, roster: Roster, settings: Settings
    ) -> None:
        self._provider = provider
        self._daemons = daemons
        self._roster = roster
        self._settings = settings
        self._known: dict[str, tuple[float, Known]] = {}
        self._lock = trio.Lock()
        self.closed: Mapping[Target, str] = {}
        """What no profile opens and this replica knows by itself, and what it is called."""
        self.enforced: dict[str, bool] = {}
        """By namespace: whether a placeholder was found to reach nothing of what it must not."""

    async def known(self, namespace: str) -> Known:
        """The profiles of a namespace, at most KNOWN_S old.

        Raises:
            SandmanError: the API server does not tell.
        """
        async with self._lock:
            at, known = self._known.get(namespace, (-KNOWN_S, {}))
            if not known or trio.current_time() - at >= KNOWN_S:
                known = await self._provider.profiles(namespace)
                self._known[namespace] = (trio.current_time(), known)
            return known

    async def check(self, name: str | None) -> None:
        """Refuse what no sandbox could have: the profile must be there in each namespace. A pool's own (None) is
        its operator's business.

        Raises:
            NetworkUnsupportedError: there is no such profile, or it cannot be used.
        """
        if name not in (None, names.NETWORK_NONE):
            for namespace in self._settings.sandbox_namespaces:
                profiles.usable(await self.known(namespace), str(name))

    async def set(self, instance: Instance, name: str) -> Instance:
        """Write another profile on a sandbox, if there is such a one; what it is then.

        Raises:
            NetworkUnsupportedError: there is no such profile, or it cannot be used.
            SandmanError: the sandbox ends, or the API server does not answer.
        """
        profiles.usable(await self.known(instance.namespace), name)
        # Also where it seems to be there already: another replica may have changed it a moment ago.
        return audit.network(await self._provider.set_network(instance, name))

    async def prove(self, instance: Instance, name: str, wait_s: float) -> Shown:
        """Probe until the profile is in force; answers what was probed.

        Args:
            instance: the sandbox.
            name: the profile that is written on it.
            wait_s: seconds after which no further probe begins.

        Raises:
            NetworkNotAppliedError: it is not in force; the error says what is open or closed.
            NetworkUnsupportedError: there is no such profile, or it cannot be probed.
            SandmanError: the sandbox has ended.
        """
        until = trio.current_time() + wait_s
        profile = profiles.usable(await self.known(instance.namespace), name)
        was_silent = False
        while True:
            asked = self.plan(instance, profile)
            outcomes = await self._tried(instance, asked)
            is_right = bool(outcomes) and not profiles.wrong(asked, outcomes)
            if is_right and (was_silent or not profiles.is_by_silence(asked, outcomes)):
                return profiles.told(asked, outcomes)
            was_silent = is_right
            self._raise_if_ended(instance)
            if not is_right and trio.current_time() >= until:
                raise profiles.not_applied(name, asked, outcomes, instance.id)
            await trio.sleep(AGAIN_S)

    def plan(self, instance: Instance, profile: Profile) -> Plan:
        """What a probe in this pod is to find."""
        closed = dict(self.closed)
        other = self._other(instance)
        if other is not None:
            closed[other] = "another sandbox's daemon"
        closed |= {one: str(one) for one in self._settings.network_closed}
        return profiles.plan(profile, closed)

    def _other(self, instance: Instance) -> Target | None:
        """The daemon of another pod."""
        for one in self._roster.registry.all():
            if (
                one.uid != instance.uid
                and one.running
                and one.address not in (None, instance.address)
            ):
                return Target(str(one.address), self._settings.daemon_port)
        return None

    async def _tried(self, instance: Instance, asked: Plan) -> Mapping[Target, str]:
        """How each address answered; empty when the daemon did not."""
        if not asked.targets:
            return {}
        try:
            return await self._daemons.probe(instance, Probe(asked.targets, PROBE_S))
        except NotFoundError as error:
            raise NetworkUnsupportedError(
                "the sandbox's daemon is older than probes of the network", sandbox=instance.id
            ) from error
        except NotListeningError as error:
            log.info("a probe was not answered", pod=instance.name, error=str(error))
            return {}

    def _raise_if_ended(self, instance: Instance) -> None:
        now = self._roster.registry.get(instance.uid)
        if now is None:
            remembered = self._roster.registry.ending(instance.id)
            if remembered is not None:
                raise remembered[1].error(instance.id)
            raise DeletedError("its pod is gone", sandbox=instance.id)
        if now.ending is not None:
            raise now.ending.error(instance.id)

    # --- whether anything is enforced ---

    def refuse(self, pool: str) -> None:
        """Refuse sandboxes of a pool in whose namespaces nothing is enforced, where that is a condition.

        Raises:
            NetworkNotAppliedError: a placeholder reaches what it must not.
        """
        if self._settings.network_enforcement is not Enforcement.REQUIRE:
            return
        for spec in self._roster.places(pool):
            if self.enforced.get(spec.namespace) is False:
                raise NetworkNotAppliedError(
                    f"network policies are not enforced in {spec.namespace}: a placeholder reaches what it "
                    "must not",
                    retry_after=REFUSED_RETRY_S,
                    facts={"namespace": spec.namespace},
                )

    async def look(self, instance: Instance) -> list[str] | None:
        """What a placeholder, which has no network, reaches all the same; None when nobody could tell."""
        try:
            known = await self.known(instance.namespace)
            asked = self.plan(instance, profiles.usable(known, instance.network))
            outcomes = await self._tried(instance, asked)
        except SandmanError as error:
            log.info("a placeholder was not probed", pod=instance.name, error=str(error))
            return None
        return profiles.wrong(asked, outcomes) if outcomes else None
