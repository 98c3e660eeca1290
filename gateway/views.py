"""What callers are shown of sandboxes and pools. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from gateway import conditions, reserving, sizing
from gateway.model import Purpose
from gateway.profiles import is_listed
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.model import Ending, Instance, PoolSpec, Share, Terms, Timings
    from gateway.profiles import Known
    from gateway.registry import Ended
    from gateway.reserving import Progress, Reservation
    from gateway.wants import Queued, Waiting
    from gateway.workloads import Workload


REQUESTS_SHOWN = 100
"""Requests that an overview tells of, those that wait longest: more than a screen has lines."""


class Made(Protocol):
    """A sandbox that was just handed over."""

    @property
    def instance(self) -> Instance:
        """The sandbox."""

    @property
    def boot_id(self) -> str:
        """The daemon's start."""

    @property
    def timings(self) -> Timings:
        """Where the time went."""


def sandbox(instance: Instance, *, is_met: bool = False) -> dict[str, object]:
    """One sandbox, without secrets. `is_met`: its handshake is known to be done."""
    shown: dict[str, object] = {
        "id": instance.id,
        "state": state(instance, is_met=is_met),
        "tier": instance.tier,
        "pool": instance.pool,
        "image": asked_image(instance),
        "image_pulled": instance.image,
        "image_digest": instance.image_digest,
        "node": instance.node,
        "resources": sizing.texts(sizing.has(instance).limits),
        # Of a workload's network Sandman knows nothing.
        "network": instance.network if instance.place is None else None,
        "run": instance.run,
        "labels": labels(instance),
        "created_at": moment(instance.created_at),
        "expires_at": moment(instance.expires_at),
        "lease": lease(instance.terms),
    }
    if instance.place is not None:
        shown["attached"] = {
            "namespace": instance.namespace,
            "pod": instance.place.pod,
            "container": instance.place.container,
        }
    if (told := conditions.shown(instance)) is not None:
        shown[conditions.KEY] = told
    if instance.isolation is not None:
        shown["isolation"] = dict(instance.isolation)
    if instance.ending is not None:
        shown["ended"] = _ended(instance.ending)
    return shown


def ended(one: Ended) -> dict[str, object]:
    """One that has ended, whose pod may be gone."""
    return {"id": one.id, "state": "ended", "run": one.run, "ended": _ended(one.ending)}


def _ended(ending: Ending) -> dict[str, object]:
    return {"reason": ending.reason, "detail": ending.detail, "at": moment(ending.at)}


def lease(terms: Terms) -> dict[str, object]:
    """What was agreed on; seconds, None where there is no such limit."""
    return {
        "ttl_s": terms.ttl_s,
        "idle_s": terms.idle_s,
        "max_s": terms.max_s,
        "run": terms.of_run,
    }


def asked_image(instance: Instance) -> str:
    """The image as its caller named it; the pod's own when none was named, or somebody broke the annotation."""
    asked = instance.request.get("image")
    return asked if isinstance(asked, str) else instance.image


def labels(instance: Instance) -> dict[str, str]:
    """The caller's labels; none when somebody broke the annotation."""
    kept = instance.request.get("labels")
    if not isinstance(kept, dict) or not all(isinstance(one, str) for one in kept.values()):
        return {}
    return kept


def ready(made: Made, token: str) -> dict[str, object]:
    """The answer to an allocation."""
    timings = made.timings
    return {
        **sandbox(made.instance, is_met=True),
        "boot_id": made.boot_id,
        "token": token,
        "timings": {
            "queued_ms": round(timings.queued_ms, 3),
            "claim_ms": round(timings.claim_ms, 3),
            "ready_ms": round(timings.ready_ms, 3),
        },
    }


def queued(request: Queued) -> dict[str, object]:
    """A request that is not done."""
    told: dict[str, object] = {
        "request": request.id,
        "state": "waiting" if request.is_waiting else "starting",
        "place": request.place,
        "retry_after": round(request.retry_after, 1),
    }
    if request.trouble is not None:
        told["trouble"] = request.trouble.problem()
    return told


def reservation(kept: Reservation, progress: Progress) -> dict[str, object]:
    """One reservation, without its steps: its caller has them."""
    return {
        "id": kept.id,
        "state": reserving.state(kept, progress),
        "image": kept.image,
        "pool": kept.pool,
        "run": kept.run,
        "count": kept.count,
        "ready": progress.ready,
        "preparing": progress.preparing,
        "used": kept.used,
        "failed": progress.trouble.count,
        "failures": [
            {
                "reason": one.reason,
                "detail": one.detail,
                "facts": dict(one.facts),
                "at": moment(one.at),
            }
            for one in progress.trouble.failures
        ],
        "created_at": moment(kept.created_at),
        "until": moment(kept.until),
    }


def workload(one: Workload, *, is_taken: bool) -> dict[str, object]:
    """A container that can be attached to. `is_taken`: somebody is attached just now."""
    return {
        "namespace": one.namespace,
        "pod": one.pod,
        "container": one.container,
        "image": one.image,
        "node": one.node,
        "labels": dict(one.labels),
        "attached": is_taken,
    }


def pool(spec: PoolSpec, instances: Iterable[Instance]) -> dict[str, object]:
    """One pool with the counts of its pods; other tenants' numbers are counted, never shown apart."""
    own = [one for one in instances if one.pool == spec.name and one.ending is None]
    free = sum(one.state == names.STATE_FREE and one.running for one in own)
    leased = sum(one.state == names.STATE_LEASED for one in own)
    reserved = sum(one.state == names.STATE_RESERVED for one in own)
    return {
        "name": spec.name,
        "image": spec.image,
        "swap": spec.swap,
        "wanted": spec.wanted,
        "free": free,
        "leased": leased,
        "reserved": reserved,
        "max": spec.most,
        "resources": sizing.texts(spec.bounds.limits),
        "resize": spec.resize,
        "network": spec.network,
        "networks": sorted(spec.networks),
        "node_class": spec.node_class,
        "purpose": Purpose.EVAL.value if spec.evaluates else None,
        "broken": spec.broken.reason if spec.broken is not None and spec.stopped else None,
    }


def waiting(mine: Iterable[Waiting]) -> list[dict[str, object]]:
    """A tenant's requests that wait, the longest first, as many as are shown."""
    return [
        {
            "pool": one.pool,
            "image": one.image,
            "run": one.run or None,
            "waited_s": round(one.waited_s, 1),
        }
        for one in sorted(mine, key=lambda one: -one.waited_s)[:REQUESTS_SHOWN]
    ]


def networks(known: Known, share: Share) -> dict[str, dict[str, object]]:
    """The egress profiles of one namespace that a tenant may ask for, by name."""
    return {
        one.name: {"name": one.name, "usable": not one.fault, "fault": one.fault or None}
        for one in known.values()
        if is_listed(one.name, share.networks)
    }


def in_each(namespaces: Iterable[Mapping[str, dict[str, object]]]) -> list[dict[str, object]]:
    """Those that each namespace has; one that is at fault anywhere is."""
    every = list(namespaces)
    common = set.intersection(*(set(one) for one in every)) if every else set()
    return [
        next((one[name] for one in every if not one[name]["usable"]), every[0][name])
        for name in sorted(common)
    ]


def enforced(namespaces: Iterable[str], found: Mapping[str, bool]) -> bool | None:
    """Whether policies are enforced wherever sandboxes are; None where nobody knows yet."""
    verdicts = [found.get(namespace) for namespace in namespaces]
    return False if False in verdicts else None if None in verdicts else True


def applied(
    instance: Instance, probes: list[dict[str, object]], took_ms: float
) -> dict[str, object]:
    """A sandbox's egress profile that was probed."""
    return {
        "id": instance.id,
        "network": instance.network,
        "applied": True,
        "probes": probes,
        "took_ms": round(took_ms, 3),
    }


def state(instance: Instance, *, is_met: bool) -> str:
    """`starting`, `ready`, `ending` while its pod is being deleted, or `ended`.

    The pod alone does not tell of the handshake, which follows its container's start within
    milliseconds; what it tells is the start, and after a swap the restart.
    """
    if instance.ending is not None:
        return "ended"
    if instance.deleting:
        return "ending"
    is_swapping = instance.previous_boot_id is not None and instance.image_digest is None
    is_starting = not is_met and (not instance.running or is_swapping)
    return "starting" if is_starting else "ready"


def moment(seconds: float | None) -> str | None:
    """RFC 3339 in UTC."""
    if seconds is None:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
