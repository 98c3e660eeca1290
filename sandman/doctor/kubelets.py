"""What kubelets bound: the processes of a pod, without which a fork bomb in one sandbox is one on its node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sandman.doctor.cluster import ClusterError
from sandman.doctor.findings import Finding, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.doctor.cluster import Cluster

HOP = "processes"
ASKED = 8
"""Nodes that are asked for their settings, a call each: those of one group are set up alike."""
MOST = 32_768
"""Processes of a pod: more are a bound in name only, for this is what a node can have (`pid_max`) by default."""


def processes(cluster: Cluster) -> Iterator[Finding]:
    """Whether nodes bound how many processes a pod has (`podPidsLimit`)."""
    nodes = [one["metadata"]["name"] for one in cluster.items("nodes")]
    told: dict[str, int] = {}
    for name in nodes[:ASKED]:
        try:
            told[name] = _limit(cluster, name)
        except ClusterError as error:
            advice = "look yourself: cat /sys/fs/cgroup/pids.max in a sandbox is not `max`"
            yield skipped(HOP, f"the kubelet of {name} was not asked: {error}", advice)
            return
    if told:
        yield _judged(told, len(nodes))
    else:
        yield skipped(HOP, "there is no node")


def _limit(cluster: Cluster, node: str) -> int:
    config = json.loads(cluster.raw(f"/api/v1/nodes/{node}/proxy/configz"))
    # Left out, and -1, mean that there is none.
    return int(config["kubeletconfig"].get("podPidsLimit", -1))


def _judged(told: dict[str, int], count: int) -> Finding:
    unbound = [name for name, limit in told.items() if not 0 < limit <= MOST]
    if unbound:
        text = f"{len(unbound)} of {len(told)} nodes do not bound the processes of a pod: {', '.join(unbound)}"
        return warning(
            HOP,
            text,
            "set podPidsLimit of their kubelets, 4096 say: a fork bomb in one sandbox takes the node",
        )
    limits = sorted(set(told.values()))
    text = " to ".join(str(limit) for limit in dict.fromkeys([*limits[:1], *limits[-1:]]))
    return ok(
        HOP, f"a pod has {text} of them at most on the {len(told)} of {count} nodes that were asked"
    )
