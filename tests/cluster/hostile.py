"""What the tests of hostile callers share: a way in that is not held up, somebody to attack, and what was answered."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from sandman import names
from tests.cluster import faults
from tests.cluster.bed.shell import run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.deployed import Deployed

Json = dict[str, Any]
SOURCES = tuple(f"192.0.2.{number}" for number in range(40, 48))
"""Addresses of this machine for the length of the tests: each may fail twenty times at once before it is told to wait."""
TIMEOUT_S = 150.0
"""Seconds for any answer: the first sandbox of an image waits for its pull."""
SOON_S = 30.0
"""Seconds for a change of keys or rules to be known to both replicas, on two busy cores."""


class Said(NamedTuple):
    """An error as its caller reads it."""

    status: int
    reason: str
    detail: str


def said(answer: httpx.Response) -> Said:
    """What a problem document says."""
    assert answer.headers["content-type"] == names.MEDIA_PROBLEM, answer.text
    problem = answer.json()
    return Said(answer.status_code, problem["reason"], problem["detail"])


class Gates:
    """Both gateways, by their pods' addresses, from several addresses in turns."""

    def __init__(self, sandman: Deployed, stack: contextlib.ExitStack) -> None:
        selector = ["-l", "app.kubernetes.io/name=sandman-gateway", "-o", "json"]
        found = json.loads(faults.system(sandman, "get", "pods", *selector))["items"]
        self.addresses = [
            pod["status"]["podIP"] for pod in found if "deletionTimestamp" not in pod["metadata"]
        ]
        self._trust = ssl.create_default_context(cafile=str(sandman.installation.ca))
        self._trust.check_hostname = (
            False  # by address; the certificate must be the gateway's all the same
        )
        self._clients = {
            (source, address): stack.enter_context(self._client(source, address))
            for source in SOURCES
            for address in self.addresses
        }
        self._turns = itertools.cycle(self._clients.values())
        self._sources = itertools.cycle(SOURCES)

    def _client(self, source: str, address: str) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=self._trust, local_address=source)
        base = f"https://{address}:{names.GATEWAY_PORT}"
        return httpx.Client(base_url=base, transport=transport, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        """One call at one of them."""
        return self._ask(next(self._turns), method, path, token, more)

    def each(
        self, method: str, path: str, token: str | None = None, **more: Any
    ) -> list[httpx.Response]:
        """The same call at both."""
        return [self._ask(door, method, path, token, dict(more)) for door in self.doors()]

    def doors(self) -> list[httpx.Client]:
        """Both of them, for calls with no token or an odd one."""
        source = next(self._sources)
        return [self._clients[source, address] for address in self.addresses]

    @staticmethod
    def _ask(
        door: httpx.Client, method: str, path: str, token: str | None, more: Json
    ) -> httpx.Response:
        own = {} if token is None else {"authorization": f"Bearer {token}"}
        headers = own | (more.pop("headers", None) or {})
        return door.request(method, path, headers=headers, **more)

    def raw(self, sent: bytes) -> bytes:
        """What comes back for these bytes, until the gateway closes."""
        source = (next(self._sources), 0)
        place = (self.addresses[0], names.GATEWAY_PORT)
        with (
            socket.create_connection(place, TIMEOUT_S, source_address=source) as plain,
            self._trust.wrap_socket(plain) as stream,
        ):
            stream.sendall(sent)
            data = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                while more := stream.recv(65536):
                    data += more
        return data

    def soon(self, what: str, status: int, token: str, path: str = "/v1/sandboxes") -> None:
        """Wait until both answer this token so."""

        def is_so() -> bool:
            return {one.status_code for one in self.each("GET", path, token)} == {status}

        wait_until(what, is_so, SOON_S, 0.5)


@contextlib.contextmanager
def gates(sandman: Deployed) -> Iterator[Gates]:
    """The ways in, and the addresses to come from."""
    with contextlib.ExitStack() as stack:
        for source in SOURCES:
            run(["ip", "address", "replace", f"{source}/32", "dev", "lo"])
            stack.callback(run, ["ip", "address", "delete", f"{source}/32", "dev", "lo"])
        yield Gates(sandman, stack)


@dataclasses.dataclass(frozen=True)
class Box:
    """A sandbox, and a command that runs in it: whoever ends it is noticed."""

    gates: Gates
    tenant_token: str
    made: Mapping[str, Any]

    EXEC_ID = "victims-own"

    @property
    def id(self) -> str:
        return str(self.made["id"])

    @property
    def token(self) -> str:
        """The sandbox's own."""
        return str(self.made["token"])

    @property
    def pod(self) -> str:
        return self.id.rpartition("-")[0]

    def call(self, method: str, tail: str, **more: Any) -> httpx.Response:
        """One of its tenant's calls."""
        path = f"/v1/sandboxes/{self.id}{tail}"
        return self.gates.ask(method, path, self.tenant_token, **more)

    def run(self, argv: list[str], **options: Any) -> Json:
        """A command's result."""
        answer = self.call("POST", "/exec", json={"argv": argv, **options})
        assert answer.status_code == 200, answer.text
        result: Json = answer.json()
        return result

    def python(self, script: str, *arguments: str, **options: Any) -> str:
        """What a script of the image's own Python prints; it must end well and say nothing else."""
        result = self.run(["python3", "-I", "-c", script, *arguments], timeout_s=60, **options)
        assert (result["exit_code"], result["stderr"]) == (0, ""), result
        return str(result["stdout"])

    def is_whole(self) -> None:
        """Nobody has touched it."""
        shown = self.call("GET", f"/processes/{self.EXEC_ID}")
        assert (shown.status_code, shown.json()["state"]) == (200, "running"), shown.text
        info = self.call("GET", "/info").json()
        assert info["boot_id"] == self.made["boot_id"]


@contextlib.contextmanager
def box(gates: Gates, token: str, key: str | None = None, **wanted: Any) -> Iterator[Box]:
    """A sandbox for the length of the block."""
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = gates.ask(
        "POST", "/v1/sandboxes", token, json={"wait_s": 120, **wanted}, headers=headers
    )
    assert answer.status_code == 201, answer.text
    made = Box(gates, token, answer.json())
    try:
        command = {"argv": ["sleep", "3600"], "exec_id": Box.EXEC_ID, "detached": True}
        started = made.call("POST", "/processes", json=command)
        assert started.status_code == 200, started.text
        yield made
    finally:
        assert made.call("DELETE", "").status_code == 204
