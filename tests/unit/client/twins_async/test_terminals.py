"""Terminals, with the real daemon at the end of a bad line."""

from __future__ import annotations

import random

import anyio
import pytest

from sandman import errors
from sandman.client import Client, Limits, TerminalSpec
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with, wait_until

NUMBERS = "".join(f"{n}\r\n" for n in range(1, 20_001)).encode()
RAW = "stty raw -echo; echo ready; "


@on_backends
async def test_type_and_read_like_a_person(way: Way) -> None:
    size = TerminalSpec(rows=30, cols=100, term="vt100")
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        async with box.terminal(["sh"], size=size, env={"PS1": "$ "}) as term:
            shown = await term.read(10)
            while not shown.endswith(b"$ "):
                shown += await term.read(10)
            assert term.offset == len(shown)
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = term.result
            await term.write("stty size; echo $TERM; exit 7\r")
            async for data in term:
                shown += data
        assert b"\r\n30 100\r\nvt100\r\n" in shown
        assert (term.result.exit_code, term.result.stdout) == (7, b"")
        assert await term.read() == b""
        with pytest.raises(errors.ConflictError, match="has ended"):
            await term.write("x")
        with pytest.raises(errors.ConflictError):
            await term.resize(1, 1)
        assert "offset=" in repr(term)
        assert (await term.process.refresh()).terminal


@on_backends
async def test_the_images_shell_and_another_size(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        term = await client.attach(SANDBOX).open_terminal()
        async with term:
            await term.write("tty -s && echo $((6 * 7))\r")
            shown = b""
            while b"42\r\n" not in shown:
                shown += await term.read(10)
            await term.resize(11, 22)
            await term.write(b"stty size; exit\r")
            while data := await term.read(10):
                shown += data
            assert b"11 22\r\n" in shown


@on_backends
async def test_nothing_to_read_in_time(way: Way) -> None:
    async with (
        Client(way.url, TOKEN) as client,
        client.attach(SANDBOX).terminal(shell="sleep 0.5; echo late") as term,
    ):
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            await term.read(0.1)
        assert await term.read(10) == b"late\r\n"


@on_backends
async def test_leaving_the_block_ends_what_runs(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        async with client.attach(SANDBOX).terminal(shell="trap '' TERM; sleep 61; :") as term:
            await term.write("x")
        result = await term.process.wait()
        assert result.signal == 1


@on_backends
async def test_output_comes_whole_over_a_line_that_breaks_anywhere(way: Way) -> None:
    dice = random.Random(6)
    told: list[str] = []
    async with Client(way.url, TOKEN, on_retry=lambda r: told.append(r.call)) as client:
        way.cuts.extend([None, *(dice.choice([0, 40, 250, 400, 5000, 30_000]) for _ in range(5))])
        term = await client.attach(SANDBOX).open_terminal(shell="seq 1 20000")
        got = b""
        async for data in term:
            got += data
        assert got == NUMBERS
        assert (term.result.exit_code, term.gaps) == (0, [])
    assert told
    assert all("terminal" in call for call in told)


@on_backends
async def test_what_is_typed_is_taken_once_over_a_line_that_breaks(way: Way) -> None:
    """Each connection breaks after some bytes of what comes back: what was taken is told among them."""
    dice = random.Random(9)
    async with Client(way.url, TOKEN) as client:
        size = 600_000
        typed = dice.randbytes(size)
        box = client.attach(SANDBOX)
        term = await box.open_terminal(shell=RAW + f"head -c {size} | sha256sum; sleep 0.1")
        way.cuts.extend(dice.choice([300, 400, 500, 700, 1000]) for _ in range(6))
        assert await term.read(10) == b"ready\n"
        for start in range(0, size, 100_000):
            await term.write(typed[start : start + 100_000])
        shown = b""
        while data := await term.read(10):
            shown += data
        import hashlib  # noqa: PLC0415

        assert shown.decode().split()[0] == hashlib.sha256(typed).hexdigest()
        assert not way.cuts


@on_backends
async def test_come_back_by_another_handle(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        first = await box.open_terminal(shell=RAW + "cat", detached=True)
        assert await first.read(10) == b"ready\n"
        await first.write("abc")
        assert await first.read(10) == b"abc"
        second = box.attach_terminal(first.process.exec_id, first.offset)
        await second.write("def")
        assert await second.read(10) == b"def"
        with pytest.raises(errors.ConflictError, match="taken"):
            await first.read(10)
        await second.aclose()
        third = box.attach_terminal(first.process.exec_id)
        assert await third.read(10) == b"ready\nabcdef"
        await third.process.kill()
        assert await third.read(10) == b""
        assert third.result.signal == 1


@on_backends
async def test_much_is_typed_while_much_is_shown(way: Way) -> None:
    size = 1_500_000
    async with Client(way.url, TOKEN) as client:
        term = await client.attach(SANDBOX).open_terminal(shell=RAW + f"head -c {size}")
        assert await term.read(10) == b"ready\n"
        await term.write(b"x" * size)
        shown = bytearray()
        async for data in term:
            shown += data
        assert shown.count(b"x") == len(shown) == size


@on_backends
async def test_what_cannot_be(way: Way) -> None:
    async with Client(way.url, TOKEN, limits=Limits(retry_s=0.5)) as client:
        box = client.attach(SANDBOX)
        with pytest.raises(TypeError, match="no stdin"):
            await box.open_terminal(["cat"], stdin=b"x")
        with pytest.raises(TypeError, match="either"):
            await box.open_terminal(["cat"], shell="cat")
        with pytest.raises(errors.NotFoundError):
            await box.attach_terminal("never-there").read()
        plain = await box.start(["true"])
        with pytest.raises(errors.ConflictError, match="no terminal"):
            await box.attach_terminal(plain.exec_id).read()
        with pytest.raises(errors.BadRequestError, match="rows"):
            await box.open_terminal(size=TerminalSpec(rows=0))
        term = await box.open_terminal(["no-such-program"])
        assert await term.read() == b"no-such-program: not found in PATH\n"
        assert await term.read() == b""
        assert term.result.start_error == "not_found"


@on_backends
async def test_a_line_that_stays_broken_is_given_up(way: Way) -> None:
    async with Client(way.url, TOKEN, limits=Limits(retry_s=0.5)) as client:
        term = await client.attach(SANDBOX).open_terminal(shell="echo; sleep 30", detached=True)
        assert await term.read() == b"\r\n"
        way.cuts.extend([0] * 50)
        await term.aclose()
        with pytest.raises(errors.UnreachableError):
            await term.read()
        way.cuts.clear()
        await term.process.kill()


@on_backends
async def test_who_answers_otherwise_is_no_gateway(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        term = await client.attach(SANDBOX).open_terminal(shell="sleep 30", detached=True)
        way.edits.append((b"Sec-WebSocket-Accept: ", b"Sec-WebSocket-Accept: x"))
        with pytest.raises(errors.InternalError, match="not Sandman's"):
            await term.read()
        way.edits.clear()
        await term.process.kill()
        assert wait_until(lambda: not processes_with(term.process.exec_id))


@on_backends
async def test_a_timeout_leaves_nothing_half_done(way: Way) -> None:
    async with (
        Client(way.url, TOKEN) as client,
        client.attach(SANDBOX).terminal(shell=RAW + "cat") as term,
    ):
        shown = await term.read(10)
        for number in range(20):
            await term.write(f"{number};")
            try:
                shown += await term.read(0.01)
            except TimeoutError:
                await anyio.sleep(0)
        while not shown.endswith(b";19;"):
            shown += await term.read(10)
        assert shown == b"ready\n" + "".join(f"{n};" for n in range(20)).encode()
