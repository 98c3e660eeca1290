# Written by scripts/unasync.py from tests/clients/jobs_async/whole.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""What people do with a client, against whatever gateway it was given: each job asks for what it needs and lets go of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandman import errors
from sandman.sync import CommandError, Stderr, Stdout

if TYPE_CHECKING:
    from pathlib import Path

    from sandman.sync import Client, Sandbox

WAIT_S = 120.0
COUNT = 3
LINE = b"0123456789abcde\n"
LINES = 20_000


def commands(client: Client, image: str) -> None:
    """As a list, as a shell's line, streamed, too long, and in the background."""
    with client.sandbox(image=image, env={"COLOUR": "blue"}, wait_s=WAIT_S) as box:
        result = box.exec(["sh", "-c", "cat; echo $COLOUR; echo late >&2; exit 3"], stdin=b"in ")
        assert (result.stdout, result.stderr, result.exit_code) == (b"in blue\n", b"late\n", 3)
        with pytest.raises(CommandError) as failed:
            box.run("exit 4", check=True)
        assert failed.value.result.exit_code == 4
        assert (box.run("sleep 60", timeout_s=0.3)).timed_out
        _streamed(box)
        _in_the_background(box)
        _in_a_terminal(box)
        _in_a_session(box)


def _streamed(box: Sandbox) -> None:
    out, err = b"", b""
    script = f"i=0; while [ $i -lt {LINES} ]; do echo {LINE.decode().strip()}; i=$((i+1)); done; echo x >&2"
    with box.stream(["sh", "-c", script]) as stream:
        for event in stream:
            match event:
                case Stdout(data):
                    out += data
                case Stderr(data):
                    err += data
    assert out == LINE * LINES
    assert (err, stream.result.exit_code) == (b"x\n", 0)


def _in_the_background(box: Sandbox) -> None:
    process = box.start(["sh", "-c", "read a; echo got $a"], detached=True, stdin_open=True)
    assert process.exec_id in {one.exec_id for one in box.processes()}
    again = box.process(process.exec_id)
    again.write(b"this\n")
    again.close_stdin()
    said = b""
    with again.follow() as follow:
        for event in follow:
            said += event.data
    assert (said, follow.gaps) == (b"got this\n", [])
    assert (process.wait()).exit_code == 0
    asleep = box.start(["sleep", "600"], detached=True)
    asleep.kill()
    assert (asleep.wait()).signal in (9, 15)


def _in_a_terminal(box: Sandbox) -> None:
    with box.terminal(
        ["sh", "-c", "read line; echo so $line; tty >/dev/null && exit 7"]
    ) as terminal:
        terminal.write("it is\n")
        said = b""
        for data in terminal:
            said += data
    assert b"so it is\r\n" in said
    assert terminal.result.exit_code == 7


def _in_a_session(box: Sandbox) -> None:
    with box.session("main", cwd="/") as session:
        assert (session.run("cd /tmp; kept=here")).ok
        assert (session.run("echo $PWD $kept")).output_text == "/tmp here\n"


def files(client: Client, image: str, here: Path) -> None:
    """Bytes, metadata, and a tree up and down again."""
    with client.sandbox(image=image, wait_s=WAIT_S) as box:
        files, data = box.files, bytes(range(256)) * 4096
        assert (files.write("/tmp/work/a", data, mode=0o640)).size == len(data)
        assert files.read("/tmp/work/a") == data
        assert oct((files.stat("/tmp/work/a")).mode & 0o777) == "0o640"
        files.move("/tmp/work/a", "/tmp/work/b")
        assert [entry.path.rpartition("/")[2] for entry in files.list("/tmp/work")] == ["b"]
        assert not files.exists("/tmp/work/a")
        with pytest.raises(errors.PathNotFoundError, match="/tmp/work/a"):
            files.read("/tmp/work/a")
        _tree(box, here)
        files.delete("/tmp/work", recursive=True)
        assert not files.exists("/tmp/work")


def _tree(box: Sandbox, here: Path) -> None:
    (here / "up" / "deep").mkdir(parents=True)
    (here / "up" / "deep" / "one").write_bytes(LINE * 1000)
    (here / "up" / "tool").write_text("#!/bin/sh\necho ran\n")
    (here / "up" / "tool").chmod(0o755)
    told: list[int] = []
    sent = box.files.upload_dir(here / "up", "/tmp/work/tree", progress=lambda n, _: told.append(n))
    assert (sent.bytes, told == sorted(told)) == (len(LINE) * 1000 + 19, True)
    assert (box.exec(["/tmp/work/tree/tool"])).stdout == b"ran\n"
    box.files.download_dir("/tmp/work/tree", here / "down")
    assert (here / "down" / "deep" / "one").read_bytes() == LINE * 1000
    assert (here / "down" / "tool").stat().st_mode & 0o777 == 0o755


def several(client: Client, image: str) -> None:
    """A gang, a run as a whole, and what was prepared ahead."""
    said = set()
    with client.sandboxes(COUNT, gang=True, image=image, run="job-many", wait_s=WAIT_S) as batch:
        for box in batch:
            said.add((box.exec(["cat", "/proc/sys/kernel/random/boot_id"])).exit_code)
            assert box.info.id in {one.id for one in client.list("job-many")}
    assert (said, list(batch.errors)) == ({0}, [])
    assert client.list("job-many") == []
    one = client.create(image=image, run="job-run", wait_s=WAIT_S)
    same = client.get(one.id)
    assert (same.exec(["true"])).ok
    assert client.release_run("job-run") == 1
    one.release()


def ahead(client: Client, image: str) -> None:
    """A reservation with a step: what was prepared is handed out with it done."""
    steps = [{"exec": {"argv": ["sh", "-c", "echo done > /tmp/prepared"]}}]
    kept = client.reserve(image=image, count=1, for_s=120, prepare=steps)
    assert (kept.wait(WAIT_S)).ready == 1
    with client.sandbox(image=image, prepare=steps, wait_s=WAIT_S) as box:
        assert box.files.read("/tmp/prepared") == b"done\n"
        assert (kept.refresh()).used == 1
    kept.cancel()


def ends(client: Client, image: str) -> None:
    """A sandbox that ends is told as what it was, and a server that is not there."""
    box = client.create(image=image, heartbeat=False, max_s=2, wait_s=WAIT_S)
    with box.http(8000) as server:
        with pytest.raises(errors.PortClosedError):
            server.get("/")
    pools, standing = client.pools(), client.overview()
    assert box.info.pool in {pool.name for pool in pools}
    assert standing.sandboxes >= 1
    assert (box.exec(["sleep", "3"])).ok  # Begun in time: it may end.
    with pytest.raises(errors.ExpiredError):
        box.exec(["true"])
    box.release()
