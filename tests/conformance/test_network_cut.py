"""A sandbox whose network is cut, by the kernel's own rules and clocks: client, gateway with TLS and daemon are real, the
daemon in a network of its own. `tests/flow/test_out_of_reach.py` has the cases, in virtual time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio

import sandman
from gateway.config import Settings
from sandman import grants, names
from sandman.errors import OutcomeUnknownError, UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.flow.conftest import KEYS, made_bed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NETWORK = "sandman-cut"
LINK, PEER = "sandman-cut0", "sandman-cut1"
HOST, SANDBOX = "10.199.77.1", "10.199.77.2"
PORT = 32111
TOLD_S = 30.0
RULES = (("INPUT", "-i"), ("OUTPUT", "-o"))


def run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True)


def inside(*words: str) -> None:
    run("ip", "netns", "exec", NETWORK, *words)


def take_down() -> None:
    run("ip", "netns", "delete", NETWORK, check=False)
    run("ip", "link", "delete", LINK, check=False)


@pytest.fixture
def daemon(machine) -> Iterator[SimpleNamespace]:
    """The daemon in a network that can be cut off."""
    lacking = [name for name in ("ip", "iptables") if shutil.which(name) is None]
    if lacking and not os.environ.get("CI"):
        pytest.skip(f"needs {' and '.join(lacking)}")
    take_down()
    run("ip", "netns", "add", NETWORK)
    run("ip", "link", "add", LINK, "type", "veth", "peer", "name", PEER, "netns", NETWORK)
    run("ip", "address", "add", f"{HOST}/30", "dev", LINK)
    run("ip", "link", "set", LINK, "up")
    inside("ip", "address", "add", f"{SANDBOX}/30", "dev", PEER)
    inside("ip", "link", "set", PEER, "up")
    inside("ip", "link", "set", "lo", "up")
    digest = grants.token_digest(grants.daemon_token(KEYS["k1"], "ns", "nonce-1"))
    environment = {**os.environ, names.ENV_PORT: str(PORT), names.ENV_TOKEN_SHA256: digest}
    words = ["ip", "netns", "exec", NETWORK, sys.executable, "-m", "daemon", "serve"]
    try:
        with subprocess.Popen(words, env=environment) as process:
            yield SimpleNamespace(port=PORT)
            process.terminate()
    finally:
        take_down()


@contextlib.contextmanager
def cut() -> Iterator[None]:
    """No packet comes in or goes out."""
    for chain, way in RULES:
        inside("iptables", "-w", "-I", chain, "!", way, "lo", "-j", "DROP")
    try:
        yield
    finally:
        for chain, way in RULES:
            inside("iptables", "-w", "-D", chain, "!", way, "lo", "-j", "DROP")


class Cluster(FakeCluster):
    def placeholder(self, **options):
        return super().placeholder(**{**options, "address": SANDBOX})


@contextlib.asynccontextmanager
async def sandbox(daemon, tmp_path) -> AsyncIterator[sandman.Sandbox]:
    async with made_bed(Cluster(), daemon, loss_s=Settings().loss_s) as bed:
        ca = tmp_path / "ca.crt"
        ca.write_bytes(bed.ca.certificate)
        token = bed.credentials.texts["acme"]
        async with sandman.Client(bed.url, token, ca=ca) as client:
            yield await client.create(heartbeat=False)


@pytest.mark.slow
async def test_twenty_seconds_cost_a_command_nothing(daemon, tmp_path):
    """The connection does not live so long; the command is come back to."""
    results = []

    async def count(box) -> None:
        results.append(await box.run("for i in $(seq 1 30); do echo $i; sleep 1; done"))

    async with sandbox(daemon, tmp_path) as box, trio.open_nursery() as nursery:
        nursery.start_soon(count, box)
        await trio.sleep(3)
        with cut():
            await trio.sleep(20)
    [result] = results
    assert (result.exit_code, result.stdout_text.split()) == (0, [*map(str, range(1, 31))])


async def hears(what: str, call, cut_after: float = 0.0) -> None:
    begun = trio.current_time() + cut_after
    with pytest.raises((OutcomeUnknownError, UnreachableError)) as caught:
        await call()
    took = trio.current_time() - begun
    print(f"{what}: told {took:.1f} s after the cut: {caught.value}")
    assert took < TOLD_S


@pytest.mark.slow
async def test_longer_is_told_in_time_whatever_the_call(daemon, tmp_path):
    async with sandbox(daemon, tmp_path) as box:
        await box.start(["sleep", "1000"], exec_id="p")
        under_way = {
            "silent exec": partial(box.exec, ["sleep", "1000"]),
            "talking exec": partial(box.run, "while :; do echo x; sleep 0.1; done"),
            "wait": box.process("p").wait,
        }
        since = {
            "exec made since": partial(box.exec, ["true"]),
            "write made since": partial(box.files.write, "/tmp/x", b"x"),
            "read made since": partial(box.files.read, "/etc/passwd"),
        }
        async with trio.open_nursery() as nursery:
            for what, call in under_way.items():
                nursery.start_soon(hears, what, call, 3.0)
            await trio.sleep(3)
            with cut():
                async with trio.open_nursery() as calls:
                    for what, call in since.items():
                        calls.start_soon(hears, what, call)
                await trio.sleep(3)
        assert (await box.exec(["true"])).ok
        await box.process("p").kill()
