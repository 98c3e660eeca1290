"""The network policies: who reaches what, tried from inside of pods."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster.bed import kubectl, reference
from tests.cluster.bed.shell import run, wait_until
from tests.cluster.judged import SANDBOXES, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed import Bed
    from tests.cluster.deployed import Deployed

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
except OSError as error:
    print(error)
else:
    print("connected")
"""
PUBLIC = "192.0.2.1"
"""Stands for the internet: an address of this machine from a range that is nobody's."""
API = ("10.96.0.1", 443)
METADATA = ("169.254.169.254", 80)


class Net:
    """Pods that try to connect, and where they try to."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.addresses: dict[str, str] = {}
        self.namespaces: dict[str, str] = {}

    def start(self, name: str, namespace: str, labels: dict[str, str], **spec: Any) -> None:
        image = reference(self.bed, "python")
        container = {"name": "sandbox", "image": image, "command": ["sleep", "3600"]}
        container |= spec.pop("container", {})
        defaults = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        value = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {**defaults, **spec, "containers": [container]},
        }
        kubectl(self.bed, "create", "-f", "-", input=json.dumps(value))
        self.namespaces[name] = namespace

    def wait(self) -> None:
        for name, namespace in self.namespaces.items():
            kubectl(
                self.bed, "wait", "pod", name, "-n", namespace, "--for=condition=Ready", "--timeout=90s"
            )  # fmt: skip
            pod = json.loads(kubectl(self.bed, "get", "pod", name, "-n", namespace, "-o", "json"))
            self.addresses[name] = pod["status"]["podIP"]

    def tries(self, who: str, where: tuple[str, int]) -> str:
        """`connected`, or why not."""
        # The gateway's image has no other name for it.
        python = [
            "python" if who == "gateway" else "python3",
            "-c",
            CONNECT,
            where[0],
            str(where[1]),
        ]
        if who == "gateway":
            pod = ["deployment/sandman-gateway", "-n", SYSTEM]
        else:
            pod = [who, "-n", self.namespaces[who]]
        return kubectl(self.bed, "exec", *pod, "--", *python).strip()

    def daemon(self, of: str) -> tuple[str, int]:
        return self.addresses[of], names.DAEMON_PORT


@pytest.fixture(scope="module")
def net(sandman: Deployed) -> Iterator[Net]:
    bed = sandman.bed
    made = Net(bed)
    pool = {names.LABEL_POOL: "test", names.LABEL_STATE: names.STATE_ENDED}
    pool |= {names.LABEL_INJECT: names.INJECT_POOL}
    closed, opened = {names.LABEL_NETWORK: "none"}, {names.LABEL_NETWORK: "open"}
    like_gateway = {"app.kubernetes.io/name": "sandman-gateway"}
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    made.start("test-closed", SANDBOXES, pool | closed)
    made.start("test-open", SANDBOXES, pool | opened)
    made.start("test-outside", "default", like_gateway)
    made.start(
        "test-beside", SYSTEM, {}, securityContext=restricted, container={"securityContext": limits}
    )
    run(["ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"])
    try:
        with socket.create_server((PUBLIC, 0)) as server:
            made.wait()
            made.addresses["public"] = str(server.getsockname()[1])
            yield made
    finally:
        run(["ip", "address", "delete", f"{PUBLIC}/32", "dev", "lo"])
        for name, namespace in made.namespaces.items():
            kubectl(bed, "delete", "pod", name, "-n", namespace, "--wait=false")


def settled(net: Net, who: str, where: tuple[str, int], *, connects: bool) -> None:
    """The network plugin takes a moment for a new pod; then its answer must stay."""
    wait_until(
        f"{who} to {where}: {'connects' if connects else 'does not connect'}",
        lambda: (net.tries(who, where) == "connected") == connects,
        30,
        0.5,
    )
    assert (net.tries(who, where) == "connected") == connects


def test_gateways_alone_reach_daemons(bed: Bed, net: Net) -> None:
    settled(net, "gateway", net.daemon("test-closed"), connects=True)
    # Not by the label alone, and not by the namespace alone.
    settled(net, "test-outside", net.daemon("test-closed"), connects=False)
    settled(net, "test-beside", net.daemon("test-closed"), connects=False)
    settled(net, "test-open", net.daemon("test-closed"), connects=False)
    # The network as such does carry them: the same two reach a port that is open to all.
    gateway = _address(bed, "sandman-gateway"), names.GATEWAY_PORT
    assert net.tries("test-outside", gateway) == "connected"
    assert net.tries("test-beside", gateway) == "connected"


def test_sandboxes_reach_nothing(bed: Bed, net: Net) -> None:
    places = {
        "API server": API,
        "node": (bed.node_ip, 6443),
        "metadata": METADATA,
        "gateway": (_address(bed, "sandman-gateway"), names.GATEWAY_PORT),
        "webhook": (_address(bed, "sandman-webhook"), names.WEBHOOK_PORT),
        "another": net.daemon("test-open"),
        "public": (PUBLIC, int(net.addresses["public"])),
    }
    for where in places.values():
        settled(net, "test-closed", where, connects=False)
    assert net.tries("test-outside", places["API server"]) == "connected"


def test_open_sandboxes_reach_public_addresses_and_nothing_else(bed: Bed, net: Net) -> None:
    settled(net, "test-open", (PUBLIC, int(net.addresses["public"])), connects=True)
    for where in (
        API,
        METADATA,
        (bed.node_ip, 6443),
        (_address(bed, "sandman-gateway"), names.GATEWAY_PORT),
        net.daemon("test-closed"),
    ):
        settled(net, "test-open", where, connects=False)


def _address(bed: Bed, name: str) -> str:
    label = f"app.kubernetes.io/name={name}"
    output = "jsonpath={.items[0].status.podIP}"
    return kubectl(bed, "get", "pods", "-n", SYSTEM, "-l", label, "-o", output)
