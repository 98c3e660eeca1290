"""Terminals through the real gateway to the real daemon, over a line that breaks."""

from __future__ import annotations

import hashlib
import random

import pytest
import trio

from sandman import errors
from sandman.client import Client, TerminalSpec
from tests.flow.test_processes import bad_line, random_cuts

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
RAW = "stty raw -echo; echo ready; "
NUMBERS = "".join(f"{n}\n" for n in range(1, 40_001)).encode()


async def test_type_read_resize_and_end(bed):
    made = await bed.allocate()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        size = TerminalSpec(rows=30, cols=90)
        async with client.attach(made["id"]).terminal(["sh"], size=size, env={"PS1": ":"}) as term:
            shown = b""
            while not shown.endswith(b":"):
                shown += await term.read(10)
            await term.resize(31, 91)
            await term.write("stty size; exit 7\r")
            async for data in term:
                shown += data
        assert b"31 91\r\n" in shown
        assert term.result.exit_code == 7


@pytest.mark.parametrize("seed", range(2))
async def test_output_is_whole_and_input_is_taken_once_over_a_line_that_breaks(bed, seed):
    made = await bed.allocate()
    told: list[str] = []
    size = 300_000
    typed = random.Random(seed).randbytes(size)
    async with (
        bad_line(bed.url, random_cuts(seed + 20, 6)) as url,
        Client(
            url, made["token"], ca=bed.trust, on_retry=lambda retry: told.append(retry.call)
        ) as client,
    ):
        shell = RAW + f"seq 1 40000; head -c {size} | sha256sum; sleep 0.2"
        term = await client.attach(made["id"]).open_terminal(shell=shell)
        shown = await term.read(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(term.write, typed)
            async for data in term:
                shown += data
        ending = hashlib.sha256(typed).hexdigest() + "  -\n"
        assert shown == b"ready\n" + NUMBERS + ending.encode()
        assert (term.result.exit_code, term.gaps) == (0, [])
    assert told


async def test_refusals_arrive_as_what_they_are(bed):
    made = await bed.allocate()
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        box = client.attach(made["id"])
        with pytest.raises(errors.NotFoundError):
            await box.attach_terminal("never").read()
        plain = await box.start(["true"])
        with pytest.raises(errors.ConflictError, match="no terminal"):
            await box.attach_terminal(plain.exec_id).read()
    async with Client(bed.url, bed.credentials.texts["zeta"], ca=bed.trust) as client:
        with pytest.raises(errors.SandmanError) as caught:
            await client.attach(made["id"]).attach_terminal("x").read()
        assert caught.value.status in {403, 404}


async def test_one_connection_takes_over_from_another(bed):
    made = await bed.allocate()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        box = client.attach(made["id"])
        first = await box.open_terminal(shell=RAW + "cat", detached=True)
        assert await first.read(10) == b"ready\n"
        second = box.attach_terminal(first.process.exec_id, first.offset)
        await second.write("it")
        assert await second.read(10) == b"it"
        with pytest.raises(errors.ConflictError, match="taken"):
            await first.read(10)
        await second.process.kill()
        assert await second.read(10) == b""
        assert second.result.signal == 1


async def test_a_terminal_whose_sandbox_died_says_so(bed):
    made = await bed.allocate()
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        term = await client.attach(made["id"]).open_terminal(shell="echo; sleep 60")
        assert await term.read(10) == b"\r\n"
        # At once, as process 1 ends: told to end, one that is not would first end the command, and say so.
        bed.daemon.kill()
        bed.daemon.restart()
        with pytest.raises(errors.DiedError):
            await term.read(20)
