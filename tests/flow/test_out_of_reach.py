"""A sandbox out of reach: whatever the call, its caller hears within half a minute of the event, however many
layers try again between; and what is shorter is bridged. Client and gateway are real, time is virtual."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

import sandman
from gateway import upstream
from gateway.config import Settings
from sandman._async.lanes import Lanes
from sandman.errors import OutcomeUnknownError, UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.fakes.network import Door, Network
from tests.flow.conftest import Credentials, Leader, application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOLD_S = 30.0
"""The promise. Here no machine is busy, so that a second of it must be left."""
LOST = (UnreachableError, OutcomeUnknownError)


class Bed(SimpleNamespace):
    network: Network
    door: Door
    box: sandman.Sandbox
    retries: list[sandman.Retry]

    async def after(self, seconds: float, *steps) -> None:
        """Do these in turn, each so long after the one before."""
        for step in steps:
            await trio.sleep(seconds)
            step()


@contextlib.asynccontextmanager
async def made(monkeypatch, **settings) -> AsyncIterator[Bed]:
    network, cluster, credentials = Network(), FakeCluster(), Credentials()
    monkeypatch.setattr(upstream.httpx, "AsyncHTTPTransport", lambda **_options: network)
    cluster.placeholder(key_id="k1")
    cluster.pool()
    cluster.synced()
    parts: dict = {}
    built = application(cluster, credentials, Settings(**settings), Leader(), None, parts)
    async with built as whole, trio.open_nursery() as nursery:
        door = Door(whole, nursery)
        monkeypatch.setattr(Lanes, "_make", lambda _lanes: httpx.AsyncClient(transport=door))
        await trio.sleep(5.0)  # until its placeholder was looked at
        retries: list[sandman.Retry] = []
        client = sandman.Client(
            "http://gateway", credentials.texts["acme"], on_retry=retries.append
        )
        box = await client.create(heartbeat=False)
        retries.clear()
        yield Bed(network=network, door=door, box=box, retries=retries, nursery=nursery, **parts)
        await client.aclose()
        nursery.cancel_scope.cancel()


async def told(bed: Bed, call, cut_after: float) -> sandman.SandmanError:
    """What a call hears whose sandbox is cut off after so long, in time."""

    async def cut() -> None:
        await trio.sleep(cut_after)
        bed.network.cut()

    begun = trio.current_time()
    bed.nursery.start_soon(cut)
    with pytest.raises(LOST) as caught, trio.fail_after(cut_after + 600):
        await call()
    took = trio.current_time() - begun - cut_after
    assert took < TOLD_S - 1, f"{took:.1f} s after the event: {bed.retries}"
    return caught.value


CALLS = {
    "exec": lambda box: box.exec(["sleep", "1000"]),
    "wait": lambda box: box.process("p").wait(),
    "follow": lambda box: read(box.process("p").follow()),
}


async def read(output) -> None:
    async for _ in output:
        pass


@pytest.mark.parametrize("cut_after", [0.5, 7.0, 20.0, 29.5, 120.0, 3600.0])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_under_way(autojump_clock, monkeypatch, name, cut_after):
    async with made(monkeypatch) as bed:
        bed.network.command_s = 1e6
        bed.network.ran["p"] = trio.current_time()
        error = await told(bed, lambda: CALLS[name](bed.box), cut_after)
        assert name != "exec" or isinstance(error, OutcomeUnknownError)
        assert len(bed.network.ran) <= 2


@pytest.mark.parametrize("met", [True, False])
async def test_a_call_made_since(autojump_clock, monkeypatch, met):
    """Through a replica that knows the sandbox, and through one that would ask it first."""
    async with made(monkeypatch) as bed:
        if not met:
            bed.proxy._boots.clear()
        error = await told(bed, lambda: bed.box.files.read("/x"), 0.0)
        assert isinstance(error, UnreachableError)
        assert bed.box.id == error.sandbox


async def test_a_call_made_while_the_gateway_was_away_too(autojump_clock, monkeypatch):
    async with made(monkeypatch) as bed:
        bed.door.leave()

        def back() -> None:
            bed.door.is_away = False

        bed.nursery.start_soon(bed.after, 20.0, back)
        error = await told(bed, lambda: bed.box.files.read("/x"), 0.0)
        assert isinstance(error, UnreachableError)


@pytest.mark.parametrize("silent_s", [1.0, 10.0, 15.0, 18.0, 24.0])
async def test_a_shorter_interruption_costs_a_command_nothing(
    autojump_clock, monkeypatch, silent_s
):
    async with made(monkeypatch) as bed:
        bed.network.command_s = 60.0
        bed.nursery.start_soon(bed.after, 5.0, bed.network.cut)
        bed.nursery.start_soon(bed.after, 5.0 + silent_s, bed.network.mend)
        begun = trio.current_time()
        result = await bed.box.exec(["x"])
        assert (result.exit_code, result.stdout) == (0, b"done")
        assert trio.current_time() - begun == pytest.approx(60.0, abs=1.0)
        assert len(bed.network.ran) == 1


@pytest.mark.parametrize("silent_s", [1.0, 10.0, 15.0, 18.0, 24.0])
async def test_a_shorter_interruption_costs_a_call_the_time_that_it_takes(
    autojump_clock, monkeypatch, silent_s
):
    async with made(monkeypatch) as bed:
        bed.network.cut()
        bed.nursery.start_soon(bed.after, silent_s, bed.network.mend)
        begun = trio.current_time()
        assert await bed.box.files.read("/x") == b"content"
        assert trio.current_time() - begun < silent_s + 4.0


@pytest.mark.parametrize("away_s", [2.0, 15.0, 25.0])
async def test_a_gateway_that_is_away_is_waited_for(autojump_clock, monkeypatch, away_s):
    async with made(monkeypatch) as bed:
        bed.network.command_s = 60.0

        def back() -> None:
            bed.door.is_away = False

        bed.nursery.start_soon(bed.after, 5.0, bed.door.leave)
        bed.nursery.start_soon(bed.after, 5.0 + away_s, back)
        result = await bed.box.exec(["x"])
        assert (result.exit_code, result.stdout) == (0, b"done")
        assert len(bed.network.ran) == 1


async def test_a_caller_that_says_how_long_it_waits_hears_by_then(autojump_clock, monkeypatch):
    async with made(monkeypatch) as bed:
        bed.network.ran["p"] = trio.current_time()
        bed.network.cut()
        begun = trio.current_time()
        with pytest.raises(LOST):
            await bed.box.process("p").kill(patience_s=8.0)
        assert trio.current_time() - begun <= 8.0
