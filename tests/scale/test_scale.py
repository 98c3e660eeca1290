"""The scale bed in its short form: a real control plane, two gateways and the webhook as they are shipped, 300 simulated
placeholders whose daemons answer."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandman
from sandman.errors import SandmanError
from tests.cluster.bed.shell import attempt
from tests.scale import control, measure, model
from tests.scale.conftest import PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE = 100
"""Bare patches beside the burst: enough for their p99 to be the slowest but one."""


async def test_a_caller_has_a_sandbox_and_all_that_it_asks_of_it(target):
    """By the client itself, through TLS, with the daemon's real token."""
    async with sandman.Client(
        target.base_urls[0], target.tenants["north"]["key"], ca=target.ca
    ) as client:
        async with client.sandbox(pool=target.pool) as box:
            assert box.info.tier == "warm"
            result = await box.exec(["echo", "hello"])
            assert (result.exit_code, result.stdout) == (0, b"hello\n")
            await box.files.write("/tmp/a", b"content")
            assert await box.files.read("/tmp/a") == b"content"
            assert (await box.run("cat /tmp/a && exit 3")).exit_code == 3
            first = box.id
        async with client.sandbox(image="registry.example/task:1") as swapped:
            assert swapped.info.tier == "swap"
            assert swapped.id != first
            assert (await swapped.exec(["true"])).ok


async def test_another_tenant_does_not_see_it(target):
    north = sandman.Client(target.base_urls[0], target.tenants["north"]["key"], ca=target.ca)
    south = sandman.Client(target.base_urls[1], target.tenants["south"]["key"], ca=target.ca)
    async with north, south, north.sandbox(pool=target.pool) as box:
        with pytest.raises(SandmanError, match="not_found"):
            await south.get(box.id)


async def test_a_burst_of_300_is_served_whole(target, record_property):
    """No error, none given twice, none left; beside it the bare claim patch, in the same minute."""
    told = await measure.burst(target, PODS, callers=PODS, bare_count=BARE)
    print(told)
    for name in ("p99_of_bare", "wall_of_bare"):
        record_property(name, told[name])
    assert told["bare"]["errors"] == {}
    claims = told["claims"]
    assert (claims["calls"], claims["errors"], claims["doubles"]) == (PODS, {}, 0)
    assert told["writes"]["patch pods"] >= PODS
    assert told["left"] == 0


def test_nothing_is_left(target):
    """After all others, by its place: no process, file, rule or port."""
    bed = model.bed()
    ports = [
        model.PORTS.api,
        model.PORTS.etcd,
        model.WEBHOOK_PORT,
        model.GATEWAY_PORT,
        model.DAEMON_PORT,
    ]
    control.down(bed)
    assert not bed.state.exists()
    assert not model.TARGET.exists()
    marks = [f"{bed.state}".encode(), b"tests.scale.hollow"]
    assert [one for one in commands() if any(mark in one for mark in marks)] == []
    assert "sandman scale bed" not in attempt(["iptables-save"])
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, port


def commands() -> Iterator[bytes]:
    """Command lines of all processes."""
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            yield (place / "cmdline").read_bytes() if place.name.isdigit() else b""
