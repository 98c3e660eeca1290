"""Egress profiles: which there are, what shows that one is in force, and what a probe has shown. Pure.

A profile is a NetworkPolicy with the label `sandman.dev/profile`; the gateway writes none of them. It lists addresses
that accept connections (*canaries*): those that the profile opens, and those that it must not. What every profile
keeps closed (API server, gateways, other sandboxes) is known without being listed.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
from typing import TYPE_CHECKING, Any

from sandman import names, probes
from sandman.errors import NetworkNotAppliedError, NetworkUnsupportedError
from sandman.probes import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVERY = "*"
"""In an annotation or a key's list: all profiles that there are."""


class Enforcement(enum.StrEnum):
    """What follows when a placeholder reaches what it must not."""

    WARN = "warn"
    """It is logged and counted."""
    REQUIRE = "require"
    """No sandbox is made until it is closed."""


CANARIES_MAX = 8
"""Of one profile: the rest of a probe's addresses are for what every profile keeps closed."""
OF_ANOTHER = "what another profile opens"


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """One egress profile, in one namespace."""

    name: str
    opens: tuple[Target, ...] = ()
    """Canaries that it opens."""
    closes: tuple[Target, ...] = ()
    """Canaries that stay closed under it."""
    fault: str = ""
    """Why it cannot be used."""


NONE = Profile(names.NETWORK_NONE)

Known = dict[str, Profile]
"""Profiles of one namespace by name, `none` among them."""


def of_policies(policies: Iterable[Mapping[str, Any]]) -> Known:
    """The profiles that these NetworkPolicies of one namespace are."""
    found = [profile for policy in policies if (profile := _of_policy(policy)) is not None]
    known: Known = {}
    for profile in found:
        # Two policies of one name add up, for Kubernetes and here.
        before = known.get(profile.name, Profile(profile.name))
        known[profile.name] = Profile(
            profile.name,
            tuple(dict.fromkeys(before.opens + profile.opens)),
            tuple(dict.fromkeys(before.closes + profile.closes)),
            before.fault or profile.fault,
        )
    opened = dict.fromkeys(target for one in known.values() for target in one.opens)
    # What any profile opens is there to be reached, and must not be without one.
    known[names.NETWORK_NONE] = dataclasses.replace(NONE, closes=tuple(opened))
    return {name: _judged(profile) for name, profile in known.items()}


def _of_policy(policy: Mapping[str, Any]) -> Profile | None:
    metadata = policy.get("metadata") or {}
    name = (metadata.get("labels") or {}).get(names.LABEL_PROFILE)
    if not name or name == names.NETWORK_NONE:
        return None
    notes = metadata.get("annotations") or {}
    spec = policy.get("spec") or {}
    selected = ((spec.get("podSelector") or {}).get("matchLabels") or {}).get(names.LABEL_NETWORK)
    if selected != name:
        return Profile(name, fault=f"its policy selects {names.LABEL_NETWORK}={selected}")
    try:
        opens = targets(notes.get(names.ANNOTATION_CANARY, ""))
        closes = targets(notes.get(names.ANNOTATION_CANARY_CLOSED, ""))
    except ValueError as error:
        return Profile(name, fault=f"its canaries cannot be read: {error}")
    return Profile(name, opens, closes)


def _judged(profile: Profile) -> Profile:
    if profile.name == names.NETWORK_NONE or profile.fault:
        return profile
    if not profile.opens:
        fault = (
            f"its policy names no address that it opens ({names.ANNOTATION_CANARY}), so that nobody "
            "can tell whether it is applied"
        )
    elif len(profile.opens) + len(profile.closes) > CANARIES_MAX:
        fault = f"it has over {CANARIES_MAX} canaries"
    else:
        return profile
    return dataclasses.replace(profile, fault=fault)


def targets(text: str) -> tuple[Target, ...]:
    """Addresses, separated by commas.

    Raises:
        ValueError: one is none.
    """
    found = tuple(Target.parse(part.strip()) for part in text.split(",") if part.strip())
    for one in found:
        ipaddress.ip_address(one.address)
    return found


def usable(known: Known, name: str) -> Profile:
    """The profile of this name.

    Raises:
        NetworkUnsupportedError: there is none, or it cannot be used.
    """
    profile = known.get(name)
    if profile is None:
        there = ", ".join(sorted(known)) or names.NETWORK_NONE
        raise NetworkUnsupportedError(
            f"there is no egress profile {name!r}; there are: {there}", field="network"
        )
    if profile.fault:
        raise NetworkUnsupportedError(
            f"the egress profile {name!r} cannot be used: {profile.fault}", field="network"
        )
    return profile


def is_listed(name: str, allowed: Iterable[str] | None) -> bool:
    """Whether a list of profiles has this one; None is no limit. `none` is everybody's."""
    if name == names.NETWORK_NONE or allowed is None:
        return True
    return name in (listed := set(allowed)) or EVERY in listed


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a probe is to find."""

    opens: tuple[Target, ...]
    closes: tuple[Target, ...]
    words: Mapping[Target, str] = dataclasses.field(default_factory=dict)
    """What callers are told in place of an address: which pods there are is none of their business."""

    def shown(self, target: Target) -> str:
        """The address, or what is told in its place."""
        return self.words.get(target, str(target))

    @property
    def targets(self) -> tuple[Target, ...]:
        """All of them."""
        return self.opens + self.closes


def plan(profile: Profile, always_closed: Mapping[Target, str]) -> Plan:
    """What shows that the profile is in force.

    Args:
        profile: which one.
        always_closed: what no profile opens, most telling first, and what it is called.
    """
    opens = profile.opens[:CANARIES_MAX]
    words = dict(always_closed)
    if profile.name == names.NETWORK_NONE:
        words |= {one: words.get(one, OF_ANOTHER) for one in profile.closes}
    closes = dict.fromkeys(one for one in (*always_closed, *profile.closes) if one not in opens)
    return Plan(opens, tuple(closes)[: probes.TARGETS_MAX - len(opens)], words)


def told(asked: Plan, outcomes: Mapping[Target, str]) -> list[dict[str, object]]:
    """What was probed, as callers see it."""
    return [
        {"what": asked.shown(one), "expected": expected, "outcome": outcomes[one]}
        for expected, group in (("open", asked.opens), ("closed", asked.closes))
        for one in group
    ]


def wrong(asked: Plan, outcomes: Mapping[Target, str]) -> list[str]:
    """What is not as it should be, in words; empty when the profile is in force."""
    found = [
        f"{asked.shown(one)} should be open: {outcomes[one]}"
        for one in asked.opens
        if outcomes[one] != probes.REACHABLE
    ]
    return found + [
        f"{asked.shown(one)} should be closed: {probes.REACHABLE}"
        for one in asked.closes
        if outcomes[one] == probes.REACHABLE
    ]


def is_by_silence(asked: Plan, outcomes: Mapping[Target, str]) -> bool:
    """Whether only that nothing answered tells that something is closed. An answer of a busy node may have come too
    late: one such probe alone shows nothing."""
    return any(outcomes[one] == probes.TIMEOUT for one in asked.closes)


def not_applied(
    name: str, asked: Plan, outcomes: Mapping[Target, str], sandbox: str
) -> NetworkNotAppliedError:
    """The error that says what is not enforced."""
    if not outcomes:
        text = "its daemon did not answer the probe"
        return NetworkNotAppliedError(
            text, sandbox=sandbox, retry_after=1.0, facts={"network": name}
        )
    text = "; ".join(wrong(asked, outcomes))
    return NetworkNotAppliedError(
        f"the egress profile {name!r} is written and not in force: {text}",
        sandbox=sandbox,
        retry_after=1.0,
        facts={"network": name, "probes": told(asked, outcomes)},
    )
