"""kubectl and the API server's own word on its state."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.model import BedError
from tests.cluster.bed.shell import run, wait_until

if TYPE_CHECKING:
    from tests.cluster.bed.components import Component
    from tests.cluster.bed.model import Bed


def kubectl(bed: Bed, *arguments: str, input: str | None = None) -> str:  # noqa: A002 -- as subprocess.run has it
    """Run kubectl as the administrator; returns its output, raises BedError with its complaint."""
    environment = dict(os.environ) | {"KUBECONFIG": str(bed.kubeconfig)}
    return run([bed.bin / "kubectl", *arguments], stdin=input, env=environment)


def is_healthy(bed: Bed, component: Component) -> bool:
    """True when the component answers 200 at its health URL (or has its socket, where there is no URL)."""
    if component.health is None:
        return bed.containerd_socket.is_socket()
    try:
        with urllib.request.urlopen(component.health, timeout=5.0, context=_context()) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def is_node_ready(bed: Bed) -> bool:
    """True when the node exists and says that it is Ready."""
    try:
        node = json.loads(kubectl(bed, "get", "node", bed.node_name, "-o", "json"))
    except BedError:
        return False
    conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def has_node(bed: Bed) -> bool:
    """True once the kubelet has registered the node."""
    return bool(kubectl(bed, "get", "node", bed.node_name, "--ignore-not-found", "-o", "name"))


def give_pod_range(bed: Bed) -> None:
    """Write the pod range into the node, for kube-router.

    The controller manager could do it, but then it would give one to every simulated node of a scale test too, and
    KWOK could no longer put its pods on loopback addresses.
    """
    wait_until("the kubelet registers its node", lambda: has_node(bed))
    patch = {"spec": {"podCIDR": model.POD_CIDR, "podCIDRs": [model.POD_CIDR]}}
    kubectl(bed, "patch", "node", bed.node_name, "-p", json.dumps(patch))


def has_default_account(bed: Bed) -> bool:
    """True once pods can be made in the default namespace: before, admission refuses them."""
    found = kubectl(
        bed, "get", "serviceaccount", "default", "-n", "default", "--ignore-not-found", "-o", "name"
    )
    return bool(found)


def _context() -> ssl.SSLContext:
    """Without verification: some components make their own certificate, and nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
