"""Sandboxes for the tests of what a sandbox's own processes may: two to attack from, and one beside them."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from sandman import names
from tests.cluster import faults, hostile
from tests.cluster.bed import kubectl
from tests.cluster.bed.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed
    from tests.cluster.hostile import Box, Gates

USERS: dict[str, dict[str, Any]] = {"root": {}, "nobody": {"user": 65534}}
"""Of a command in the sandbox whose daemon is root's. In the third the daemon has a user's rights itself."""
WHO = ("root", "nobody", "restricted")
PORT = names.DAEMON_PORT
METADATA = ("169.254.169.254", 80)
GUARDED = {"another sandbox's daemon", "another sandbox's server"}
"""Places that nobody else reaches either: their daemon answers gateways."""


class World(NamedTuple):
    """Who attacks what."""

    gates: Gates
    root: Box
    restricted: Box
    neighbour: Box
    places: dict[str, tuple[str, int]]
    digest: str
    """What the root's pod knows its token by."""

    def box(self, who: str) -> Box:
        """Where that user is."""
        return self.restricted if who == "restricted" else self.root

    def python(self, who: str, script: str, *arguments: str) -> str:
        """What the script prints, run by that user."""
        return self.box(who).python(script, *arguments, **USERS.get(who, {}))

    def stand(self) -> None:
        """All of them are as they were."""
        for one in (self.root, self.restricted, self.neighbour):
            one.is_whole()


@contextlib.contextmanager
def world(sandman: Deployed) -> Iterator[World]:
    """The three, for the length of the block."""
    token, image = sandman.installation.token, sandman.image("python")
    with contextlib.ExitStack() as stack:
        gates = stack.enter_context(hostile.gates(sandman))
        root, neighbour = (
            stack.enter_context(hostile.box(gates, token, image=image)) for _ in range(2)
        )
        restricted = stack.enter_context(hostile.box(gates, token, image=image, pool="restricted"))
        stack.enter_context(_listening(*METADATA))
        server = {"argv": ["python3", "-m", "http.server", "8000"], "detached": True}
        assert neighbour.call("POST", "/processes", json=server).status_code == 200
        [digest] = [
            one["value"]
            for one in _document(sandman, root)["spec"]["containers"][0]["env"]
            if one["name"] == names.ENV_TOKEN_SHA256
        ]
        beside = _document(sandman, neighbour)["status"]["podIP"]
        places = _places(sandman, gates, beside)
        yield World(gates, root, restricted, neighbour, places, digest)
    sandman.wait_nothing_leased(60)


def _document(sandman: Deployed, box: Box) -> dict[str, Any]:
    found = faults.document(sandman, box.pod)
    assert found is not None
    return found


def _places(sandman: Deployed, gates: Gates, beside: str) -> dict[str, tuple[str, int]]:
    where = ["-n", names.SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/name=sandman-webhook"]
    webhook = kubectl(sandman.bed, "get", "pods", *where, "-o", "jsonpath={.items[0].status.podIP}")
    node = sandman.bed.node_ip
    return {
        "API server": ("10.96.0.1", 443),
        "API server, at the node": (node, 6443),
        "kubelet": (node, 10250),
        "metadata": METADATA,
        "gateway": (gates.addresses[0], names.GATEWAY_PORT),
        "another gateway": (gates.addresses[1], names.GATEWAY_PORT),
        "gateway, at the node": (node, 30443),
        "webhook": (webhook, names.WEBHOOK_PORT),
        "another sandbox's daemon": (beside, PORT),
        "another sandbox's server": (beside, 8000),
    }


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[None]:
    """Somebody answers at this address, which is the machine's own meanwhile."""
    with contextlib.ExitStack() as stack:
        run(["ip", "address", "replace", f"{host}/32", "dev", "lo"])
        stack.callback(run, ["ip", "address", "delete", f"{host}/32", "dev", "lo"])
        server = stack.enter_context(socket.create_server((host, port), backlog=64))
        stack.callback(server.shutdown, socket.SHUT_RDWR)  # a close alone does not wake who accepts

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=accept, daemon=True).start()
        yield
