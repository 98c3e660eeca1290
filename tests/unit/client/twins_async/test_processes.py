"""Commands that are started and come back to, with the real daemon at the end of a bad line.

Points 17, 18, 26, 52 and 53.
"""

from __future__ import annotations

import random
import uuid

import anyio
import pytest

from sandman import errors
from sandman.client import Client, Gap, Limits, Stderr, Stdout
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with

NUMBERS = "".join(f"{n}\n" for n in range(1, 30_001)).encode()


@on_backends
async def test_26_start_and_wait(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = await box.start(shell="echo out; echo err >&2; exit 3")
        assert process.info is not None
        assert process.info.detached
        result = await process.wait()
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert (await process.refresh()).result == result
        again = box.process(process.exec_id)
        assert "state unknown" in repr(again)
        assert await again.wait() == result
        assert "ended" in repr(again)
        assert process.exec_id in {one.exec_id for one in await box.processes()}
        missing = await (await box.start(["no-such-program"])).wait()
        assert (missing.exit_code, missing.start_error) == (127, "not_found")


@on_backends
async def test_26_follow_gives_events_then_the_result(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        process = await client.attach(SANDBOX).start(shell="echo a; sleep 0.2; echo b >&2; exit 5")
        seen = []
        async with process.follow() as output:
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = output.result
            while (event := await anext(output, None)) is not None:
                seen.append(event)
        assert seen == [Stdout(b"a\n"), Stderr(b"b\n")]
        assert output.result.exit_code == 5
        rest = process.follow(stdout=1)
        assert await anext(rest) == Stdout(b"\n")
        assert await anext(rest) == Stderr(b"b\n")
        assert await anext(rest, None) is None
        assert rest.result.exit_code == 5


@on_backends
async def test_26_53_follow_comes_back_at_any_byte(way: Way) -> None:
    dice = random.Random(26)
    told: list[str] = []
    async with Client(way.url, TOKEN, on_retry=lambda r: told.append(r.call)) as client:
        box = client.attach(SANDBOX)
        for detached in (True, False):
            way.cuts.extend(
                [None, *(dice.choice([0, 40, 170, 300, 5000, 50_000]) for _ in range(9))]
            )
            process = await box.start(shell="seq 1 30000; seq 1 9 >&2", detached=detached)
            got = {Stdout: b"", Stderr: b""}
            async for event in (output := process.follow()):
                got[type(event)] += event.data
            assert got[Stdout] == NUMBERS
            assert got[Stderr] == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
            assert (output.result.exit_code, output.gaps) == (0, [])
            way.cuts.clear()
    assert told


@on_backends
async def test_52_53_exec_survives_broken_connections_and_runs_once(way: Way, tmp_path) -> None:
    dice = random.Random(53)
    script = f"echo x >> {tmp_path}/runs; seq 1 30000; cat; exit 7"
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        for turn in range(1, 7):
            way.cuts.extend(dice.choice([0, 40, 200, 3000, 60_000]) for _ in range(5))
            result = await box.run(script, stdin=b"in")
            assert (result.exit_code, result.stdout) == (7, NUMBERS + b"in")
            assert not result.stdout_truncated
            assert len((tmp_path / "runs").read_text().split()) == turn
            way.cuts.clear()


@on_backends
async def test_52_start_with_a_lost_answer_starts_once(way: Way, tmp_path) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        way.cuts.extend([0, 10, 100])
        process = await box.start(shell=f"echo x >> {tmp_path}/runs", stdin="in")
        assert (await process.wait()).ok
        assert (tmp_path / "runs").read_text() == "x\n"
        with pytest.raises(errors.ConflictError):
            await box.start(["false"], exec_id=process.exec_id)


@on_backends
async def test_26_stdin_arrives_once_though_answers_are_lost(way: Way) -> None:
    data = bytes(range(256)) * 2048
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = await box.start(["cat"], stdin="first ", stdin_open=True)
        way.cuts.extend([0, None, 0, 30, None, 5])
        await process.write(data)
        await box.process(process.exec_id).write(" last")
        await process.close_stdin()
        assert (await process.wait()).stdout == b"first " + data + b" last"
        with pytest.raises(errors.ConflictError):
            await process.write("late")
        closed = await box.start(["cat"])
        with pytest.raises(errors.ConflictError):
            await closed.write("x")


@on_backends
async def test_26_signals_and_the_end(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = await box.start(shell="trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done")
        async with process.follow() as output:
            assert await anext(output) == Stdout(b"up\n")
        await process.signal("USR1")
        assert (await process.wait()).exit_code == 9
        with pytest.raises(errors.ConflictError):
            await process.signal(10)
        mark = f"mark-{uuid.uuid4().hex}"
        tree = await box.start(shell=f"setsid sh -c 'sleep 60; : {mark}' & wait")
        await tree.kill()
        await tree.kill()
        assert (await tree.wait()).signal == 15
        assert await gone(mark)


@on_backends
async def test_17_leaving_does_nothing_to_a_detached_command(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        process = await client.attach(SANDBOX).start(shell="echo a; sleep 0.4; echo b")
        async with process.follow() as output:
            assert await anext(output) == Stdout(b"a\n")
        assert (await process.wait()).stdout == b"a\nb\n"


@on_backends
async def test_20_gaps_are_told(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        process = await client.attach(SANDBOX).start(
            shell="head -c 4000000 /dev/zero", output_limit=1_500_000
        )
        await process.wait()
        size = 0
        async for event in (output := process.follow()):
            size += len(event.data)
        assert size == 1_500_000
        assert output.gaps == [Gap("stdout", 750_000, 3_250_000)]
        assert output.result.stdout_truncated


@on_backends
async def test_a_command_that_is_not_there(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        process = client.attach(SANDBOX).process("nobody")
        for ask in (process.refresh, process.wait, process.close_stdin):
            with pytest.raises(errors.NotFoundError):
                await ask()
        with pytest.raises(errors.NotFoundError):
            await anext(process.follow())
        await process.kill()
        for bad in ("..", "a/b", ""):
            with pytest.raises(errors.BadRequestError):
                client.attach(SANDBOX).process(bad)
        with pytest.raises(TypeError, match="bytes or text"):
            await client.attach(SANDBOX).start(["cat"], stdin=[b"x"])
        with pytest.raises(TypeError, match="either"):
            await client.attach(SANDBOX).start()


@on_backends
async def test_53_tries_are_bounded(way: Way) -> None:
    told: list[str] = []
    limits = Limits(retry_s=0.4)
    async with Client(
        way.url, TOKEN, limits=limits, on_retry=lambda r: told.append(r.call)
    ) as client:
        process = await client.attach(SANDBOX).start(["sleep", "5"])
        way.cuts.extend([190] * 50)
        with pytest.raises(errors.OutcomeUnknownError):
            async for _ in process.follow():
                pass
        assert 1 <= len(told) < 20
        way.cuts.clear()
        await process.kill()


async def gone(mark: str) -> bool:
    for _ in range(300):
        if not processes_with(mark):
            return True
        await anyio.sleep(0.01)
    return False
