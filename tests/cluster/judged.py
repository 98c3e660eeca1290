"""Requests to the API server in another's name, and pods to make them about: for the tests of the manifests.

Most requests are dry runs on the server: admission and authorization judge them as any other, and
nothing is left behind. Impersonation (`--as`) makes them in another's name; the administrator's own
name is in system:masters, which the policies let pass on purpose.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster.bed import BedError, kubectl

if TYPE_CHECKING:
    from tests.cluster.bed import Bed

SANDBOXES = names.SANDBOX_NAMESPACE
SYSTEM = names.SYSTEM_NAMESPACE
GATEWAY = f"system:serviceaccount:{SYSTEM}:sandman-gateway"
WEBHOOK = f"system:serviceaccount:{SYSTEM}:sandman-webhook"
REPLICASETS = "system:serviceaccount:kube-system:replicaset-controller"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
MANAGER = "system:kube-controller-manager"
SOMEBODY = "somebody"
RIGHTS = "test-rights"
"""A group with every right on pods, so that what is refused is refused by admission and not by RBAC.
Whoever is impersonated is put into it, but for Sandman's own accounts: they must do with their own."""
DRY = "--dry-run=server"


def as_user(bed: Bed, user: str, *arguments: str, **options: Any) -> str:
    group = [] if user in (GATEWAY, WEBHOOK) else [f"--as-group={RIGHTS}"]
    return kubectl(bed, f"--as={user}", *group, "-n", SANDBOXES, *arguments, **options)


def refused(bed: Bed, user: str, *arguments: str, because: str, **options: Any) -> None:
    with pytest.raises(BedError, match=re.escape(because)):
        as_user(bed, user, *arguments, **options)


def pod(name: str = "", *, bare: bool = False, **labels: str) -> dict[str, Any]:
    """A pod that every policy lets pass; with `bare` one that is nobody's pool pod."""
    keyed = {f"{names.DOMAIN}/{key}": value for key, value in labels.items()}
    metadata: dict[str, Any] = {
        "name": name or f"test-{uuid.uuid4().hex[:8]}",
        "namespace": SANDBOXES,
        "labels": keyed,
    }
    container: dict[str, Any] = {"name": "sandbox", "image": "example.invalid/none:1"}
    spec: dict[str, Any] = {"containers": [container], "automountServiceAccountToken": False}
    if not bare:
        metadata["labels"] = {names.LABEL_POOL: "test", **keyed}
        metadata["annotations"] = {names.ANNOTATION_NONCE: "n", names.ANNOTATION_KEY_ID: "k"}
        container["command"] = list(names.DAEMON_COMMAND)
        container["env"] = [{"name": names.ENV_TOKEN_SHA256, "value": "0" * 64}]
        mount = {"name": names.VOLUME, "mountPath": names.MOUNT_PATH, "readOnly": True}
        container["volumeMounts"] = [mount]
        spec["volumes"] = [{"name": names.VOLUME, "emptyDir": {}}]
        spec["restartPolicy"] = "Never"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(bed: Bed, user: str, value: dict[str, Any], *options: str) -> str:
    return as_user(bed, user, "create", "-f", "-", *options, input=json.dumps(value))


def create_refused(bed: Bed, user: str, value: dict[str, Any], *, because: str) -> None:
    refused(bed, user, "create", "-f", "-", DRY, because=because, input=json.dumps(value))
