"""One pool in several namespaces: what it is as a whole, and where a new pod goes. Pure.

Kubernetes supports some 3,000 pods in a namespace; a pool of more is a Deployment of the same name in each
of several. Callers see one pool. Its placeholders are claimed wherever they are; a new pod is made where
most room is, and where a namespace's quota has refused one, the others come first for a while.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.model import PoolSpec

NAMESPACE_PODS = 3000
"""Pods of one namespace that Kubernetes supports, and that the manifests' quota admits."""
FULL_S = 5.0
"""Seconds for which a namespace whose quota has refused a pod is asked last. A sandbox that ends makes room
at once, and the quota's own count follows within seconds."""


def merged(specs: Iterable[PoolSpec]) -> PoolSpec:
    """The pool that callers see: the first namespace's by name, with the numbers of all."""
    known = sorted(specs, key=lambda spec: spec.namespace)
    limits = [spec.most for spec in known]
    return dataclasses.replace(
        known[0],
        wanted=sum(spec.wanted for spec in known),
        most=None if None in limits else sum(limit or 0 for limit in limits),
        # One that goes on serves for all; whom one of them shuts out is shut out.
        stopped=all(spec.stopped for spec in known),
        broken=next((spec.broken for spec in known if spec.stopped), None),
        evaluates=any(spec.evaluates for spec in known),
        tenants=_common([spec.tenants for spec in known]),
    )


def _common(each: list[frozenset[str] | None]) -> frozenset[str] | None:
    told = [one for one in each if one is not None]
    return frozenset.intersection(*told) if told else None


def places(
    specs: Iterable[PoolSpec], pods: Mapping[tuple[str, str], int], full: Iterable[str] = ()
) -> list[PoolSpec]:
    """Where a new pod of the pool may be made, the best place first.

    Args:
        specs: the pool in each of its namespaces.
        pods: how many there are, by namespace and pool, ended ones included: a quota counts them too.
        full: namespaces whose quotas have just refused a pod.
    """
    known, refused = list(specs), frozenset(full)
    totals: dict[str, int] = {}
    for (namespace, _), count in pods.items():
        totals[namespace] = totals.get(namespace, 0) + count

    def room(spec: PoolSpec) -> int:
        left = NAMESPACE_PODS - totals.get(spec.namespace, 0)
        if spec.most is None:
            return left
        return min(left, spec.most - pods.get((spec.namespace, spec.name), 0))

    return sorted(known, key=lambda spec: (spec.namespace in refused, -room(spec), spec.namespace))
