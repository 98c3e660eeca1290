"""Egress profiles on the real cluster: what a sandbox of each reaches, tried from inside, and changes at run time.

Every address is this machine's own: those that stand for the internet, a model gateway and the metadata service are
on its loopback interface for the length of the tests.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from sandman import names
from sandman.errors import (
    ForbiddenError,
    NetworkDeniedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
)
from tests.cluster.bed import kubectl
from tests.cluster.bed.shell import run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sandman as sdk
    from sandman.sync import Sandbox
    from tests.cluster.deployed import Deployed

OPEN, MODEL, OTHER = ("192.0.2.7", 8099), ("192.0.2.8", 8098), ("192.0.2.9", 8097)
"""The canary of `open`, that of `model` (manifests/overlays/test), and another host on the internet."""
METADATA = ("169.254.169.254", 80)
API = ("10.96.0.1", 443)
REACH = """
import json, socket, sys, threading
found = {}
def attempt(name, host, port):
    try:
        socket.create_connection((host, port), 3).close()
    except OSError:
        return
    found[name] = True
threads = [threading.Thread(target=attempt, args=(n, *at)) for n, at in json.loads(sys.argv[1]).items()]
[one.start() for one in threads]
[one.join() for one in threads]
print(json.dumps(sorted(found)))
"""
HOLD = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
connection.settimeout(3)
count = 0
while True:
    connection.sendall(b"x")
    count += len(connection.recv(1))
    open("/tmp/echoes", "w").write(str(count))
    time.sleep(0.1)
"""


def serve(server: socket.socket) -> None:
    """Take every connection, and echo what comes."""

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1024):
                connection.sendall(data)

    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """What stands for the world outside."""
    with contextlib.ExitStack() as stack:
        for host, port in (OPEN, MODEL, OTHER, METADATA):
            run(["ip", "address", "add", f"{host}/32", "dev", "lo"])
            stack.callback(run, ["ip", "address", "delete", f"{host}/32", "dev", "lo"])
            server = stack.enter_context(socket.create_server((host, port), backlog=64))
            # A close alone does not wake who accepts.
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield


@pytest.fixture(scope="module")
def client(sandman: Deployed, hosts: None) -> Iterator[sdk.SyncClient]:
    with sandman.sync_client() as made:
        yield made
    sandman.wait_nothing_leased(60)


@pytest.fixture(scope="module")
def places(sandman: Deployed, client: sdk.SyncClient) -> Iterator[dict[str, tuple[str, int]]]:
    """Where sandboxes try to get to: all of it answers somebody."""
    with client.sandbox(image=sandman.image("python")) as neighbour:
        pod = neighbour.id.rpartition("-")[0]
        address = sandman.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")
        yield {
            "open": OPEN,
            "model": MODEL,
            "other": OTHER,
            "metadata": METADATA,
            "API server": API,
            "API server, at the node": (sandman.bed.node_ip, 6443),
            "kubelet": (sandman.bed.node_ip, 10250),
            "gateway": (_pod_ip(sandman, "sandman-gateway"), names.GATEWAY_PORT),
            "webhook": (_pod_ip(sandman, "sandman-webhook"), names.WEBHOOK_PORT),
            "another sandbox": (address, names.DAEMON_PORT),
        }


def _pod_ip(sandman: Deployed, name: str) -> str:
    label = f"app.kubernetes.io/name={name}"
    where = ["-n", names.SYSTEM_NAMESPACE, "-l", label, "-o", "jsonpath={.items[0].status.podIP}"]
    return kubectl(sandman.bed, "get", "pods", *where)


def reached(box: Sandbox, places: dict[str, tuple[str, int]]) -> list[str]:
    """Which of these places answer from inside of a sandbox."""
    result = box.exec(["python3", "-c", REACH, json.dumps(places)], timeout_s=60, check=True)
    found: list[str] = json.loads(result.stdout_text)
    return found


def test_the_places_answer_others(places: dict[str, tuple[str, int]]) -> None:
    for name, at in places.items():
        # The neighbour's daemon is for gateways alone, and it was reached by one.
        if name != "another sandbox":
            socket.create_connection(at, 5).close()


@pytest.mark.parametrize(
    ("profile", "opened"),
    [(None, []), ("none", []), ("model", ["model"]), ("open", ["model", "open", "other"])],
)
def test_a_sandbox_reaches_what_its_profile_opens_and_nothing_else(
    sandman: Deployed,
    client: sdk.SyncClient,
    places: dict[str, tuple[str, int]],
    profile: str | None,
    opened: list[str],
) -> None:
    with client.sandbox(
        image=sandman.image("python"), network=profile, network_wait=True, wait_s=120
    ) as box:
        assert box.info.network == (profile or "none")
        assert reached(box, places) == opened


def test_a_change_is_so_when_it_is_answered(
    sandman: Deployed, client: sdk.SyncClient, places: dict[str, tuple[str, int]]
) -> None:
    with client.sandbox(image=sandman.image("python")) as box:
        for profile, opened in (
            ("open", ["model", "open", "other"]),
            ("model", ["model"]),
            ("none", []),
            ("open", ["model", "open", "other"]),
            ("none", []),
        ):
            applied = box.set_network(profile)
            assert reached(box, places) == opened, profile
            told = {one["what"]: one["outcome"] for one in applied.probes}
            assert told["the API server"] != "reachable"
            assert told["another sandbox's daemon"] != "reachable"
            print(f"{profile}: applied in {applied.took_ms:.0f} ms: {told}")
        assert box.refresh().network == "none"


def test_what_is_open_when_a_profile_closes_goes_on_here_and_nothing_new_does(
    sandman: Deployed, client: sdk.SyncClient
) -> None:
    with client.sandbox(image=sandman.image("python"), network="open", network_wait=True) as box:
        box.start(["python3", "-c", HOLD, OPEN[0], str(OPEN[1])])

        def echoes() -> int:
            return int(box.run("cat /tmp/echoes 2>/dev/null || echo 0").stdout_text or 0)

        wait_until("the connection is open", lambda: echoes() > 1)
        box.set_network("none")
        before = echoes()
        time.sleep(1.5)
        # kube-router judges new connections: docs/operations.md tells so of its kind.
        assert echoes() > before
        assert reached(box, {"open": OPEN}) == []


def test_what_is_not_to_be_had(sandman: Deployed, client: sdk.SyncClient) -> None:
    image = sandman.image("python")
    with pytest.raises(NetworkUnsupportedError, match="no egress profile"):
        client.create(image=image, network="nonsense")
    with pytest.raises(NetworkDeniedError, match="pool restricted"):
        client.create(image=image, pool="restricted", network="open")
    with client.sandbox(image=image) as box, pytest.raises(NetworkDeniedError):
        box.set_network("nonsense")


def test_the_token_of_a_sandbox_opens_nothing(
    sandman: Deployed, client: sdk.SyncClient, places: dict[str, tuple[str, int]]
) -> None:
    made = sandman.installation
    with client.sandbox(image=sandman.image("python")) as box:
        own = type(client)(made.url, box.info.token, ca=made.ca, server_name=made.server_name)
        with own as inside, pytest.raises(ForbiddenError):
            inside.attach(box.id).set_network("open")
        assert reached(box, places) == []


def test_a_policy_that_is_not_there_is_noticed(sandman: Deployed, client: sdk.SyncClient) -> None:
    with client.sandbox(image=sandman.image("python"), network_wait=True) as box:
        policy = sandman.kubectl("get", "netpol", "sandman-default-deny", "-o", "json")
        document = json.loads(policy)
        document["metadata"] = {
            key: document["metadata"][key] for key in ("name", "namespace", "labels")
        }
        sandman.kubectl("delete", "netpol", "sandman-default-deny")
        try:
            wait_until("it is open", lambda: reached(box, {"API": API}) == ["API"], 30, 0.5)
            with pytest.raises(
                NetworkNotAppliedError, match="the API server should be closed"
            ) as caught:
                box.set_network("none", wait_s=2.0)
            assert {"what": "the API server", "expected": "closed", "outcome": "reachable"} in (
                caught.value.facts["probes"]
            )
        finally:
            kubectl(sandman.bed, "apply", "-f", "-", input=json.dumps(document))
        box.set_network("none")
        assert reached(box, {"API": API}) == []


def test_gateways_tell_that_policies_are_enforced_and_which_profiles_there_are(
    sandman: Deployed, hosts: None
) -> None:
    made = sandman.installation
    context = ssl.create_default_context(cafile=str(made.ca))
    headers = {"authorization": f"Bearer {made.token}"}
    sni = {"sni_hostname": made.server_name}
    with httpx.Client(verify=context, headers=headers, base_url=made.url) as http:

        def told() -> dict[str, object]:
            answer = http.get("/v1/networks", extensions=sni)
            assert answer.status_code == 200, answer.text
            found: dict[str, object] = answer.json()
            return found

        wait_until("they know", lambda: told()["enforced"] is True, 150, 1.0)
        assert told()["networks"] == [
            {"name": name, "usable": True, "fault": None} for name in ("model", "none", "open")
        ]
        metrics = http.get("/metrics", extensions=sni).text
        assert 'sandman_network_enforced{namespace="sandman-sandboxes"} 1.0' in metrics
