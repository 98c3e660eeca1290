"""A session whose caller is cancelled. Point 18."""

from __future__ import annotations

import threading
import uuid

import anyio
import pytest

from sandman import errors
from sandman._async.session import Session, list_sessions, open_session
from sandman.client import Client
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with


@on_backends
async def test_18_a_cancelled_run_is_interrupted_and_the_session_stays(way: Way) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    async with (
        Client(way.url, TOKEN) as client,
        await client.attach(SANDBOX).session(f"s-{mark[-8:]}", rc=False) as session,
    ):
        await session.run("x=kept")
        with anyio.move_on_after(0.4):
            await session.run(f"sh -c 'sleep 60; : {mark}'")
        for _ in range(100):
            if (await session.refresh()).state == "idle":
                break
            await anyio.sleep(0.05)
        assert not processes_with(mark)
        assert (await session.run("echo $x")).output == b"kept\n"


@on_backends
async def test_18_a_cancelled_start_leaves_no_shell(way: Way) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    async with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        way.holds.append(held := threading.Event())
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_once, scope, held)
                await box.session(name, rc=False)
        assert scope.cancelled_caught
        assert name not in {one.name for one in await box.sessions()}
        async with await box.session(name, rc=False) as again:
            assert (await again.run("echo new")).output == b"new\n"


@on_backends
async def test_18_a_cancelled_start_closes_nobody_elses_session(way: Way) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    async with (
        Client(way.url, TOKEN) as client,
        await client.attach(SANDBOX).session(name, rc=False) as session,
    ):
        await session.run("x=kept")
        way.holds.append(held := threading.Event())
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_once, scope, held)
                await client.attach(SANDBOX).session(name, rc=False)
        assert scope.cancelled_caught
        assert way.calls[-1].startswith("DELETE ")
        assert (await session.run("echo $x")).output == b"kept\n"


async def _cancel_once(scope: anyio.CancelScope, held: threading.Event) -> None:
    """Cancel when the answer has come as far as the way, which keeps it."""
    await anyio.to_thread.run_sync(held.wait, abandon_on_cancel=True)
    scope.cancel()


class Odd:
    """A way on which something else answers than a sandbox."""

    async def json(self, call):
        return {"sandwich": call.method}


@on_backends
async def test_answers_that_are_none_of_a_sandbox() -> None:
    odd = Odd()
    session = Session(odd, "box", "/v1/sandboxes/box", "one")
    for call in (
        session.refresh(),
        session.run("true"),
        open_session(odd, "box", "/x", "one", {}),
        list_sessions(odd, "box", "/x"),
    ):
        with pytest.raises(errors.InternalError):
            await call
