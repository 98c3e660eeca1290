"""Under which conditions an evaluation runs: the environment of its commands, and what its caller is told. Pure.

A test that passes in one place and fails in another mostly found another time zone, another locale, another order of a
set, or sixty-four processors where it may use two. So for `purpose: eval` these are the same everywhere, unless the
caller says otherwise by setting a variable himself. docs/evaluation.md has each variable with its reason, and those
that were left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway import sizing
from gateway.model import Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Instance, PoolSpec, SandboxRequest

KEY = "conditions"
"""Of what is kept of a request on its pod, and of what callers are shown of a sandbox."""

FIXED = {
    "TZ": "UTC",
    # The one locale that is UTF-8, sorts by code point, and needs no package in images of the last ten years.
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    # Of Python: the order of sets of texts.
    "PYTHONHASHSEED": "0",
}
"""The same in each evaluation."""

COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "CARGO_BUILD_JOBS",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "GOMAXPROCS",
    "DOTNET_PROCESSOR_COUNT",
    "JULIA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "PYTHON_CPU_COUNT",
)
"""Each says to some library or tool how many processors there are. By itself it would count the node's, where no
cpuset narrows them, and start as many threads for a quota of two."""


def threads(cpu: int | None) -> int | None:
    """How many processors a sandbox with this limit is told that it has: whole ones, one at least.

    Args:
        cpu: millicores; None for no limit: then nobody knows.
    """
    return None if cpu is None else max(1, cpu // 1000)


def environment(count: int | None) -> dict[str, str]:
    """What an evaluation's commands find, if their caller has not set it himself.

    Args:
        count: as `threads` tells.
    """
    return FIXED | ({} if count is None else dict.fromkeys(COUNTS, str(count)))


def agreed(
    request: SandboxRequest, spec: PoolSpec, record: Mapping[str, object], *, waits: bool
) -> tuple[SandboxRequest, Mapping[str, object]]:
    """The request with the environment in it, and its record with what was agreed; both as they are where it is for no
    evaluation.

    Args:
        request: of the caller.
        spec: the pool that serves it.
        record: what is kept of the request.
        waits: whether it is handed over only when its network was probed.
    """
    if request.purpose is not Purpose.EVAL:
        return request, record
    count = threads(sizing.scaled(spec.bounds, request.resources).limits.cpu)
    usual, own = environment(count), dict(request.env)
    kept = {
        "dedicated": spec.evaluates,
        "threads": count,
        # Names alone, and of these alone: values are the caller's business.
        "own": sorted(own.keys() & usual.keys()),
        "network_acknowledged": waits,
    }
    env = tuple({**usual, **own}.items())
    return dataclasses.replace(request, env=env), {**record, KEY: kept}


def unproved(record: Mapping[str, object]) -> Mapping[str, object] | None:
    """The record of one that is handed over without proof of its network; None where it says so already."""
    kept = record.get(KEY)
    if not isinstance(kept, dict) or kept.get("network_acknowledged") is not True:
        return None
    return {**record, KEY: {**kept, "network_acknowledged": False}}


def shown(instance: Instance) -> dict[str, object] | None:
    """What is told of an evaluation's conditions; None of any other sandbox, and where somebody broke the record."""
    kept = instance.request.get(KEY)
    if not isinstance(kept, dict):
        return None
    count, own = kept.get("threads"), kept.get("own")
    usual = environment(count if isinstance(count, int) else None)
    taken = set(own) if isinstance(own, list) else set()
    # What its kubelet gives it: a resize may be written and never done.
    bounds = sizing.has(instance)
    return {
        "purpose": Purpose.EVAL.value,
        "dedicated": kept.get("dedicated") is True,
        "floor": sizing.texts(bounds.requests),
        "ceiling": sizing.texts(bounds.limits),
        "qos": instance.qos or None,
        "exclusive_cpus": _exclusive(instance.qos, bounds.limits.cpu),
        "env": {name: value for name, value in usual.items() if name not in taken},
        "network_acknowledged": kept.get("network_acknowledged") is True,
    }


def _exclusive(qos: str, cpu: int | None) -> bool | None:
    """False where no kubelet would give exclusive cpus; else None: only the node knows its policy."""
    may_be = qos == "Guaranteed" and cpu is not None and cpu % 1000 == 0
    return None if may_be else False
