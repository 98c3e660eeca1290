"""What a container has, shall have and may have of cpu and memory, as Kubernetes says it."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.model import (
    NO_BOUNDS,
    Amounts,
    Bounds,
    PoolSpec,
)
from gateway.provider import pods
from sandman import names
from sandman.service import kube
from tests.fakes import objects
from tests.unit.gateway.test_kubernetes_values import pod, running_pod

# --- resources ---

GI = 1024**3
RESOURCES = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"cpu": "2", "memory": "4Gi"},
}
BOUNDS = Bounds(Amounts(250, GI // 2), Amounts(2000, 4 * GI))


def test_what_a_container_shall_have_and_what_it_has():
    document = running_pod()
    assert pods.instance(pod(document)).bounds == NO_BOUNDS
    assert pods.instance(pod(document)).actual is None
    document["spec"]["containers"][0]["resources"] = RESOURCES
    document["status"]["containerStatuses"][1]["resources"] = {"limits": {"cpu": 1}}
    seen = pods.instance(pod(document))
    assert (seen.bounds, seen.actual) == (BOUNDS, Bounds(limits=Amounts(1000)))
    # One object for all pods that have the same.
    assert pods.instance(pod(document)).bounds is seen.bounds


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"type": "PodResizePending", "status": "True", "reason": "Deferred"}, "Deferred"),
        ({"type": "PodResizePending", "status": "True", "reason": "Infeasible"}, "Infeasible"),
        ({"type": "PodResizeInProgress", "status": "True"}, "InProgress"),
        ({"type": "PodResizeInProgress", "status": "True", "reason": "Error"}, "Error"),
        ({"type": "PodResizePending", "status": "False", "reason": "Deferred"}, ""),
        ({"type": "Ready", "status": "True", "reason": "Deferred"}, ""),
    ],
)
def test_what_the_kubelet_says_of_a_resize(condition, said):
    assert pods.instance(pod(running_pod(conditions=[condition]))).resize == said


def sized_pool(**annotations) -> dict:
    document = objects.deployment(**annotations)
    document["spec"]["template"]["spec"]["containers"][0]["resources"] = RESOURCES
    return document


def read_pool(document: dict) -> PoolSpec:
    spec = pods.pool(msgspec.json.decode(json.dumps(document), type=kube.Deployment))
    assert spec is not None
    return spec


def test_what_a_pool_gives_and_for_whom():
    spec = read_pool(sized_pool())
    assert (spec.bounds, spec.resize, spec.choose, spec.node_class) == (BOUNDS, False, False, None)
    document = sized_pool(
        **{names.ANNOTATION_POOL_RESIZE: "true", names.ANNOTATION_POOL_CHOOSE: "true"}
    )
    document["spec"]["template"]["spec"]["nodeSelector"] = {names.LABEL_NODE_CLASS: "gpu"}
    spec = read_pool(document)
    assert (spec.resize, spec.choose, spec.node_class) == (True, True, "gpu")
    document["metadata"]["annotations"][names.LABEL_NODE_CLASS] = "big"
    assert read_pool(document).node_class == "big"
    document["spec"]["template"]["spec"]["nodeSelector"] = {names.LABEL_NODE_CLASS: 5}
    del document["metadata"]["annotations"][names.LABEL_NODE_CLASS]
    assert read_pool(document).node_class is None
