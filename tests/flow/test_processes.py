"""Commands that are started and come back to, through the real gateway, over a line that breaks.

Points 17, 18, 26, 52 and 53.
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import errors, handles, names, wire
from sandman.client import Client, Stderr, Stdout
from tests.unit.daemon.harness import decode, joined, processes_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
NUMBERS = "".join(f"{n}\n" for n in range(1, 40_001)).encode()


@contextlib.asynccontextmanager
async def bad_line(url: str, cuts: Iterator[int | None]) -> AsyncIterator[str]:
    """An address behind which each connection to the gateway breaks after so many bytes of answer."""
    host, _, port = url.removeprefix("https://").partition(":")

    async def serve(caller: trio.SocketStream) -> None:
        left = next(cuts, None)
        async with (
            caller,
            await trio.open_tcp_stream(host, int(port)) as gateway,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(pump, caller, gateway, None, nursery)
            nursery.start_soon(pump, gateway, caller, left, nursery)

    async with trio.open_nursery() as nursery:
        serving = functools.partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        [listener] = await nursery.start(serving)
        yield f"https://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def pump(source, target, left: int | None, nursery: trio.Nursery) -> None:
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while (left is None or left > 0) and (data := await source.receive_some(65536)):
            data = data if left is None else data[:left]
            await target.send_all(data)
            left = None if left is None else left - len(data)
    nursery.cancel_scope.cancel()


def random_cuts(seed: int, count: int) -> Iterator[int | None]:
    """Handshakes take some 1,500 bytes: cuts within and after them. The first one is whole, or the
    client would take a broken handshake for a server without TLS."""
    dice = random.Random(seed)
    rest = [dice.choice([500, 2200, 90_000, 150_000, 200_000]) for _ in range(count)]
    return iter([6000, *rest])


async def test_26_the_calls_about_a_command(bed):
    made = await bed.allocate()
    acme, path = bed.as_("acme"), f"/v1/sandboxes/{made['id']}/processes"
    body = {"shell": "cat; sleep 0.1; echo err >&2; exit 3", "stdin_open": True}
    body |= {"exec_id": "mine", "detached": True}
    for _ in range(2):
        begun = await bed.client.post(path, json=body, headers=acme)
        assert handles.ProcessInfo.from_json(begun.json()).exec_id == "mine"
    other = await bed.client.post(path, json={**body, "shell": "x"}, headers=acme)
    assert (other.status_code, other.json()["reason"]) == (409, "conflict")
    fed = await bed.client.post(
        f"{path}/mine/stdin", params={"close": "1"}, content=b"in", headers=acme
    )
    assert fed.json()["stdin_bytes"] == 2
    ended = await bed.client.get(f"{path}/mine", params={"wait_s": 10}, headers=acme)
    info = handles.ProcessInfo.from_json(ended.json())
    assert info.result is not None
    assert (info.state, info.result.exit_code, info.result.stdout) == ("ended", 3, b"in")
    output = await bed.client.get(f"{path}/mine/output?stdout=1", headers=acme)
    assert output.headers["content-type"] == names.MEDIA_FRAMES
    frames = decode(output.content)
    assert (joined(frames, wire.STDOUT), joined(frames, wire.STDERR)) == (b"n", b"err\n")
    late = await bed.client.post(f"{path}/mine/signal", json={"signal": "TERM"}, headers=acme)
    assert (late.status_code, late.json()["reason"]) == (409, "conflict")
    listed = await bed.client.get(path, headers=acme)
    assert [one["exec_id"] for one in listed.json()["processes"]] == ["mine"]
    for _ in range(2):
        assert (await bed.client.delete(f"{path}/mine", headers=acme)).status_code == 204
    for method, tail in (
        ("HEAD", "/mine"),
        ("PUT", "/mine"),
        ("DELETE", ""),
        ("GET", "/mine/stdin"),
    ):
        assert (await bed.client.request(method, path + tail, headers=acme)).status_code == 405
    zeta = await bed.client.get(f"{path}/mine", headers=bed.as_("zeta"))
    assert zeta.status_code in {403, 404}


@pytest.mark.parametrize("seed", range(4))
async def test_52_53_exec_over_a_line_that_breaks_runs_once_and_is_whole(bed, tmp_path, seed):
    made = await bed.allocate()
    async with (
        bad_line(bed.url, random_cuts(seed, 8)) as url,
        Client(url, bed.credentials.texts["acme"], ca=bed.trust) as client,
    ):
        box = client.attach(made["id"])
        await client.pools()
        for turn in range(1, 4):
            result = await box.run(f"echo x >> {tmp_path}/runs; seq 1 40000; exit {turn}")
            assert (result.exit_code, result.stdout) == (turn, NUMBERS)
            assert not result.stdout_truncated
            assert len((tmp_path / "runs").read_text().split()) == turn


@pytest.mark.parametrize("detached", [True, False])
async def test_26_53_following_over_a_line_that_breaks(bed, detached):
    made = await bed.allocate()
    told: list[str] = []
    async with (
        bad_line(bed.url, random_cuts(9, 8)) as url,
        Client(
            url, made["token"], ca=bed.trust, on_retry=lambda retry: told.append(retry.call)
        ) as client,
    ):
        box = client.attach(made["id"])
        process = await box.start(shell="seq 1 40000; seq 1 9 >&2", detached=detached)
        got = {Stdout: b"", Stderr: b""}
        async for event in (output := process.follow()):
            got[type(event)] += event.data
        assert (got[Stdout], len(got[Stderr])) == (NUMBERS, 18)
        assert (output.result.exit_code, output.gaps) == (0, [])
    assert told


async def test_18_a_cancelled_exec_is_killed_at_once(bed):
    made = await bed.allocate()
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        box = client.attach(made["id"])
        mark = f"mark-{made['id']}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run, f"sleep 60; : {mark}")
            with trio.fail_after(5):
                while not await trio.to_thread.run_sync(processes_with, mark):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        with trio.fail_after(3):
            while await trio.to_thread.run_sync(processes_with, mark):
                await trio.sleep(0.01)


async def test_17_a_detached_command_outlives_its_client(bed):
    made = await bed.allocate()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        process = await client.attach(made["id"]).start(shell="sleep 0.5; echo whole")
        with trio.move_on_after(0.1):
            await process.wait()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        again = client.attach(made["id"]).process(process.exec_id)
        assert (await again.wait()).stdout == b"whole\n"


async def test_53_a_command_whose_sandbox_died_is_no_result(bed):
    made = await bed.allocate()
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        box = client.attach(made["id"])
        process = await box.start(["sleep", "60"])
        bed.daemon.restart()
        with pytest.raises(errors.DiedError):
            await process.wait()
