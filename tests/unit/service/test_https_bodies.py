"""The HTTPS server: bodies, limits, scopes, and callers that go away."""

from __future__ import annotations

import json
import os
import socket

import httpx
import pytest
import trio
import trio.testing

from sandman.service import asgi, https
from tests.unit.service.https import REQUEST, Handler, hello, read_answer, respond, serving

# --- bodies --------------------------------------------------------------------------------------


async def test_a_body_streams_with_back_pressure(pki):
    """The client can send no more than what the buffers between hold, until the app reads."""
    read = trio.Event()

    async def app(scope, receive, send):
        await read.wait()
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            if not message["more_body"]:
                break
        await respond(send, str(size).encode())

    total = 64 * 1024 * 1024
    sent = 0

    async def body():
        nonlocal sent
        while sent < total:
            sent += 65536
            yield b"x" * 65536

    async with serving(app, pki) as server, server.http() as client, trio.open_nursery() as nursery:

        async def upload() -> None:
            answer = await client.post("/", content=body(), timeout=30)
            assert answer.text == str(total)

        nursery.start_soon(upload)
        await trio.sleep(0.5)
        held = sent
        assert held < 16 * 1024 * 1024
        read.set()


async def test_what_the_server_itself_refuses_is_told_as_any_error(pki):
    async def silent(scope, receive, send) -> None:
        return

    for app, target, status, reason in (
        (hello, "/a%ffb?x=%ff", 400, "bad_request"),
        (hello, "/a%f", 400, "bad_request"),
        (silent, "/", 500, "internal"),
    ):
        async with serving(app, pki) as server, await server.connect() as stream:
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head, _, body = (await read_answer(stream)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status), head
            assert b"application/problem+json" in head
            assert (json.loads(body)["reason"], json.loads(body)["status"]) == (reason, status)
    async with serving(hello, pki) as server, await server.connect() as stream:
        await stream.send_all(b"GET /%C3%BC?x=%ff HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await read_answer(stream)


async def test_a_body_over_tls_comes_in_pieces_larger_than_a_record(pki):
    """Each piece costs the gateway the same, whatever its size: a record's 16 KiB would be too dear."""
    body = os.urandom(1024 * 1024)
    pieces: list[bytes] = []

    async def handler(scope, receive, send) -> None:
        while (message := await receive())["more_body"]:
            pieces.append(message["body"])
        pieces.append(message["body"])
        await respond(send, b"hello")

    async with serving(handler, pki) as server, await server.connect() as stream:
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)
        assert b"200" in await read_answer(stream)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) > 16 * 1024


async def test_a_body_over_the_limit_is_refused():
    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await respond(send)

    async def chunks():
        for _ in range(4):
            yield b"x" * 500

    settings = https.Settings(max_body_bytes=1000, grace_s=1)
    async with serving(app, None, settings) as server, server.http() as client:
        said = await client.post("/", content=b"x" * 1001)
        assert (said.status_code, said.json()["reason"]) == (413, "too_large")
        in_fact = await client.post("/", content=chunks())
        assert in_fact.status_code == 413
        assert in_fact.headers["connection"] == "close"
        assert (await client.post("/", content=b"x" * 1000)).status_code == 200


async def test_a_body_that_grows_over_the_limit_after_the_answer_began_ends_the_connection():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["more_body"]:
            pass

    async def chunks():
        for _ in range(4):
            yield b"x" * 500

    settings = https.Settings(max_body_bytes=1000, grace_s=1)
    async with serving(app, None, settings) as server, server.http() as client:
        with pytest.raises(httpx.TransportError):
            await client.post("/", content=chunks())


async def test_other_scopes_pass_the_wrappers():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
        await send({"type": "websocket.accept"})

    sent = []

    async def send(message):
        sent.append(message)

    stop = trio.Event()
    stop.set()
    wrapped = asgi.LimitBody(asgi.CancelOnDisconnect(asgi.CloseWhenStopping(app, stop)), 1)
    await wrapped({"type": "websocket", "headers": []}, None, send)
    assert seen == ["websocket"]
    assert sent == [{"type": "websocket.accept"}]


async def test_a_fault_of_the_app_comes_out_as_itself():
    async def app(scope, receive, send):
        raise RuntimeError("fault")

    async def receive():
        await trio.sleep_forever()

    with pytest.raises(RuntimeError, match="fault"):
        await asgi.CancelOnDisconnect(app)({"type": "http"}, receive, None)


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
async def test_a_handler_ends_when_its_caller_goes(pki, secure, body):
    handler = Handler()
    async with serving(handler, pki if secure else None) as server:
        stream = await server.connect()
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)
        with trio.fail_after(10):
            await handler.started.wait()
            await trio.aclose_forcefully(stream)
            await handler.ended.wait()
        assert handler.how == "cancelled"


async def test_a_handler_ends_when_its_caller_resets(pki):
    handler = Handler()
    async with serving(handler, pki) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        await handler.started.wait()
        raw = stream.transport_stream.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        with trio.fail_after(10):
            await trio.aclose_forcefully(stream)
            await handler.ended.wait()


@pytest.mark.parametrize("parts", [1, 50])
async def test_who_resets_while_his_next_request_waits_leaves_no_connection(pki, parts):
    """What was read of the next one waits for the answer to the first to be whole, which it never will be."""
    asked, go = trio.Event(), trio.Event()

    async def late(scope, receive, send) -> None:
        if scope["path"] == "/":
            asked.set()
            await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(parts):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b"hello"})

    async with serving(late, pki, https.Settings(max_connections=1, grace_s=1)) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST + REQUEST)
        await asked.wait()
        await trio.testing.wait_all_tasks_blocked(0.1)
        raw = stream.transport_stream.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(stream)
        go.set()
        with trio.fail_after(10):
            # There is room for one.
            async with server.http() as client:
                assert (await client.get("/other")).text.endswith("hello")


async def test_a_streaming_handler_ends_when_its_caller_goes(pki):
    handler = Handler(stream=True)
    async with serving(handler, pki) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        assert await stream.receive_some(1000)
        with trio.fail_after(10):
            await trio.aclose_forcefully(stream)
            await handler.ended.wait()


async def test_what_follows_the_answer_is_not_cancelled(pki):
    done = trio.Event()

    async def app(scope, receive, send):
        await respond(send, b"hello")
        await trio.sleep(0.2)
        done.set()

    async with serving(app, pki) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        await read_answer(stream)
        await trio.aclose_forcefully(stream)
        with trio.fail_after(10):
            await done.wait()
