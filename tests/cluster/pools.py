"""Pools of a test's own: like `root`, with other resources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sandman import names
from tests.cluster import faults
from tests.cluster.bed import kubectl

if TYPE_CHECKING:
    from tests.cluster.deployed import Deployed


def make(
    deployed: Deployed,
    name: str,
    resources: dict,
    replicas: int = 1,
    *,
    annotations: dict | None = None,
    purpose: str | None = None,
    **spec_of_pods: object,
) -> None:
    """A pool with these resources, for this purpose, with annotations and fields of its pods; returns when its placeholders run."""
    pool = json.loads(deployed.kubectl("get", "deployment", "sandman-pool-root", "-o", "json"))
    labels = {names.LABEL_POOL: name}
    meta = {
        "name": f"sandman-pool-{name}",
        "labels": {**pool["metadata"]["labels"], **labels},
        "annotations": {names.ANNOTATION_POOL_MAX: "5", names.ANNOTATION_POOL_SWAP: "true"},
    }
    if purpose is not None:
        meta["annotations"][names.ANNOTATION_POOL_PURPOSE] = purpose
    spec = pool["spec"]
    spec["replicas"] = replicas
    spec["selector"]["matchLabels"] |= labels
    spec["template"]["metadata"]["labels"] |= labels
    spec["template"]["spec"]["containers"][0]["resources"] = resources
    spec["template"]["spec"] |= spec_of_pods
    spec["template"]["metadata"]["annotations"] |= annotations or {}
    apply(deployed, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
    selector = f"{names.LABEL_POOL}={name}"
    query = "jsonpath={.items[*].status.phase}"
    faults.wait(
        f"pool {name} has its placeholders",
        lambda: (
            deployed.kubectl("get", "pods", "-l", selector, "-o", query).split()
            == ["Running"] * replicas
        ),
        90,
    )


def remove(deployed: Deployed, name: str) -> None:
    """Take it away; what was claimed of it stays."""
    deployed.kubectl("delete", "deployment", f"sandman-pool-{name}", "--ignore-not-found")


def apply(deployed: Deployed, body: dict) -> None:
    """Have an object in the sandboxes' namespace."""
    kubectl(deployed.bed, "-n", names.SANDBOX_NAMESPACE, "apply", "-f", "-", input=json.dumps(body))
