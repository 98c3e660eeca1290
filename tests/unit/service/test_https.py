"""The server over real sockets and real TLS: what a wrong server or a wrong stop would break."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import trio
import trio.testing
import trustme

from sandman.service import asgi, connections, https, tls
from tests.fakes.sockets import Refused, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOCAL = "127.0.0.1:0"


class Pki:
    """A certificate authority of the test, and a server certificate of it."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.client = ssl.create_default_context()
        self.authority.configure_trust(self.client)

    def issue(self, *names: str) -> tuple[bytes, bytes]:
        leaf = self.authority.issue_cert(*names)
        return b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes()


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


class Server:
    """A running server and the ways to talk to it."""

    def __init__(self, port: int, stop: trio.Event, client: ssl.SSLContext | None) -> None:
        self.port = port
        self.stop = stop
        self.ended = trio.Event()
        self._client = client

    @property
    def url(self) -> str:
        return f"{'https' if self._client else 'http'}://127.0.0.1:{self.port}"

    async def connect(self) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        if self._client is None:
            return stream
        secure = trio.SSLStream(
            stream, self._client, server_hostname="127.0.0.1", https_compatible=True
        )
        await secure.do_handshake()
        return secure

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=self._client or False, trust_env=False)


@contextlib.asynccontextmanager
async def serving(
    app: asgi.App, pki: Pki | None = None, settings: https.Settings | None = None
) -> AsyncIterator[Server]:
    certificate = tls.Certificate(*pki.issue("127.0.0.1")) if pki else None
    stop = trio.Event()

    async def run(*, task_status) -> None:
        await https.serve(
            app,
            bind=[LOCAL],
            stop=stop,
            tls=certificate.current if certificate else None,
            settings=settings or https.Settings(grace_s=1, cut_after_s=0.2),
            task_status=task_status,
        )
        server.ended.set()

    async with trio.open_nursery() as nursery:
        [bound] = await nursery.start(run)
        server = Server(bound.port, stop, pki.client if pki else None)
        server.certificate = certificate
        yield server
        stop.set()
        with trio.fail_after(10):
            await server.ended.wait()


async def respond(send, body: bytes = b"ok", *, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def hello(scope, receive, send) -> None:
    await respond(send, b"hello")


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def read_answer(stream: trio.abc.Stream) -> bytes:
    data = b""
    while not data.endswith(b"hello"):
        chunk = await stream.receive_some()
        if not chunk:
            break
        data += bytes(chunk)
    return data


# --- serving -------------------------------------------------------------------------------------


async def test_answers_over_tls_and_keeps_the_connection(pki):
    async with serving(hello, pki) as server, server.http() as client:
        for _ in range(3):
            answer = await client.get("/")
            assert answer.text == "hello"
            assert "connection" not in answer.headers
            assert "server" not in answer.headers


async def test_answers_plain_http():
    async with serving(hello) as server, server.http() as client:
        assert (await client.get("/")).text == "hello"


async def test_speaks_tls12_at_least_and_http1_only(pki):
    async with serving(hello, pki) as server:
        assert server.certificate.current().minimum_version is ssl.TLSVersion.TLSv1_2
        new = ssl.create_default_context()
        pki.authority.configure_trust(new)
        new.set_alpn_protocols(["h2", "http/1.1"])
        stream = trio.SSLStream(
            await trio.open_tcp_stream("127.0.0.1", server.port), new, server_hostname="127.0.0.1"
        )
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == "http/1.1"
        await trio.aclose_forcefully(stream)


async def test_a_new_certificate_is_served_without_restart(pki):
    async with serving(hello, pki) as server:
        first = await server.connect()
        before = first.getpeercert(binary_form=True)
        server.certificate.replace(*pki.issue("127.0.0.1"))
        second = await server.connect()
        assert second.getpeercert(binary_form=True) != before
        # The open connection goes on.
        await first.send_all(REQUEST)
        assert (await read_answer(first)).endswith(b"hello")
        with pytest.raises(ssl.SSLError):
            server.certificate.replace(b"rubbish", b"rubbish")
        third = await server.connect()
        assert third.getpeercert(binary_form=True) == second.getpeercert(binary_form=True)
        for stream in (first, second, third):
            await trio.aclose_forcefully(stream)


async def test_a_failed_handshake_and_a_fault_in_the_app_harm_nobody_else(pki, caplog):
    async def faulty(scope, receive, send):
        if scope["path"] == "/fault":
            raise RuntimeError("fault")
        await hello(scope, receive, send)

    async with serving(faulty, pki) as server, server.http() as client:
        plain = await trio.open_tcp_stream("127.0.0.1", server.port)
        await plain.send_all(b"this is no TLS\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError):
            while await plain.receive_some():
                pass
        await plain.aclose()
        assert (await client.get("/fault")).status_code == 500
        assert (await client.get("/")).text == "hello"
    assert "RuntimeError: fault" in caplog.text


async def test_a_handshake_that_does_not_come_is_given_up(pki):
    async with serving(hello, pki, https.Settings(handshake_s=0.1, grace_s=1)) as server:
        silent = await trio.open_tcp_stream("127.0.0.1", server.port)
        with trio.fail_after(10), contextlib.suppress(trio.BrokenResourceError):
            assert await silent.receive_some() == b""
        await silent.aclose()


async def test_an_idle_connection_is_closed_though_the_client_says_no_goodbye(pki):
    settings = https.Settings(keep_alive_s=0.2, grace_s=1)
    async with serving(hello, pki, settings) as server:
        stream = await server.connect()
        await stream.send_all(REQUEST)
        await read_answer(stream)
        raw = stream.transport_stream.socket
        # Read below TLS: the end of the TCP stream must come without our answering anything.
        with trio.fail_after(10):
            while await raw.recv(65536):
                pass
        await trio.aclose_forcefully(stream)


async def test_a_head_that_is_too_long_is_refused_and_one_that_never_ends_is_cut():
    settings = https.Settings(keep_alive_s=0.3, grace_s=1)
    async with serving(hello, None, settings) as server:
        async with server.http() as client:
            answer = await client.get("/", headers={"x": "y" * 300_000})
            assert answer.status_code == 431
        slow = await server.connect()
        with trio.fail_after(10):
            await slow.send_all(b"GET / HTTP/1.1\r\n")
            with contextlib.suppress(trio.BrokenResourceError):
                while await slow.receive_some():
                    pass
        await slow.aclose()


async def test_connections_over_the_limit_wait():
    settings = https.Settings(max_connections=1, grace_s=1)
    async with serving(hello, None, settings) as server:
        first = await server.connect()
        await first.send_all(REQUEST)
        await read_answer(first)
        second = await server.connect()
        await second.send_all(REQUEST)
        with trio.move_on_after(0.2) as waiting:
            await second.receive_some()
        assert waiting.cancelled_caught
        await first.aclose()
        with trio.fail_after(10):
            assert (await read_answer(second)).endswith(b"hello")
        await second.aclose()


async def test_survives_an_accept_that_fails(monkeypatch, caplog):
    async with serving(hello) as server:
        failures = [OSError(24, "Too many open files")]
        with trio.socket.socket() as example:
            kind = type(example)
        real = kind.accept

        async def accept(self):
            if failures:
                raise failures.pop()
            return await real(self)

        monkeypatch.setattr(kind, "accept", accept)
        for _ in range(3):
            async with server.http() as client:
                assert (await client.get("/")).text == "hello"


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


# --- the caller goes away ------------------------------------------------------------------------


class Handler:
    """An app that waits for ever and tells how it ended."""

    def __init__(self, *, stream: bool = False) -> None:
        self.started = trio.Event()
        self.ended = trio.Event()
        self.how = ""
        self._stream = stream

    async def __call__(self, scope, receive, send) -> None:
        self.started.set()
        try:
            if self._stream:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    message = {"type": "http.response.body", "body": b"x" * 65536}
                    await send({**message, "more_body": True})
            await trio.sleep_forever()
        except trio.Cancelled:
            self.how = "cancelled"
            raise
        finally:
            self.ended.set()


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


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8443", ("127.0.0.1", 8443)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("localhost", 1)),
        (":8443", ("::" if socket.has_dualstack_ipv6() else "0.0.0.0", 8443)),
    ],
)
def test_addresses_are_understood(text, address):
    assert https.parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "::1:80", "host:http"])
def test_others_are_refused(text):
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        https.parse_address(text)


async def test_an_address_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            await https.serve(hello, bind=[address], stop=trio.Event())


async def test_listens_on_all_addresses():
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        serve = nursery.start

        async def run(*, task_status) -> None:
            await https.serve(hello, bind=[":0"], stop=stop, task_status=task_status)

        [bound] = await serve(run)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{bound.port}/")).text == "hello"
        stop.set()


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
