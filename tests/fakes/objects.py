"""Kubernetes objects as Sandman's manifests and webhook leave them."""

from __future__ import annotations

import json
from typing import Any

from sandman import names

NAMESPACE = names.SANDBOX_NAMESPACE
BASE = "registry.example/base:1"
TASK = "registry.example/task:1"
Object = dict[str, Any]


def running(document: Object, *, address: str = "127.0.0.1", restarts: int = 0) -> None:
    """The kubelet's report that its container runs."""
    document["spec"]["nodeName"] = "n1"
    image = document["spec"]["containers"][0]["image"]
    document["status"] = {
        "phase": "Running", "podIP": address, "startTime": "2026-11-29T12:00:00Z",
        "containerStatuses": [
            {"name": "main", "image": image, "imageID": f"{image}@sha256:1", "ready": True,
             "restartCount": restarts, "state": {"running": {"startedAt": "2026-11-29T12:00:01Z"}}},
        ],
    }  # fmt: skip


def waiting(document: Object, reason: str, message: str = "") -> None:
    """The kubelet's report that its container cannot start."""
    document["status"] = {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
        ],
    }


def template(image: str = BASE) -> Object:
    return {
        "metadata": {
            "labels": {
                names.LABEL_POOL: "root", names.LABEL_STATE: names.STATE_FREE,
                names.LABEL_INJECT: names.INJECT_POOL,
            },
        },
        "spec": {"containers": [{"name": "main", "image": image}], "restartPolicy": "Never"},
    }  # fmt: skip


def injected(document: Object, nonce: str = "nonce-1", key_id: str = "k1") -> None:
    """What the webhook writes."""
    marks = {names.ANNOTATION_NONCE: nonce, names.ANNOTATION_KEY_ID: key_id}
    document["metadata"].setdefault("annotations", {}).update(marks)


def placeholder(name: str, *, nonce: str = "nonce-1", image: str = BASE) -> Object:
    """A pod of the pool's ReplicaSet that runs."""
    document: Object = {
        **template(image),
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": dict(template()["metadata"]["labels"]),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "rs", "controller": True}],
        },
    }  # fmt: skip
    injected(document, nonce)
    running(document)
    return document


def deployment(pool: str = "root", *, namespace: str = NAMESPACE, **annotations: str) -> Object:
    return {
        "metadata": {
            "name": f"sandman-pool-{pool}", "namespace": namespace,
            "labels": {names.LABEL_POOL: pool}, "annotations": annotations,
        },
        "spec": {"replicas": 1, "template": template()},
    }  # fmt: skip


def node(name: str = "n1", *, cordoned: bool = False, ready: str = "True") -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def secret(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": names.SYSTEM_NAMESPACE}, "data": data}


def event(pod: Object, reason: str, message: str) -> Object:
    meta = pod["metadata"]
    return {
        "metadata": {"name": f"{meta['name']}.1", "namespace": meta["namespace"]},
        "involvedObject": {"uid": meta["uid"], "name": meta["name"]},
        "reason": reason,
        "message": message,
    }


def annotation(document: Object, key: str) -> Object:
    """The JSON in an annotation."""
    return json.loads(document["metadata"]["annotations"][key])
