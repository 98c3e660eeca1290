"""Cancelled at any point the client leaves nothing behind: no sandbox, no command, no connection."""

from __future__ import annotations

import gc
import socket
import ssl
import warnings

import anyio
import anyio.to_thread
import pytest

from sandman import errors
from sandman.client import Client, Limits
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import (
    TOKEN,
    FakeGateway,
    answer,
    drop,
    drop_after,
    hang,
    slowly,
)

CREATE = "POST /v1/sandboxes"

CREATIONS = {
    "while the answer is awaited, made later": [slowly(0.4)],
    "while the answer is awaited, never made": [hang],
    "after a lost answer, in the pause": [drop_after, *[answer(503, retry_after="20")] * 1],
    "after nothing came of it, in the pause": [drop, *[answer(503, retry_after="20")] * 1],
}


@pytest.mark.parametrize("case", CREATIONS)
@on_backends
async def test_creation(gateway: FakeGateway, case: str) -> None:
    async with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, *CREATIONS[case])
        with anyio.move_on_after(0.25) as scope:
            await client.create()
        assert scope.cancelled_caught
        assert await anyio.to_thread.run_sync(gateway.settled)
    # The late one needs its time to be made, and is found by its key all the same.
    await anyio.sleep(0.3)
    assert gateway.settled()


@on_backends
async def test_creation_that_was_never_sent_asks_nothing(gateway: FakeGateway) -> None:
    async with Client("http://127.0.0.1:1", TOKEN) as client:
        with anyio.move_on_after(0.1) as scope:
            await client.create()
        assert scope.cancelled_caught
    assert gateway.requests == []


@on_backends
async def test_creation_under_the_callers_own_key_is_left_to_the_caller(
    gateway: FakeGateway,
) -> None:
    async with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, slowly(0.3))
        with anyio.move_on_after(0.1):
            await client.create(idempotency_key="mine")
        box = await client.create(idempotency_key="mine")
        await anyio.sleep(0.3)
        assert list(gateway.sandboxes) == [box.id]
        assert gateway.created == 1


@on_backends
async def test_creation_cancelled_while_the_gateway_refuses_ends(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, hang, answer(400))
        with anyio.move_on_after(0.2) as scope:
            await client.create()
        assert scope.cancelled_caught
    assert gateway.released


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2])
@on_backends
async def test_a_block_at_any_moment(gateway: FakeGateway, delay: float) -> None:
    async with Client(gateway.url, TOKEN) as client:
        with anyio.move_on_after(delay):
            async with client.sandbox() as box:
                await box.files.write("f", b"x")
                await box.exec(["cat"], stdin=b"x" * 1_000_000)
                await box.exec(["sleep", "30"])
        assert await anyio.to_thread.run_sync(gateway.settled)
        # The client is whole: it can do it again.
        async with client.sandbox() as box:
            assert (await box.exec(["true"])).ok
    assert gateway.settled()


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05])
@on_backends
async def test_a_block_of_several_at_any_moment(gateway: FakeGateway, delay: float) -> None:
    async with Client(gateway.url, TOKEN) as client:
        with anyio.move_on_after(delay):
            async with client.sandboxes(4) as batch:
                async for box in batch:
                    await box.exec(["true"])
                await anyio.sleep(10)
        assert await anyio.to_thread.run_sync(gateway.settled)
        async with client.sandboxes(2) as batch:
            assert len([box async for box in batch]) == 2
    assert gateway.settled()


@on_backends
async def test_a_running_command_is_killed(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.exec, ["sleep", "30"])
            assert await anyio.to_thread.run_sync(gateway.started.wait, 5)
            tasks.cancel_scope.cancel()
        process = gateway.processes[0]
        assert await anyio.to_thread.run_sync(process.wait, 5) == -9
        assert (await box.exec(["true"])).ok


@on_backends
async def test_a_large_stdin_in_the_middle(gateway: FakeGateway) -> None:
    sent = anyio.Event()

    async def endless():
        while True:
            yield b"x" * 100_000
            sent.set()
            await anyio.sleep(0.01)

    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        source = endless()
        async with anyio.create_task_group() as tasks:

            async def feed() -> None:
                await box.exec(["cat"], stdin=source)

            tasks.start_soon(feed)
            await sent.wait()
            tasks.cancel_scope.cancel()
        await source.aclose()
        assert (await box.exec(["true"])).ok
    assert gateway.settled()


@on_backends
async def test_an_async_iterable_is_a_stdin(gateway: FakeGateway) -> None:
    async def pieces():
        for data in (b"a" * 300_000, b"", b"b"):
            yield data

    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert (await box.exec(["cat"], stdin=pieces())).stdout == b"a" * 300_000 + b"b"


@on_backends
async def test_the_release_itself_is_shielded_and_limited(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(gateway.url, TOKEN) as client:
        gateway.plan("DELETE", slowly(0.3))
        with anyio.move_on_after(0.1):
            async with client.sandbox():
                await anyio.sleep(10)
        assert gateway.released
        monkeypatch.setattr("sandman._async.client.RELEASE_LIMIT_S", 0.2)
        gateway.plan("DELETE", hang)
        started = anyio.current_time()
        async with client.sandbox():
            pass
        assert anyio.current_time() - started < 2


@on_backends
async def test_many_at_once_share_a_client(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:

        async def one(number: int) -> None:
            async with client.sandbox() as box:
                result = await box.exec(["echo", str(number)])
                assert result.stdout == f"{number}\n".encode()

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(one, number)
    assert gateway.settled()


@on_backends
async def test_max_connections_makes_calls_wait(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN, limits=Limits(max_connections=2)) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(client.pools)
        assert gateway.connections == 2
        # A cancelled wait gives nothing back that it did not have.
        gateway.plan("GET", hang, hang)
        with anyio.move_on_after(0.2):
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(client.pools)
        assert len(await client.pools()) == 1


@on_backends
async def test_connections_are_made_a_few_at_a_time(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandman._async.lanes.CONNECTING_AT_ONCE", 1)
    async with Client(gateway.url, TOKEN) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(client.pools)
        # Cancelled while they wait for their turn, and while they connect: the turns go on.
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(client.pools)
            await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(client.pools)
    async with Client("http://127.0.0.1:1", TOKEN, limits=Limits(retry_s=0.1)) as client:
        with pytest.raises(errors.UnreachableError):
            await client.pools()


@on_backends
async def test_who_gives_up_attaching_is_not_left_attached(gateway: FakeGateway) -> None:
    attached = answer(201, b'{"id":"sandman-attached-x-1"}')
    gateway.plan("POST /v1/sandboxes/attach", hang, attached)
    async with Client(gateway.url, TOKEN) as client:
        with anyio.move_on_after(0.3):
            await client.attach_workload("shop", "web")
    assert gateway.calls("DELETE") == ["DELETE /v1/sandboxes/sandman-attached-x-1"]


@on_backends
async def test_a_handshake_that_is_cancelled_leaves_no_connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        url = f"https://127.0.0.1:{mute.getsockname()[1]}"
        async with Client(url, TOKEN, ca=ssl.create_default_context()) as client:
            with anyio.move_on_after(0.2) as waiting:
                await client.create(heartbeat=False)
        assert waiting.cancelled_caught
        gc.collect()
    assert [one for one in told if one.category is ResourceWarning] == []
