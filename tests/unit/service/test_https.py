"""The server over real sockets and real TLS: what a wrong server or a wrong stop would break."""

from __future__ import annotations

import contextlib
import socket
import ssl

import httpx
import pytest
import trio
import trio.testing

from sandman.service import https
from tests.unit.service.https import REQUEST, hello, read_answer, respond, serving

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


async def test_a_connection_whose_client_left_before_its_answer_is_over_with_the_answer():
    """It would idle for `keep_alive_s` otherwise: a descriptor for each who half-closes at the right moment."""

    async def late(_scope, _receive, send) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
            await respond(send)

    async with serving(late) as server:
        stream = await server.connect()
        async with stream:
            await stream.send_all(REQUEST)
            await stream.send_eof()
            with trio.fail_after(5):
                while await stream.receive_some():
                    pass


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
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            assert (await client.get(f"http://127.0.0.1:{bound.port}/")).text == "hello"
        stop.set()
