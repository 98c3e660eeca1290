"""What is applied to the scale bed: the base as it ships, over what a bed without a kubelet must have otherwise.

Gateways and webhook run beside the cluster, as themselves: the Deployments stay, with no replicas, and so do accounts,
rights, policies, Secrets and quotas. Pure.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import yaml

from sandman import names

if TYPE_CHECKING:
    from pathlib import Path

BASE = "manifests/base"
POOL = "root"
"""The pool that is scaled; the other one waits for nobody."""
IMAGE = "registry.example/sandman/placeholder:1"
"""Never pulled."""
SLACK = 200
"""Pods beyond the pool's that the quota lets be: those that end while others take their places."""
RESOURCES = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "1", "memory": "512Mi"},
}


def kustomization(root: Path, directory: Path, *, webhook_port: int, pods: int, most: int) -> str:
    """The overlay, to lie in `directory`.

    Args:
        root: of the repository.
        directory: where it will be.
        webhook_port: of the webhook, on 127.0.0.1.
        pods: placeholders that wait.
        most: pods of the pool at once, free and leased.
    """
    value = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "sortOptions": {"order": "fifo"},
        "resources": [os.path.relpath(root / BASE, directory.resolve())],
        "images": [
            {"name": "sandman-placeholder", "newName": IMAGE.rpartition(":")[0], "newTag": "1"}
        ],
        "replicas": [
            {"name": "sandman-gateway", "count": 0},
            {"name": "sandman-webhook", "count": 0},
            {"name": "sandman-pool-root", "count": 0},
            {"name": "sandman-pool-restricted", "count": 0},
        ],
        "patches": [
            _patch(
                "MutatingWebhookConfiguration", names.WEBHOOK_CONFIGURATION, _urls(webhook_port)
            ),
            _patch("Deployment", "sandman-pool-root", _pool(pods, most)),
            _patch("ResourceQuota", "sandman-pods", _quota(most)),
        ],
    }
    return yaml.safe_dump(value)


def _patch(kind: str, name: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"target": {"kind": kind, "name": name}, "patch": json.dumps(operations)}


def _urls(port: int) -> list[dict[str, Any]]:
    """The webhook is no pod: the API server comes by URL."""
    config = {"url": f"https://127.0.0.1:{port}/mutate"}
    return [
        {"op": "replace", "path": f"/webhooks/{index}/clientConfig", "value": config}
        for index in (0, 1)
    ]


def _pool(pods: int, most: int) -> list[dict[str, Any]]:
    """With both bounds the gateway lets `replicas` sink as claims leave a pool that is at its maximum."""
    annotations = {names.ANNOTATION_POOL_MIN: pods, names.ANNOTATION_POOL_MAX: most}
    return [
        {"op": "replace", "path": "/spec/template/spec/containers/0/resources", "value": RESOURCES},
        *(
            {
                "op": "add",
                "path": f"/metadata/annotations/{name.replace('/', '~1')}",
                "value": str(count),
            }
            for name, count in annotations.items()
        ),
    ]


def _quota(pods: int) -> list[dict[str, Any]]:
    return [{"op": "replace", "path": "/spec/hard/count~1pods", "value": str(pods + SLACK)}]
