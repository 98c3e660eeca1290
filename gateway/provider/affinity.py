"""Where a pod must not be, in the scheduler's words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def away_from(affinity: Mapping[str, Any] | None, nodes: Iterable[str]) -> dict[str, Any]:
    """A pod's affinity that keeps it from these nodes, too.

    By the name of the node and not by its label `kubernetes.io/hostname`, which need not be the name. Of terms one has
    to hold, so that each is narrowed; a field takes one value, so that each node is a requirement of its own.

    Args:
        affinity: what the pool's template says; None: nothing.
        nodes: their names.
    """
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    whole: dict[str, Any] = dict(affinity or {})
    of_nodes: dict[str, Any] = dict(whole.get("nodeAffinity") or {})
    required = of_nodes.get(_REQUIRED)
    terms = [{}] if required is None else required["nodeSelectorTerms"]
    of_nodes[_REQUIRED] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or []), *away]} for term in terms
        ]
    }
    return {**whole, "nodeAffinity": of_nodes}
