"""A terminal between tasks: one reads while others type, and any of them may be cancelled."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio
import pytest

from sandman import names, websocket
from sandman.client import Client, Limits, Retry, Terminal
from sandman.errors import ConflictError, UnreachableError
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN

if TYPE_CHECKING:
    import httpcore

RAW = "stty raw -echo; echo ready; "
SIZE = 400_000


async def digest(term: Terminal) -> str:
    """What it shows last."""
    shown = b""
    async for data in term:
        shown += data
    return shown.split()[-2].decode()


@on_backends
async def test_a_reader_and_a_writer_over_a_line_that_breaks(way: Way) -> None:
    dice = random.Random(3)
    typed = dice.randbytes(SIZE)
    shell = RAW + f"head -c {SIZE} | (seq 1 2000; sha256sum); sleep 0.1"
    async with Client(way.url, TOKEN) as client:
        term = await client.attach(SANDBOX).open_terminal(shell=shell)
        assert (await term.read(10)).startswith(b"ready\n")
        way.cuts.extend([600, 2000, 5000, 700])
        await term.aclose()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(term.write, typed)
            assert await digest(term) == hashlib.sha256(typed).hexdigest()
        assert len(way.cuts) < 4


@pytest.mark.parametrize(
    ("code", "comes_back"), [(names.CLOSE_OUT_OF_REACH, False), (1011, True), (1012, True)]
)
async def test_a_sandbox_that_the_gateway_has_looked_for_is_not_looked_for_again(
    autojump_clock, code: int, comes_back: bool
) -> None:
    """Its patience counts from when something last came."""
    told: list[Retry] = []
    transport = SimpleNamespace(settings=SimpleNamespace(limits=Limits()), tell=told.append)
    term = Terminal(transport, SANDBOX, SimpleNamespace(path="/x"))  # type: ignore[arg-type]
    term._silent_since = anyio.current_time()
    await anyio.sleep(27.0)
    term._answer = SimpleNamespace()  # type: ignore[assignment]
    transport.end = lambda *_args, **_options: anyio.lowlevel.checkpoint()
    with pytest.raises(UnreachableError) as caught:
        term._screen.feed(websocket.encode_close(code, "unreachable: x"))
    error = caught.value
    if comes_back:
        assert await term._after(error) > 0
        assert len(told) == 1
    else:
        with pytest.raises(UnreachableError):
            await term._after(error)
        assert not told
    term._screen.connected()
    assert term._screen.is_out_of_reach is False


@on_backends
async def test_a_reader_that_is_cancelled_again_and_again_loses_nothing(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        shell = "for i in $(seq 1 40); do echo line $i; sleep 0.01; done"
        term = await client.attach(SANDBOX).open_terminal(shell=shell)
        # Connected first: a connecting that is cancelled may leave a socket to asyncio's care.
        shown, is_over = await term.read(), False
        while not is_over:
            with anyio.move_on_after(0.015):
                data = await term.read()
                shown, is_over = shown + data, not data
        assert shown == "".join(f"line {i}\r\n" for i in range(1, 41)).encode()


@on_backends
async def test_a_writer_that_is_cancelled_breaks_no_frame(way: Way) -> None:
    """What was taken of its bytes arrives whole, and what is typed after them, too."""
    async with Client(way.url, TOKEN) as client:
        shell = RAW + "sleep 0.5; head -c 1500000 | tr -d x"
        term = await client.attach(SANDBOX).open_terminal(shell=shell)
        assert await term.read(10) == b"ready\n"
        with anyio.move_on_after(0.2) as scope:
            await term.write(b"x" * 1_400_000)
        assert scope.cancelled_caught
        await term.write(b"|")
        with pytest.raises(ConflictError, match="has ended"):
            await term.write(b"x" * 5_000_000)
        shown = b""
        async for data in term:
            shown += data
        assert shown == b"|"
        assert term.result.exit_code == 0


@on_backends
async def test_a_line_that_breaks_under_a_writer_is_made_anew(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        term = await client.attach(SANDBOX).open_terminal(shell=RAW + "head -c 3", detached=True)
        assert await term.read(10) == b"ready\n"
        stream: httpcore.AsyncNetworkStream = term._answer.response.extensions["network_stream"]  # type: ignore[union-attr]
        await stream.aclose()
        await term.write(b"abc")
        assert await term.read(10) == b"abc"
        await term.aclose()


@on_backends
async def test_silence_is_a_broken_line(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandman._async import terminal  # noqa: PLC0415

    monkeypatch.setattr(terminal, "EXEC_SILENCE_S", 0.2)
    told = []
    async with Client(way.url, TOKEN, on_retry=told.append) as client:
        term = await client.attach(SANDBOX).open_terminal(shell="echo a; sleep 0.5; echo b")
        assert await term.read(10) == b"a\r\n"
        with suppress(TimeoutError):
            await term.read(0.05)
        assert await term.read(10) == b"b\r\n"
        await term.aclose()
    assert "silent" in str(told[0].error)
