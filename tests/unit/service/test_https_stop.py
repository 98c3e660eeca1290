"""The HTTPS server: how it stops."""

from __future__ import annotations

import os
import signal

import pytest
import trio
import trio.testing

from sandman.service import https, tls
from tests.unit.service.https import LOCAL, REQUEST, Handler, Server, hello, read_answer, serving

# --- the stop ------------------------------------------------------------------------------------


async def test_a_lame_duck_serves_and_says_so(pki):
    settings = https.Settings(lame_duck_s=0.5, grace_s=1)
    async with serving(hello, pki, settings) as server:
        stream = await server.connect()
        server.stop.set()
        await trio.sleep(0.05)
        await stream.send_all(REQUEST)
        assert b"connection: close" in (await read_answer(stream)).lower()
        with trio.fail_after(10):
            assert await stream.receive_some() == b""
        await trio.aclose_forcefully(stream)
        late = await server.connect()  # still accepted
        await trio.aclose_forcefully(late)
        with trio.fail_after(10):
            await server.ended.wait()
        with pytest.raises(OSError, match=r"refused|multiple|all attempts"):
            await server.connect()


async def test_idle_connections_do_not_hold_the_stop_up(pki):
    async with serving(hello, pki, https.Settings(grace_s=60)) as server:
        idle = await server.connect()
        await idle.send_all(REQUEST)
        await read_answer(idle)
        fresh = await server.connect()
        server.stop.set()
        with trio.fail_after(10):
            await server.ended.wait()
        await trio.aclose_forcefully(idle)
        await trio.aclose_forcefully(fresh)


async def test_a_request_in_flight_may_end_and_a_long_one_is_cancelled(pki):
    long = Handler()

    async def app(scope, receive, send):
        if scope["path"] == "/long":
            await long(scope, receive, send)
        await trio.sleep(0.3)
        await hello(scope, receive, send)

    async with serving(app, pki, https.Settings(grace_s=0.8)) as server:
        short = await server.connect()
        await short.send_all(REQUEST)
        endless = await server.connect()
        await endless.send_all(REQUEST.replace(b"/ ", b"/long ", 1))
        await long.started.wait()
        server.stop.set()
        assert b"connection: close" in (await read_answer(short)).lower()
        assert not long.ended.is_set()
        with trio.fail_after(10):
            await server.ended.wait()
        assert long.how == "cancelled"
        await trio.aclose_forcefully(short)
        await trio.aclose_forcefully(endless)


@pytest.mark.parametrize("secure", [True, False])
async def test_a_client_that_does_not_read_does_not_hold_the_stop_up(pki, secure):
    """Sends are shielded in the server: without the cut this test would never end."""
    handler = Handler(stream=True)
    settings = https.Settings(grace_s=0.2, cut_after_s=0.2)
    async with serving(handler, pki if secure else None, settings) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        await handler.started.wait()
        await trio.sleep(0.3)  # until the buffers are full
        server.stop.set()
        with trio.fail_after(10):
            await server.ended.wait()
        await trio.aclose_forcefully(stream)


async def test_cancelling_the_server_stops_it_at_once(pki):
    handler = Handler(stream=True)
    stop = trio.Event()
    certificate = tls.Certificate(*pki.issue("127.0.0.1"))
    settings = https.Settings(cut_after_s=0.2)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def run(*, task_status) -> None:
                await https.serve(
                    handler, bind=[LOCAL], stop=stop, tls=certificate.current,
                    settings=settings, task_status=task_status,
                )  # fmt: skip

            [bound] = await nursery.start(run)
            stream = await Server(bound.port, stop, pki.client).connect()
            await stream.send_all(REQUEST)
            await handler.started.wait()
            await trio.sleep(0.3)
            nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


async def test_the_peer_that_acknowledges_nothing_is_given_up(pki):
    """TCP_USER_TIMEOUT is inherited by accepted sockets: the kernel ends a stalled connection."""
    handler = Handler(stream=True)
    settings = https.Settings(stalled_s=1.0, grace_s=1)
    async with serving(handler, None, settings) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        with trio.fail_after(10):
            await handler.ended.wait()
        await trio.aclose_forcefully(stream)


async def test_a_signal_sets_the_stop():
    stop = trio.Event()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(https.stop_on_signals, stop)
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()
