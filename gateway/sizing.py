"""How much of cpu and memory: what was asked for, what a container has, what it would have. Pure.

What a caller asks for is the most that the sandbox may use: its limits. What the scheduler sets aside for
it, its requests, is the same part of that as in the pool's template. So a limit that equals its request
goes on doing so, and one that does not, does not: the pod's QoS class, which no resize may change, is kept.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gateway import quantities
from gateway.model import NO_AMOUNTS, Amounts, Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Instance, PoolSpec

CPU_LEAST = 10
"""Millicores: the least quota that the kernel takes is a millisecond in each tenth of a second."""
CPU_MOST = 1_000_000
"""Millicores: a thousand processors, more than any node has."""
MEMORY_LEAST = 32 * 1024**2
"""Bytes: the daemon and a shell need 10 MiB; what has less is killed before it tells why."""
MEMORY_MOST = 64 * 1024**4
"""Bytes: 64 TiB, more than any node has."""


def of_resources(
    requests: Mapping[str, object] | None, limits: Mapping[str, object] | None
) -> Bounds:
    """What a container's `resources` say; quantities that cannot be read count as absent."""
    return _bounds(_amounts(requests), _amounts(limits))


def of_template(template: Mapping[str, object]) -> Bounds:
    """What the sandbox's container has in a pool's template."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    first = containers[0] if isinstance(containers, list) and containers else {}
    resources = (first.get("resources") if isinstance(first, dict) else None) or {}
    return of_resources(resources.get("requests"), resources.get("limits"))


def fits(bounds: Bounds, asked: Amounts) -> bool:
    """Whether a container with these bounds may use as much; without a limit it may use any amount."""
    return all(
        want is None or limit is None or limit >= want
        for want, limit in zip(asked, bounds.limits, strict=True)
    )


def is_exact(bounds: Bounds, asked: Amounts) -> bool:
    """Whether the bounds are what was asked for; where there is no limit, the request."""
    return all(
        want is None or want == (limit if limit is not None else request)
        for want, limit, request in zip(asked, bounds.limits, bounds.requests, strict=True)
    )


def can_resize(bounds: Bounds, asked: Amounts) -> bool:
    """Whether a resize to this may keep the QoS class: what the template does not name is not added."""
    return all(
        want is None or limit is not None or request is not None
        for want, limit, request in zip(asked, bounds.limits, bounds.requests, strict=True)
    )


def scaled(bounds: Bounds, asked: Amounts) -> Bounds:
    """What a container has that gets what was asked for; what was not asked for stays."""
    pairs = [
        _scaled(request, limit, want)
        for request, limit, want in zip(bounds.requests, bounds.limits, asked, strict=True)
    ]
    (cpu_request, cpu_limit), (memory_request, memory_limit) = pairs
    return _bounds(Amounts(cpu_request, memory_request), Amounts(cpu_limit, memory_limit))


def _scaled(
    request: int | None, limit: int | None, want: int | None
) -> tuple[int | None, int | None]:
    if want is None:
        return request, limit
    if limit is None:
        # Nothing bounds it, or nothing is said at all: then a new pod is bounded by what was asked for.
        return want, (want if request is None else None)
    if request is None or request >= limit:
        return want, want
    return min(want - 1, max(1, want * request // limit)), want


def as_json(bounds: Bounds) -> dict[str, dict[str, str]]:
    """A container's `resources`, cpu and memory alone."""
    shown = {"requests": texts(bounds.requests), "limits": texts(bounds.limits)}
    return {name: values for name, values in shown.items() if values}


def texts(amounts: Amounts) -> dict[str, str]:
    """As Kubernetes writes them; what is None is left out."""
    found: dict[str, str] = {}
    if amounts.cpu is not None:
        found["cpu"] = quantities.cpu_text(amounts.cpu)
    if amounts.memory is not None:
        found["memory"] = quantities.memory_text(amounts.memory)
    return found


def has(instance: Instance) -> Bounds:
    """What the sandbox really has, as far as its kubelet has told; until then what its pod says."""
    if instance.actual is not None and instance.running:
        return instance.actual
    return instance.bounds


# --- sums ---


def of_request(asked: Amounts, spec: PoolSpec) -> tuple[int, int]:
    """Millicores and bytes that a request counts for, before it has a pod: what it asks for, else what
    the pool gives; 0 where neither says."""
    return _known(scaled(spec.bounds, asked))


def of_instance(instance: Instance) -> tuple[int, int]:
    """Millicores and bytes that a pod counts for: its limits, where it has none its requests, else 0."""
    return _known(instance.bounds)


def of_record(request: Mapping[str, object]) -> Amounts:
    """What was asked for, as it is kept on the pod (`pool.record`)."""
    kept = request.get("resources")
    return _amounts(kept if isinstance(kept, dict) else None)


def _known(bounds: Bounds) -> tuple[int, int]:
    cpu, memory = (
        limit if limit is not None else request or 0
        for limit, request in zip(bounds.limits, bounds.requests, strict=True)
    )
    return cpu, memory


def _amounts(values: Mapping[str, object] | None) -> Amounts:
    if not values:
        return NO_AMOUNTS
    cpu, memory = values.get("cpu"), values.get("memory")
    return _read(
        cpu if isinstance(cpu, (str, int, float)) else None,
        memory if isinstance(memory, (str, int, float)) else None,
    )


@functools.lru_cache(maxsize=1024, typed=True)
def _read(cpu: str | float | None, memory: str | float | None) -> Amounts:
    """Kept, since each event of each pod brings four of them: 60 us, of which 2 are left."""
    return Amounts(quantities.millicores(cpu), quantities.bytes_of(memory))


@functools.lru_cache(maxsize=1024)
def _bounds(requests: Amounts, limits: Amounts) -> Bounds:
    """One object for all pods that have the same: thousands do."""
    return Bounds(requests, limits)


POINTERS = {
    "requests": "/spec/containers/0/resources/requests",
    "limits": "/spec/containers/0/resources/limits",
}


def operations(uid: str, bounds: Bounds) -> list[dict[str, object]]:
    """The JSON patch of `pods/resize` that gives a pod these bounds."""
    found: list[dict[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": uid}]
    for kind, values in as_json(bounds).items():
        found += [
            {"op": "add", "path": f"{POINTERS[kind]}/{name}", "value": value}
            for name, value in values.items()
        ]
    return found
