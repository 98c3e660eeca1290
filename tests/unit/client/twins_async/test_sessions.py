"""Sessions, with the real daemon at the end of a bad line. Points 18, 27 and 52."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import suppress

import pytest

from sandman import errors
from sandman.client import Client
from sandman.errors import BadRequestError
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import TOKEN as GATEWAY_TOKEN
from tests.unit.client.fake_gateway import FakeGateway, answer, hang, problem
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN

CLOSING = f"DELETE /v1/sandboxes/{SANDBOX}/sessions/one"


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


@on_backends
async def test_27_a_session_from_end_to_end(way: Way, tmp_path) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        name = fresh()
        async with await box.session(name, cwd=str(tmp_path), env={"A": "b"}, rc=False) as session:
            assert (session.info.name, session.info.state) == (name, "idle")
            assert "idle" in repr(session)
            await session.run("x=$A; cd /")
            result = await session.run("echo $x $PWD; false")
            assert (result.output_text, result.exit_code, result.ok) == ("b /\n", 1, False)
            assert result.notices_text == ""
            late = await session.run("echo so far; sleep 60", timeout_s=0.6)
            assert (late.timed_out, late.output, late.state) == (True, b"so far\n", "idle")
            assert name in {one.name for one in await box.sessions()}
            same = box.attach_session(name)
            assert "unknown" in repr(same)
            assert (await same.refresh()).pid == session.info.pid
            with pytest.raises(errors.ConflictError):
                await box.session(name)
            ended = await same.run("exit 5")
            assert (ended.state, ended.exit_code) == ("ended", 5)
            with pytest.raises(errors.ConflictError):
                await session.run("true")
        with pytest.raises(errors.NotFoundError):
            await session.refresh()
        await session.close()


@on_backends
async def test_27_a_program_that_talks(way: Way) -> None:
    async with (
        Client(way.url, TOKEN) as client,
        await client.attach(SANDBOX).session(fresh(), rc=False) as session,
    ):
        asks = "printf 'name? '; read name; echo hello $name; sleep 60"
        first = await session.run(asks, interactive=True, expect=["? "])
        assert (first.state, first.expected, first.output) == ("running", "? ", b"name? ")
        second = await session.input("you\n", expect=["hello"], timeout_s=20)
        assert second.expected == "hello"
        rest = await session.input(timeout_s=0.5)
        assert (rest.timed_out, rest.output) == (True, b" you\n")
        stopped = await session.interrupt()
        assert (stopped.state, stopped.exit_code, stopped.interrupted) == ("idle", 130, True)
        left = await session.run("echo x; sleep 60", timeout_s=0.2, on_timeout="leave")
        assert left.state == "running"
        with pytest.raises(errors.ConflictError):
            await session.run("true")


@on_backends
async def test_52_over_a_bad_line_nothing_runs_twice(way: Way) -> None:
    dice = random.Random(52)
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        way.cuts.extend([0, 60])
        async with await box.session(fresh(), rc=False) as session:
            for turn in range(1, 9):
                way.cuts.extend(dice.choice([0, 40, 150, None]) for _ in range(3))
                result = await session.run("n=$((n+1)); echo $n; seq 1 300")
                assert result.output.startswith(f"{turn}\n1\n2\n".encode())
                assert result.output.endswith(b"\n300\n")
                way.cuts.clear()
            way.cuts.clear()


@on_backends
async def test_wrong_calls_are_told_at_once(way: Way) -> None:
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        with pytest.raises(BadRequestError):
            box.attach_session("a/b")
        with pytest.raises(TypeError, match="colour"):
            await box.session(fresh(), colour="red")
        with pytest.raises(errors.PathNotFoundError):
            await box.session(fresh(), shell="no-such-shell")


@on_backends
async def test_close_takes_gone_for_closed(gateway: FakeGateway) -> None:
    async with Client(gateway.url, GATEWAY_TOKEN) as client:
        session = client.attach(SANDBOX).attach_session("one")
        for gone in (errors.NotFoundError("no"), errors.ReleasedError("no"), errors.EvictedError()):
            gateway.plan(CLOSING, problem(gone))
            await session.close()
        gateway.plan(CLOSING, problem(errors.ForbiddenError("no")))
        with pytest.raises(errors.ForbiddenError):
            await session.close()
        gateway.plan(CLOSING, answer(404))  # a proxy's: it knows of no session
        with pytest.raises(errors.CallerError):
            await session.close()
        assert len(gateway.calls(CLOSING)) == 5


@on_backends
async def test_the_blocks_own_error_is_not_replaced(gateway: FakeGateway) -> None:
    async with Client(gateway.url, GATEWAY_TOKEN) as client:
        session = client.attach(SANDBOX).attach_session("one")
        gateway.plan(CLOSING, problem(errors.ForbiddenError("no")))
        with pytest.raises(ZeroDivisionError):
            async with session:
                raise ZeroDivisionError
        gateway.plan(CLOSING, problem(errors.ForbiddenError("no")))
        with pytest.raises(errors.ForbiddenError):
            async with session:
                pass


@on_backends
async def test_the_end_of_a_block_is_of_limited_length(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandman._async.session.KILL_LIMIT_S", 0.2)
    async with Client(gateway.url, GATEWAY_TOKEN) as client:
        gateway.plan(CLOSING, hang)
        begun = time.monotonic()
        with suppress(errors.UnreachableError):  # where nothing cancels, the call itself gives up
            async with client.attach(SANDBOX).attach_session("one"):
                pass
        assert time.monotonic() - begun < 10
        assert len(gateway.calls(CLOSING)) == 1
