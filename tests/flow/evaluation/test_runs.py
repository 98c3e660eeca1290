"""Evaluations from end to end in local mode: a real task by SWE-bench's flow, and what can go wrong on the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from sandman.client import Client
from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.journal import Journal
from sandman.sync import Client as SyncClient
from sandman.wire import DEFAULT_OUTPUT_LIMIT
from tests.fakes.cluster import TASK
from tests.flow.local_mode import Gateway, sleepers
from tests.tasks import catalog, fetch, small
from tests.tasks.rows import RealRow
from tests.tasks.small import END, RESULT, SMALL, START, TOP

# Whole programs start here, and on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(180)


ROOT = Path(__file__).parents[3]
row = partial(small.row, TASK)


def patches(*texts: str, name: str = "small") -> list[dict[str, str]]:
    return [{"instance_id": name, "model_patch": t, "model_name_or_path": "m"} for t in texts]


# --- a real task ---


async def test_a_real_task(client, tmp_path):
    """The reference solution resolves it; nothing, no patch at all, and one that does not fit do not, and say so."""
    real = RealRow(fetch.materials(catalog.H11), TASK)
    rows = [real.row()]
    name = rows[0]["instance_id"]
    how = {"workdir": real.workdir, "setup": real.setup, "scrub_git": True, "grader": "own"}
    wrong = real.row()["patch"].replace("h11/", "other/")
    evaluate = client.evaluate
    found = {}

    async def go(kind, predictions):
        found[kind] = await evaluate(rows, predictions, tmp_path / kind, **how)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go, "gold", "gold")
        nursery.start_soon(go, "none", "none")
        nursery.start_soon(go, "wrong", patches("", wrong, name=name))
    [gold] = found["gold"].records
    assert (gold.outcome, gold.applied_by, gold.exit_code) == ("resolved", "git apply --verbose", 0)
    [none] = found["none"].records
    assert (none.outcome, none.reason, none.exit_code) == ("unresolved", "tests_failed", 1)
    assert none.failed == {"FAIL_TO_PASS": catalog.H11.fail_to_pass, "PASS_TO_PASS": ()}
    empty, unfit = found["wrong"].records
    assert (empty.outcome, empty.reason, empty.sandbox) == ("unresolved", "empty_patch", None)
    assert (unfit.outcome, unfit.reason, unfit.log) == ("unresolved", "patch_failed", None)
    assert "other/_readers.py" in unfit.detail
    place = tmp_path / "gold/logs/gold" / name / "0.0"
    log = (place / "test_output.txt").read_bytes()
    told = {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}
    assert gold.log == {"file": "test_output.txt", **told}
    report = json.loads((place / "report.json").read_text())[name]
    assert report["tests_status"]["PASS_TO_PASS"]["success"] == list(catalog.H11.pass_to_pass())
    whole = json.loads((tmp_path / "gold/report.json").read_text())
    assert (whole["resolved_ids"], whole["outcomes"]["resolved"]) == ([name], 1)


# --- the log ---


async def test_a_log_longer_than_what_is_kept_of_any_is_whole(client, tmp_path):
    lines = 1_700_000
    script = (START, f"seq {lines}", RESULT, "seq 5 >&2", END)
    report = await client.evaluate([row(*script)], "gold", tmp_path, **SMALL)
    [one] = report.records
    assert one.outcome == "resolved"
    log = (tmp_path / "logs/gold/small/0.0/test_output.txt").read_bytes()
    numbers = "".join(f"{n}\n" for n in range(1, lines + 1)).encode()
    assert numbers + b"+ cat result\nPASSED t\n+ seq 5\n1\n2\n3\n4\n5\n" in log
    assert len(log) > DEFAULT_OUTPUT_LIMIT
    assert one.log["bytes"] == len(log)


async def test_what_takes_too_long_or_writes_too_much_is_unresolved_and_says_so(client, tmp_path):
    rows = [
        row(START, RESULT, "sleep 60", END, name="slow"),
        row(START, RESULT, "yes", END, name="loud"),
    ]
    how = {**SMALL, "timeout_s": 1.0, "log_limit": 1000 * 1000}
    report = await client.evaluate(rows, "gold", tmp_path, **how)
    assert [(one.outcome, one.reason) for one in report.records] == [
        ("unresolved", "timed_out"), ("unresolved", "log_limit"),
    ]  # fmt: skip
    assert "1 s" in report.records[0].detail
    assert report.is_whole


# --- again ---


async def test_a_run_goes_on_where_it_was(client, tmp_path):
    rows = [row(name=f"task-{n}") for n in range(4)]

    class EnoughError(Exception):
        pass

    def stop(progress) -> None:
        if progress.done == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        await client.evaluate(rows, "gold", tmp_path, concurrency=1, on_progress=stop, **SMALL)
    seen = []
    report = await client.evaluate(rows, "gold", tmp_path, on_progress=seen.append, **SMALL)
    assert (seen[0].resumed, seen[0].record, seen[-1].done) == (2, None, 4)
    assert len(seen) == 3
    assert [one.outcome for one in report.records] == ["resolved"] * 4
    # What has changed since is another task.
    rows[0] = row(START, RESULT, "true", END, name="task-0")
    await client.evaluate(rows, "gold", tmp_path, on_progress=seen.append, **SMALL)
    assert seen[3].resumed == 3


async def test_a_calibration_tells_flips(client, tmp_path):
    """A test that passes in the first and the third of four runs."""
    count = tmp_path / "count"
    count.write_text("")

    async def setup(box, row) -> None:
        del row
        count.write_text(count.read_text() + "x")
        word = "PASSED" if len(count.read_text()) % 2 else "FAILED"
        await box.files.write(f"{TOP}/second", f"{word} u\n".encode())

    rows = [row(START, RESULT, "cat second", END, PASS_TO_PASS=["u"])]
    how = {**SMALL, "times": 4, "concurrency": 1, "setup": setup}
    report = await client.evaluate(rows, "gold", tmp_path / "out", **how)
    [task] = report.tasks
    assert (task.runs, task.flips, task.flaky) == (4, 2, {"u": 2})
    assert [one.outcome for one in report.records] == ["resolved", "unresolved"] * 2
    assert "flips: 2" in (tmp_path / "out/report.txt").read_text()


# --- other ways in ---


async def test_options_that_cannot_be_are_refused(client, tmp_path):
    evaluate = partial(client.evaluate, [row()], "gold", tmp_path)
    for wrong in ({"concurrency": 0}, {"times": 0}, {"retries": -1}, {"timeout_s": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await evaluate(**wrong)
    with pytest.raises(TypeError, match="unknown option 'time'"):
        await evaluate(time=3)
    with pytest.raises(TaskListError, match="parse_log_django is not known here"):
        await client.evaluate([row(log_parser="parse_log_django")], "gold", tmp_path, grader="own")
    mine = {"parse_log_django": lambda text: {"t": "PASSED"} if "PASSED t" in text else {}}
    rows = [row(log_parser="parse_log_django")]
    report = await client.evaluate(rows, "gold", tmp_path, parsers=mine, **SMALL)
    assert report.is_whole
    assert report.counts["resolved"] == 1


def test_it_runs_on_asyncio_and_without_a_loop(whole, tmp_path):
    found = whole.connection
    file = tmp_path / "ca.pem"
    file.write_text(found.ca)

    async def on_asyncio() -> None:
        async with Client(found.url, found.token, ca=file) as client:
            report = await client.evaluate([row()], "gold", tmp_path / "a", **SMALL)
        assert report.counts["resolved"] == 1

    anyio.run(on_asyncio, backend="asyncio")
    with SyncClient(found.url, found.token, ca=file) as client:
        report = client.evaluate([row()], "gold", tmp_path / "b", **SMALL)
    assert report.counts["resolved"] == 1


def test_the_command_line(whole, tmp_path):
    """Twice: the second finds all done. Without a verdict its exit code is 125."""
    setup = tmp_path / "rows.jsonl"
    script = "cd /tmp; git init -q repo 2>&1; echo '>>>>> Start Test Output'; echo PASSED t; echo '>>>>> End Test Output'"
    rows = [row(script, name="good"), small.row("nowhere.test/none:1", script, name="bad")]
    setup.write_text("".join(json.dumps(one) + "\n" for one in rows))
    predictions = tmp_path / "patches.jsonl"
    told = [{"instance_id": "good", "model_patch": ""}]
    predictions.write_text("".join(json.dumps(one) + "\n" for one in told))
    first = command(whole, "--rows", setup, "--predictions", "none", "--out", tmp_path / "out", "--workdir", "/tmp", "--cpu", "1")  # fmt: skip
    assert first.returncode == 125, first.stderr
    assert "[2/2]" in first.stderr
    assert "good resolved" in first.stderr
    assert "bad (none): resolved 0 of 1: image_" in first.stdout
    again = command(
        whole, "--rows", setup, "--predictions", "none", "--out", tmp_path / "out", "--workdir", "/tmp", "--json",
        "--cpu", "1", "--run", "again",
    )  # fmt: skip
    assert "1 of 2 are done already" in again.stderr
    assert json.loads(again.stdout)["outcomes"]["resolved"] == 1
    empty = command(whole, "--rows", setup, "--predictions", predictions, "--out", tmp_path / "b")
    assert (empty.returncode, "empty_patch" in empty.stdout) == (0, True)
    wrong = command(whole, "--rows", predictions, "--predictions", "gold", "--out", tmp_path / "c")
    assert wrong.returncode == 2
    assert "patches.jsonl:1 (good): image: is missing" in wrong.stderr


def test_interrupted_runs_leave_no_sandbox_and_go_on_later(whole, tmp_path):
    rows = [row("true", name="quick"), row("sleep 60", name="slow")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    environ = {**os.environ, **whole.environ}
    signals = {signal.SIGINT: tmp_path / "int", signal.SIGTERM: tmp_path / "term"}
    begun = {}
    for number, out in signals.items():
        words = ["--rows", tmp_path / "rows.json", "--predictions", "none", "--out", out, "-w", "/tmp", "-n", "1"]  # fmt: skip
        argv = [sys.executable, "-m", "sandman.cli", "eval", *map(str, words)]
        begun[number] = subprocess.Popen(argv, env=environ, cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while sleepers(whole) < len(begun):
            assert time.monotonic() < until
            time.sleep(0.05)
        for number, process in begun.items():
            process.send_signal(number)
            assert process.wait(60) == 128 + number
    finally:
        for process in begun.values():
            process.kill()
            process.wait()
    found = whole.connection
    with SyncClient(
        found.url, found.token, ca=ssl.create_default_context(cadata=found.ca)
    ) as client:
        assert client.list() == []
    for out in signals.values():
        with Journal(out) as journal:
            assert [key.instance_id for key in journal.records] == ["quick"]


def command(whole: Gateway, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandman.cli", "eval", *map(str, arguments)],
        env={**os.environ, **whole.environ}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=120, cwd=ROOT,
    )  # fmt: skip
