"""What people do with a client, against whatever gateway it was given: each job asks for what it needs and lets go of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandman import errors
from sandman.client import CommandError, Stderr, Stdout

if TYPE_CHECKING:
    from pathlib import Path

    from sandman.client import Client, Sandbox

WAIT_S = 120.0
COUNT = 3
LINE = b"0123456789abcde\n"
LINES = 20_000


async def commands(client: Client, image: str) -> None:
    """As a list, as a shell's line, streamed, too long, and in the background."""
    async with client.sandbox(image=image, env={"COLOUR": "blue"}, wait_s=WAIT_S) as box:
        result = await box.exec(
            ["sh", "-c", "cat; echo $COLOUR; echo late >&2; exit 3"], stdin=b"in "
        )
        assert (result.stdout, result.stderr, result.exit_code) == (b"in blue\n", b"late\n", 3)
        with pytest.raises(CommandError) as failed:
            await box.run("exit 4", check=True)
        assert failed.value.result.exit_code == 4
        assert (await box.run("sleep 60", timeout_s=0.3)).timed_out
        await _streamed(box)
        await _in_the_background(box)
        await _in_a_terminal(box)
        await _in_a_session(box)


async def _streamed(box: Sandbox) -> None:
    out, err = b"", b""
    script = f"i=0; while [ $i -lt {LINES} ]; do echo {LINE.decode().strip()}; i=$((i+1)); done; echo x >&2"
    async with box.stream(["sh", "-c", script]) as stream:
        async for event in stream:
            match event:
                case Stdout(data):
                    out += data
                case Stderr(data):
                    err += data
    assert out == LINE * LINES
    assert (err, stream.result.exit_code) == (b"x\n", 0)


async def _in_the_background(box: Sandbox) -> None:
    process = await box.start(["sh", "-c", "read a; echo got $a"], detached=True, stdin_open=True)
    assert process.exec_id in {one.exec_id for one in await box.processes()}
    again = box.process(process.exec_id)
    await again.write(b"this\n")
    await again.close_stdin()
    said = b""
    async with again.follow() as follow:
        async for event in follow:
            said += event.data
    assert (said, follow.gaps) == (b"got this\n", [])
    assert (await process.wait()).exit_code == 0
    asleep = await box.start(["sleep", "600"], detached=True)
    await asleep.kill()
    assert (await asleep.wait()).signal in (9, 15)


async def _in_a_terminal(box: Sandbox) -> None:
    async with box.terminal(
        ["sh", "-c", "read line; echo so $line; tty >/dev/null && exit 7"]
    ) as terminal:
        await terminal.write("it is\n")
        said = b""
        async for data in terminal:
            said += data
    assert b"so it is\r\n" in said
    assert terminal.result.exit_code == 7


async def _in_a_session(box: Sandbox) -> None:
    async with await box.session("main", cwd="/") as session:
        assert (await session.run("cd /tmp; kept=here")).ok
        assert (await session.run("echo $PWD $kept")).output_text == "/tmp here\n"


async def files(client: Client, image: str, here: Path) -> None:
    """Bytes, metadata, and a tree up and down again."""
    async with client.sandbox(image=image, wait_s=WAIT_S) as box:
        files, data = box.files, bytes(range(256)) * 4096
        assert (await files.write("/tmp/work/a", data, mode=0o640)).size == len(data)
        assert await files.read("/tmp/work/a") == data
        assert oct((await files.stat("/tmp/work/a")).mode & 0o777) == "0o640"
        await files.move("/tmp/work/a", "/tmp/work/b")
        assert [entry.path.rpartition("/")[2] for entry in await files.list("/tmp/work")] == ["b"]
        assert not await files.exists("/tmp/work/a")
        with pytest.raises(errors.PathNotFoundError, match="/tmp/work/a"):
            await files.read("/tmp/work/a")
        await _tree(box, here)
        await files.delete("/tmp/work", recursive=True)
        assert not await files.exists("/tmp/work")


async def _tree(box: Sandbox, here: Path) -> None:
    (here / "up" / "deep").mkdir(parents=True)
    (here / "up" / "deep" / "one").write_bytes(LINE * 1000)
    (here / "up" / "tool").write_text("#!/bin/sh\necho ran\n")
    (here / "up" / "tool").chmod(0o755)
    told: list[int] = []
    sent = await box.files.upload_dir(
        here / "up", "/tmp/work/tree", progress=lambda n, _: told.append(n)
    )
    assert (sent.bytes, told == sorted(told)) == (len(LINE) * 1000 + 19, True)
    assert (await box.exec(["/tmp/work/tree/tool"])).stdout == b"ran\n"
    await box.files.download_dir("/tmp/work/tree", here / "down")
    assert (here / "down" / "deep" / "one").read_bytes() == LINE * 1000
    assert (here / "down" / "tool").stat().st_mode & 0o777 == 0o755


async def several(client: Client, image: str) -> None:
    """A gang, a run as a whole, and what was prepared ahead."""
    said = set()
    async with client.sandboxes(
        COUNT, gang=True, image=image, run="job-many", wait_s=WAIT_S
    ) as batch:
        async for box in batch:
            said.add((await box.exec(["cat", "/proc/sys/kernel/random/boot_id"])).exit_code)
            assert box.info.id in {one.id for one in await client.list("job-many")}
    assert (said, list(batch.errors)) == ({0}, [])
    assert await client.list("job-many") == []
    one = await client.create(image=image, run="job-run", wait_s=WAIT_S)
    same = await client.get(one.id)
    assert (await same.exec(["true"])).ok
    assert await client.release_run("job-run") == 1
    await one.release()


async def ahead(client: Client, image: str) -> None:
    """A reservation with a step: what was prepared is handed out with it done."""
    steps = [{"exec": {"argv": ["sh", "-c", "echo done > /tmp/prepared"]}}]
    kept = await client.reserve(image=image, count=1, for_s=120, prepare=steps)
    assert (await kept.wait(WAIT_S)).ready == 1
    async with client.sandbox(image=image, prepare=steps, wait_s=WAIT_S) as box:
        assert await box.files.read("/tmp/prepared") == b"done\n"
        assert (await kept.refresh()).used == 1
    await kept.cancel()


async def ends(client: Client, image: str) -> None:
    """A sandbox that ends is told as what it was, and a server that is not there."""
    box = await client.create(image=image, heartbeat=False, max_s=2, wait_s=WAIT_S)
    async with box.http(8000) as server:
        with pytest.raises(errors.PortClosedError):
            await server.get("/")
    pools, standing = await client.pools(), await client.overview()
    assert box.info.pool in {pool.name for pool in pools}
    assert standing.sandboxes >= 1
    assert (await box.exec(["sleep", "3"])).ok  # Begun in time: it may end.
    with pytest.raises(errors.ExpiredError):
        await box.exec(["true"])
    await box.release()
