"""What a certificate says: the document out of what each witness has told. Pure."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway import conditions, views
from sandman import certificates, control
from sandman.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.facts import Facts, NodeFacts
    from gateway.model import Amounts, Bounds, Instance

_LABEL = b"sandman certificate key 1"
INSIDE_NOTE = (
    "measured inside the sandbox, by its daemon: code that runs there as root may have changed it"
)
TRAIN = "train"
NOT_ASKED = {"fingerprint", conditions.KEY}
"""Of what is kept of a request. The fingerprint is over the environment, too: whoever has the rest of what it is over could
guess short secrets by it."""

Object = dict[str, Any]


class Network(NamedTuple):
    """What is known of a sandbox's egress profile."""

    in_force: bool | None
    """None: nothing could show it."""
    probes: list[dict[str, object]]
    detail: str = ""


class Clock(NamedTuple):
    """The clock inside against the gateway's: seconds."""

    offset_s: float | None
    error_s: float
    """It is not known more exactly."""


class Told(NamedTuple):
    """What the daemon said."""

    inside: Object
    commands: list[Object]
    clock: Clock


class Issue(NamedTuple):
    """When a certificate is made, seconds since the epoch, and by which gateway."""

    at: float
    replica: str


def seed_of(key: bytes) -> bytes:
    """The private key of certificates that goes with a key of sandbox tokens: it is rotated with that."""
    return hmac.digest(key, _LABEL, hashlib.sha256)


def public_keys(keys: Mapping[str, bytes], current: str) -> list[bytes]:
    """Every public key whose certificates can be verified, that of new ones first."""
    order = sorted(keys, key=lambda one: (one != current, one))
    return [certificates.public_key(seed_of(keys[one])) for one in order]


def document(
    instance: Instance,
    facts: Facts,
    network: Network,
    others: Iterable[Instance],
    told: Told,
    issue: Issue,
) -> Object:
    """All that is signed, verdict included.

    Args:
        instance: the sandbox as the gateway's watch has it.
        facts: what the API server said just now.
        network: of its egress profile.
        others: what else is on its node.
        told: by its daemon.
        issue: when, and by whom.
    """
    inside, commands, clock = told
    inside = {name: value for name, value in inside.items() if name != "clock"}
    made: Object = {
        "format": certificates.FORMAT,
        "sandbox": instance.id,
        "issued_at": views.moment(issue.at),
        "gateway": {"version": __version__, "replica": issue.replica},
        "asked": {name: told for name, told in instance.request.items() if name not in NOT_ASKED},
        "api": _api(instance, facts, network, others),
        "inside": {
            "note": INSIDE_NOTE,
            **inside,
            "clock_offset_s": None if clock.offset_s is None else round(clock.offset_s, 4),
            "clock_error_s": round(clock.error_s, 4),
        },
        "commands": commands,
    }
    by = control.DEFAULT_THRESHOLDS
    reasons = control.judge(made, by)
    return {
        **made,
        "thresholds": by.to_json(),
        "unmeasured": control.unmeasured(made),
        "verdict": certificates.UNCONTROLLED if reasons else certificates.CONTROLLED,
        "reasons": [one._asdict() for one in reasons],
    }


def _api(instance: Instance, facts: Facts, network: Network, others: Iterable[Instance]) -> Object:
    is_own, changes = instance.place is None, facts.network_changes or instance.network_changes
    asked = instance.request.get("purpose")
    return {
        "tenant": instance.tenant,
        "run": instance.run,
        "purpose": asked if isinstance(asked, str) else TRAIN,
        "pool": instance.pool or None,
        "tier": instance.tier,
        "image": views.asked_image(instance),
        "image_pulled": instance.image,
        "image_digest": facts.image_digest,
        "pod": {"namespace": instance.namespace, "name": instance.name, "uid": instance.uid},
        "requests": _amounts(instance.bounds.requests),
        "limits": _amounts(instance.bounds.limits),
        "given": _given(instance.actual),
        "qos": facts.qos,
        "runtime_class": facts.runtime_class,
        "conditions": conditions.shown(instance),
        "isolation": None if instance.isolation is None else dict(instance.isolation),
        "restarts": facts.restarts,
        "restarts_usual": int(instance.was_swapped),
        "node": _node(facts.node),
        "network": {
            "profile": instance.network if is_own else None,
            "in_force": network.in_force,
            "probes": network.probes,
            "detail": network.detail,
            "changed_at": None if changes is None else views.moment(changes.at),
            "before": [] if changes is None else list(changes.before),
        },
        "neighbours": _neighbours(others),
        "times": {
            "pod_created_at": views.moment(instance.created_at),
            "pod_started_at": views.moment(instance.started_at),
            "container_started_at": views.moment(facts.container_started_at),
            "ends_at": views.moment(instance.expires_at),
        },
    }


def _given(actual: Bounds | None) -> Object | None:
    """What its kubelet says that it has."""
    if actual is None:
        return None
    return {"requests": _amounts(actual.requests), "limits": _amounts(actual.limits)}


def _amounts(amounts: Amounts) -> Object:
    return {"cpu_m": amounts.cpu, "memory_bytes": amounts.memory}


def _node(node: NodeFacts | None) -> Object | None:
    if node is None:
        return None
    return {
        "name": node.name,
        "class": node.node_class,
        "kernel": node.kernel,
        "os": node.os,
        "architecture": node.architecture,
        "runtime": node.runtime,
        "kubelet": node.kubelet,
        "allocatable": _amounts(node.allocatable),
    }


def _neighbours(others: Iterable[Instance]) -> Object:
    """Other pods of pools on its node, free ones with them: what is set aside for each is not its own."""
    found = [one.bounds for one in others]
    return {
        "pods": len(found),
        "requests": {
            "cpu_m": sum(one.requests.cpu or 0 for one in found),
            "memory_bytes": sum(one.requests.memory or 0 for one in found),
        },
        "limits": {
            "cpu_m": sum(one.limits.cpu or 0 for one in found),
            "memory_bytes": sum(one.limits.memory or 0 for one in found),
        },
        "without_limit_of_cpu": sum(one.limits.cpu is None for one in found),
    }
