"""A whole gateway of local mode for tests: a program of its own, with real sandboxes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import trio

from gateway import local as program
from gateway.machine import MadeCredentials
from gateway.provider.local import isolation
from sandman import local
from sandman.client import Client
from tests.fakes.cluster import BASE, TASK
from tests.flow.conftest import Bed
from tests.openapi.conforms import conforms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

START_S = 60
STOP_S = 20
HOSTS_OWN = (BASE, TASK, "registry.test/task:1")
"""Images of other tests, which stand for the machine's own root here."""


class Gateway:
    """One that runs.

    Args:
        state: where it may put its files.
        machine: what it believes of this machine, instead of trying; None: it tries.
        options: see `gateway.local.Options`; `images` are paths by name.
    """

    def __init__(self, state: Path, machine: dict[str, str] | None = None, **options) -> None:
        self.environ = {local.ENV_STATE: str(state), "HOME": str(state)}
        images = dict.fromkeys(HOSTS_OWN, "/") | options.pop("images", {})
        told = {
            "machine": machine,
            "options": {"free": 1, "pull": False, **options, "images": images},
        }
        # Not over stdout: that is the log, and a gateway whose log nobody reads stands still.
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.flow.local_mode", json.dumps(told), str(writer)],
            env={**os.environ, **self.environ},
            pass_fds=[writer],
        )
        os.close(writer)
        with os.fdopen(reader) as tokens:
            self.tokens = json.load(tokens)
        self.connection = self._wait()
        self.daemon = Daemons(self.process.pid)

    def _wait(self) -> local.Connection:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            if (connection := local.read(self.environ)) is not None:
                return connection
            time.sleep(0.02)
        raise AssertionError("local mode did not start")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)

    @contextlib.asynccontextmanager
    async def bed(self) -> AsyncIterator[Bed]:
        """What a test needs of it."""
        trust = ssl.create_default_context(cadata=self.connection.ca)
        url, token = self.connection.url, self.connection.token
        async with (
            httpx.AsyncClient(
                base_url=url, verify=trust, timeout=30, event_hooks={"response": [conforms]}
            ) as http,
            Client(url, token, ca=trust) as client,
        ):
            yield LocalBed(
                client=http, sandman=client, url=url, trust=trust, ca=self.connection.ca.encode(),
                credentials=SimpleNamespace(texts=self.tokens), daemon=self.daemon,
            )  # fmt: skip


@contextlib.contextmanager
def running(state: Path, machine: dict[str, str] | None = None, **options) -> Iterator[Gateway]:
    """One for the length of a block."""
    one = Gateway(state, machine, **options)
    try:
        yield one
    finally:
        one.stop()


class LocalBed(Bed):
    """As other flow tests have it."""

    async def release_all(self) -> None:
        """Whatever the test has left."""
        for tenant in self.credentials.texts:
            headers = self.as_(tenant)
            answer = await self.client.get("/v1/sandboxes", headers=headers)
            for one in answer.json()["sandboxes"]:
                await self.client.delete(f"/v1/sandboxes/{one['id']}", headers=headers)


class Daemons:
    """The daemons of a gateway's sandboxes."""

    port = program.DAEMON_PORT

    def __init__(self, gateway: int) -> None:
        self._gateway = gateway

    def keepers(self) -> list[int]:
        """Pids of what keeps sandboxes."""
        return [pid for pid in children(self._gateway) if b"\0confine\0" in command(pid)]

    def kill(self) -> None:
        """Kill the first process of each sandbox, as the kernel does for want of memory."""
        for keeper in self.keepers():
            for first in children(keeper):
                os.kill(first, signal.SIGKILL)

    def restart(self) -> None:
        """The same: no sandbox ever comes back."""
        self.kill()


def children(pid: int) -> list[int]:
    """Its children, of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def command(pid: int) -> bytes:
    """Its command line."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def sleepers(whole: Gateway) -> int:
    """How many scripts have come to their `sleep 60`."""
    return sum(sleeps_below(keeper) for keeper in whole.daemon.keepers())


def sleeps_below(pid: int) -> bool:
    """A process that has just gone has nothing below it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        found = children(pid)
    return any(command(child).startswith(b"sleep\x0060") or sleeps_below(child) for child in found)


def main() -> None:
    """The program: local mode for two tenants, whose tokens are told first."""
    told = json.loads(sys.argv[1])
    if told["machine"] is not None:
        found = isolation.Machine(**told["machine"])
        isolation.probe = lambda place: found
    environment = isolation.environment
    measured = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    isolation.environment = lambda: {**environment(), **measured}
    options = told["options"]
    options["images"] = {name: Path(path) for name, path in options["images"].items()}
    credentials = MadeCredentials(("acme", "zeta"))
    with os.fdopen(int(sys.argv[2]), "w") as tokens:
        json.dump(credentials.tokens, tokens)
    trio.run(program.main, program.Options(**options), os.environ, credentials)


if __name__ == "__main__":
    main()
