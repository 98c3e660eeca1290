# Written by scripts/unasync.py from tests/unit/client/twins_async/test_processes.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Commands that are started and come back to, with the real daemon at the end of a bad line.

Points 17, 18, 26, 52 and 53.
"""

from __future__ import annotations

import random
import uuid

import pytest

from sandman import errors
from sandman._core import blocking as anyio
from sandman.sync import Client, Gap, Limits, Stderr, Stdout
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with

NUMBERS = "".join(f"{n}\n" for n in range(1, 30_001)).encode()


def test_26_start_and_wait(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = box.start(shell="echo out; echo err >&2; exit 3")
        assert process.info is not None
        assert process.info.detached
        result = process.wait()
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert (process.refresh()).result == result
        again = box.process(process.exec_id)
        assert "state unknown" in repr(again)
        assert again.wait() == result
        assert "ended" in repr(again)
        assert process.exec_id in {one.exec_id for one in box.processes()}
        missing = (box.start(["no-such-program"])).wait()
        assert (missing.exit_code, missing.start_error) == (127, "not_found")


def test_26_follow_gives_events_then_the_result(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        process = client.attach(SANDBOX).start(shell="echo a; sleep 0.2; echo b >&2; exit 5")
        seen = []
        with process.follow() as output:
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = output.result
            while (event := next(output, None)) is not None:
                seen.append(event)
        assert seen == [Stdout(b"a\n"), Stderr(b"b\n")]
        assert output.result.exit_code == 5
        rest = process.follow(stdout=1)
        assert next(rest) == Stdout(b"\n")
        assert next(rest) == Stderr(b"b\n")
        assert next(rest, None) is None
        assert rest.result.exit_code == 5


def test_26_53_follow_comes_back_at_any_byte(way: Way) -> None:
    dice = random.Random(26)
    told: list[str] = []
    with Client(way.url, TOKEN, on_retry=lambda r: told.append(r.call)) as client:
        box = client.attach(SANDBOX)
        for detached in (True, False):
            way.cuts.extend(
                [None, *(dice.choice([0, 40, 170, 300, 5000, 50_000]) for _ in range(9))]
            )
            process = box.start(shell="seq 1 30000; seq 1 9 >&2", detached=detached)
            got = {Stdout: b"", Stderr: b""}
            for event in (output := process.follow()):
                got[type(event)] += event.data
            assert got[Stdout] == NUMBERS
            assert got[Stderr] == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
            assert (output.result.exit_code, output.gaps) == (0, [])
            way.cuts.clear()
    assert told


def test_52_53_exec_survives_broken_connections_and_runs_once(way: Way, tmp_path) -> None:
    dice = random.Random(53)
    script = f"echo x >> {tmp_path}/runs; seq 1 30000; cat; exit 7"
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        for turn in range(1, 7):
            way.cuts.extend(dice.choice([0, 40, 200, 3000, 60_000]) for _ in range(5))
            result = box.run(script, stdin=b"in")
            assert (result.exit_code, result.stdout) == (7, NUMBERS + b"in")
            assert not result.stdout_truncated
            assert len((tmp_path / "runs").read_text().split()) == turn
            way.cuts.clear()


def test_52_start_with_a_lost_answer_starts_once(way: Way, tmp_path) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        way.cuts.extend([0, 10, 100])
        process = box.start(shell=f"echo x >> {tmp_path}/runs", stdin="in")
        assert (process.wait()).ok
        assert (tmp_path / "runs").read_text() == "x\n"
        with pytest.raises(errors.ConflictError):
            box.start(["false"], exec_id=process.exec_id)


def test_26_stdin_arrives_once_though_answers_are_lost(way: Way) -> None:
    data = bytes(range(256)) * 2048
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = box.start(["cat"], stdin="first ", stdin_open=True)
        way.cuts.extend([0, None, 0, 30, None, 5])
        process.write(data)
        box.process(process.exec_id).write(" last")
        process.close_stdin()
        assert (process.wait()).stdout == b"first " + data + b" last"
        with pytest.raises(errors.ConflictError):
            process.write("late")
        closed = box.start(["cat"])
        with pytest.raises(errors.ConflictError):
            closed.write("x")


def test_26_signals_and_the_end(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        process = box.start(shell="trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done")
        with process.follow() as output:
            assert next(output) == Stdout(b"up\n")
        process.signal("USR1")
        assert (process.wait()).exit_code == 9
        with pytest.raises(errors.ConflictError):
            process.signal(10)
        mark = f"mark-{uuid.uuid4().hex}"
        tree = box.start(shell=f"setsid sh -c 'sleep 60; : {mark}' & wait")
        tree.kill()
        tree.kill()
        assert (tree.wait()).signal == 15
        assert gone(mark)


def test_17_leaving_does_nothing_to_a_detached_command(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        process = client.attach(SANDBOX).start(shell="echo a; sleep 0.4; echo b")
        with process.follow() as output:
            assert next(output) == Stdout(b"a\n")
        assert (process.wait()).stdout == b"a\nb\n"


def test_20_gaps_are_told(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        process = client.attach(SANDBOX).start(
            shell="head -c 4000000 /dev/zero", output_limit=1_500_000
        )
        process.wait()
        size = 0
        for event in (output := process.follow()):
            size += len(event.data)
        assert size == 1_500_000
        assert output.gaps == [Gap("stdout", 750_000, 3_250_000)]
        assert output.result.stdout_truncated


def test_a_command_that_is_not_there(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        process = client.attach(SANDBOX).process("nobody")
        for ask in (process.refresh, process.wait, process.close_stdin):
            with pytest.raises(errors.NotFoundError):
                ask()
        with pytest.raises(errors.NotFoundError):
            next(process.follow())
        process.kill()
        for bad in ("..", "a/b", ""):
            with pytest.raises(errors.BadRequestError):
                client.attach(SANDBOX).process(bad)
        with pytest.raises(TypeError, match="bytes or text"):
            client.attach(SANDBOX).start(["cat"], stdin=[b"x"])
        with pytest.raises(TypeError, match="either"):
            client.attach(SANDBOX).start()


def test_53_tries_are_bounded(way: Way) -> None:
    told: list[str] = []
    limits = Limits(retry_s=0.4)
    with Client(way.url, TOKEN, limits=limits, on_retry=lambda r: told.append(r.call)) as client:
        process = client.attach(SANDBOX).start(["sleep", "5"])
        way.cuts.extend([190] * 50)
        with pytest.raises(errors.OutcomeUnknownError):
            for _ in process.follow():
                pass
        assert 1 <= len(told) < 20
        way.cuts.clear()
        process.kill()


def gone(mark: str) -> bool:
    for _ in range(300):
        if not processes_with(mark):
            return True
        anyio.sleep(0.01)
    return False
