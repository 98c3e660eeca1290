"""The command line's verbs on commands that were started, as processes of their own, through the real gateway."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
import trio

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.flow.conftest import Bed

# Seven programs start in a test, and on a busy machine that takes its time; each has a limit of its own.
pytestmark = pytest.mark.timeout(180)


class Shell:
    """Runs `sandman …` as the tenant acme."""

    def __init__(self, bed: Bed, directory: Path) -> None:
        trust = directory / "ca.pem"
        trust.write_bytes(bed.ca.certificate)
        self._env = os.environ | {
            "SANDMAN_URL": bed.url,
            "SANDMAN_TOKEN": bed.credentials.texts["acme"],
            "SANDMAN_CA": str(trust),
        }

    async def __call__(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "sandman.cli", *arguments]
        with trio.fail_after(25):
            return await trio.run_process(
                command, env=self._env, check=False, capture_stdout=True, capture_stderr=True
            )


@pytest.fixture
def shell(bed: Bed, tmp_path: Path) -> Shell:
    return Shell(bed, tmp_path)


async def started(shell: Shell, box: str, script: str) -> str:
    begun = await shell("exec", "-d", box, "sh", "-c", script)
    assert (begun.returncode, begun.stderr) == (0, b"")
    return begun.stdout.decode().strip()


async def test_a_command_that_was_started_is_listed_and_its_output_read_again(bed, shell):
    box = (await bed.allocate())["id"]
    one = await started(shell, box, r"printf 'a\0\377\n'; echo e >&2; exit 7")
    for arguments, code in ((("-f",), 7), ((), 0), (("-f",), 7)):
        read = await shell("logs", *arguments, box, one)
        assert (read.returncode, read.stdout, read.stderr) == (code, b"a\0\xff\n", b"e\n")
    listed = (await shell("ps", box)).stdout.decode().splitlines()
    [row] = [line.split("\t") for line in listed if line.startswith(one)]
    assert (row[1], row[3:]) == ("ended", ["4", "2", "7"])
    [told] = json.loads((await shell("ps", "--json", box)).stdout)
    assert (told["exec_id"], told["result"]["exit_code"]) == (one, 7)
    assert "stdout" not in told["result"]
    lines = [
        json.loads(line) for line in (await shell("logs", "--json", box, one)).stdout.splitlines()
    ]
    assert [line for line in lines if "stderr" in line and "exec_id" not in line] == [
        {"stderr": "e\n"}
    ]
    assert {"stdout": "a\0\ufffd\n", "stdout_b64": "YQD/Cg=="} in lines
    assert (lines[-1]["exec_id"], lines[-1]["result"]["exit_code"], lines[-1]["gaps"]) == (
        one,
        7,
        [],
    )


async def test_of_one_that_runs_what_there_is_comes_at_once(bed, shell):
    box = (await bed.allocate())["id"]
    one = await started(shell, box, "echo so far; sleep 60")
    silent = await started(shell, box, "sleep 60")
    with trio.fail_after(20):
        while not (read := await shell("logs", box, one)).stdout:
            assert read.returncode == 0
    assert (read.returncode, read.stdout) == (0, b"so far\n")
    read = await shell("logs", box, silent)
    assert (read.returncode, read.stdout, read.stderr) == (0, b"", b"")
    listed = (await shell("ps", box)).stdout.decode()
    assert f"{one}\trunning\t" in listed
    assert f"{silent}\trunning\t" in listed


async def test_one_that_is_only_started_says_so_as_json(bed, shell):
    box = (await bed.allocate())["id"]
    told = json.loads((await shell("exec", "-d", "--json", box, "true")).stdout)
    assert told["sandbox"] == box
    assert f"{told['exec_id']}\t" in (await shell("ps", box)).stdout.decode()


async def test_a_command_that_is_not_there_is_said(bed, shell):
    box = (await bed.allocate())["id"]
    for arguments in (
        ("logs", box, "nobody"),
        ("logs", "-f", box, "nobody"),
        ("ps", "no-such-box"),
        ("release", "no-such-box"),
    ):
        read = await shell(*arguments)
        assert (read.returncode, read.stdout) == (125, b"")
        assert b"error: not_found:" in read.stderr
        where = f"sandman ps {box}" if box in arguments else "sandman ls"
        assert f"what to do: {where} shows".encode() in read.stderr


async def test_those_that_are_over_are_listed_with_the_reason(bed, shell):
    box = (await bed.allocate(run="r1"))["id"]
    assert (await shell("ls", "--ended")).stdout == b"id\treason\trun\tat\tdetail\n"
    assert (await shell("release", box)).returncode == 0
    again = await shell("release", box)
    assert (again.returncode, b"had ended before: released: " in again.stderr) == (0, True)
    with trio.fail_after(10):
        while box not in (shown := (await shell("ls", "--ended")).stdout.decode()):
            await trio.sleep(0.1)
    [_, row] = [line.split("\t") for line in shown.splitlines()]
    assert row[:3] == [box, "released", "r1"]
    assert (await shell("ls", "--ended", "--run", "other")).stdout.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [("-d", "-i"), ("-d", "-t")])
async def test_detached_nothing_else_goes(shell, arguments):
    assert (await shell("exec", *arguments, "box", "true")).returncode == 2
