"""The HTTPS server: WebSockets."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from sandman.service import asgi, connections, https
from tests.fakes.sockets import Refused, connected
from tests.unit.service.https import Server, serving

# --- WebSockets ----------------------------------------------------------------------------------


async def socket_app(scope, receive, send) -> None:
    """Accepts, says what comes again, and keeps what the end was."""
    assert (await receive())["type"] == "websocket.connect"
    if scope["path"] == "/never":
        await trio.sleep_forever()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/fault":
        raise RuntimeError("fault")
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


@contextlib.asynccontextmanager
async def socket_to(server: Server, path: str = "/"):
    stream = await server.connect()
    async with connected(stream, path, {}) as peer:
        yield peer


async def test_a_websocket_over_tls_with_pings_and_without_compression(pki):
    settings = https.Settings(grace_s=1, ping_s=0.05)
    async with serving(socket_app, pki, settings) as server, socket_to(server) as peer:
        await peer.send("text")
        assert await peer.receive() == "text"
        with trio.move_on_after(0.3):
            await peer.receive()
        assert peer.pings >= 2
        await peer.close(4000)
        assert await peer.receive() == (4000, "")


async def test_too_long_a_message_is_refused():
    settings = https.Settings(grace_s=1, max_message_bytes=1000)
    async with serving(socket_app, None, settings) as server, socket_to(server) as peer:
        await peer.send(b"x" * 1000)
        assert await peer.receive() == b"x" * 1000
        await peer.send(b"x" * 1001)
        assert (await peer.receive())[0] == 1009


async def test_a_texts_bytes_are_counted_and_not_its_characters():
    settings = https.Settings(grace_s=1, max_message_bytes=1000)
    async with serving(socket_app, None, settings) as server, socket_to(server) as peer:
        await peer.send("\u00e4" * 500)
        assert await peer.receive() == "\u00e4" * 500
        await peer.send("\u00e4" * 501)
        assert (await peer.receive())[0] == 1009


async def test_who_goes_on_with_a_message_that_is_too_long_fills_no_memory(monkeypatch):
    monkeypatch.setattr(connections, "FAREWELL_S", 0.2)
    made: list = []
    ends: list = []
    told = trio.Event()

    class Watched(connections._Socket):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(self)

    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        ends.append(await receive())
        told.set()

    monkeypatch.setattr(connections.http1, "WSStream", Watched)
    settings = https.Settings(grace_s=1, max_message_bytes=1000)
    async with serving(app, None, settings) as server, socket_to(server) as peer:
        with trio.fail_after(10):
            # The header of one frame of a tebibyte, masked with noughts.
            await peer.stream.send_all(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4))
            with contextlib.suppress(trio.BrokenResourceError):
                while True:
                    await peer.stream.send_all(b"x" * 65536)
                    assert len(made[0].buffer._bytes.getbuffer()) <= 1000
            await told.wait()
    assert ends == [{"type": "websocket.disconnect", "code": 1009}]


async def test_a_silent_websocket_is_no_idle_connection():
    settings = https.Settings(grace_s=1, keep_alive_s=0.1, ping_s=600)
    async with serving(socket_app, None, settings) as server, socket_to(server) as peer:
        await trio.sleep(0.4)
        await peer.send("still here")
        assert await peer.receive() == "still here"


async def test_a_websockets_place_is_free_at_its_end_and_not_at_the_next_ping():
    settings = https.Settings(grace_s=1, max_connections=1, ping_s=600)
    async with serving(socket_app, None, settings) as server:
        for _ in range(3):
            with trio.fail_after(5):
                async with socket_to(server) as peer:
                    await peer.send("text")
                    assert await peer.receive() == "text"


async def test_at_the_stop_websockets_are_told_to_come_again():
    settings = https.Settings(grace_s=2.2)
    async with serving(socket_app, None, settings) as server:
        async with socket_to(server) as peer, trio.open_nursery() as nursery:

            async def wait_unaccepted() -> None:
                with pytest.raises(Refused) as refused:
                    async with socket_to(server, "/never"):
                        pass
                assert refused.value.status == 503
                assert b'"unreachable"' in refused.value.body

            nursery.start_soon(wait_unaccepted)
            await trio.sleep(0.1)
            server.stop.set()
            await peer.send("still here")
            assert await peer.receive() == "still here"
            assert await peer.receive() == (1012, "service restart")
        with trio.fail_after(1):
            await server.ended.wait()


@pytest.mark.parametrize("first", [{"type": "websocket.accept"}, None])
async def test_what_an_app_says_after_the_last_word_is_dropped(first):
    """The server raises at it, and each restart would log that for every busy WebSocket."""
    going = trio.Event()
    sent: list[str] = []

    async def app(scope, receive, send) -> None:
        if first:
            await send(first)
        going.set()
        while True:
            await send({"type": "websocket.send" if first else "websocket.accept"})

    async def send(message) -> None:
        sent.append(message["type"])
        for _ in range(1 if message["type"] in {"websocket.send", "websocket.accept"} else 5):
            await trio.lowlevel.checkpoint()

    with trio.fail_after(5):
        await asgi.CloseSockets(app, going)({"type": "websocket"}, None, send)
    ends = [name for name in sent if name in {"websocket.close", "websocket.http.response.body"}]
    assert len(ends) == 1
    assert sent[-1] == ends[0]


async def test_a_refusal_that_has_begun_is_not_refused_again():
    going = trio.Event()
    sent: list[str] = []

    async def app(scope, receive, send) -> None:
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        going.set()
        await trio.testing.wait_all_tasks_blocked()
        await send({"type": "websocket.http.response.body", "body": b"no"})

    async def send(message) -> None:
        sent.append(message["type"])

    await asgi.CloseSockets(app, going)({"type": "websocket"}, None, send)
    assert sent == ["websocket.http.response.start", "websocket.http.response.body"]


async def test_a_fault_in_a_websocket_closes_it_as_that(caplog):
    async with serving(socket_app) as server, socket_to(server, "/fault") as peer:
        assert (await peer.receive())[0] == 1011
    assert "RuntimeError: fault" in caplog.text


async def test_a_handshake_that_is_none_is_told_so():
    async with serving(socket_app) as server:
        stream = await server.connect()
        lines = [b"GET / HTTP/1.1", b"Host: x", b"Connection: Upgrade", b"Upgrade: websocket"]
        await stream.send_all(b"\r\n".join([*lines, b"", b""]))
        data = b""
        while more := await stream.receive_some():
            data += bytes(more)
        assert data.startswith(b"HTTP/1.1 400")
        assert b'"reason": "bad_request"' in data
        await stream.aclose()
