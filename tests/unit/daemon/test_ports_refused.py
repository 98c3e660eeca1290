"""`/v1/ports`: what does not pass, and is told."""

from __future__ import annotations

import socket
import threading
import time

import httpx
import pytest

from daemon import ports
from sandman.errors import PortClosedError
from tests.unit.daemon.harness import head, problem, read_all, wait_until
from tests.unit.daemon.servers import call, says, whole

# --- what does not -------------------------------------------------------------------------------


def test_nothing_listens(daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for method in ("GET", "POST"):
        found = problem(call(daemon, port, "/", method))
        assert (found["reason"], found["status"], found["cause"]) == ("port_closed", 503, "sandbox")
        assert (found["retryable"], found["retry_after"]) == (True, 1.0)
        assert str(port) in str(found["detail"])


@pytest.mark.parametrize(
    "port", ["0", "65536", "", "x", "080", "-1", "99999999", "%38000", "8000.0"]
)
def test_ports_that_there_are_not(daemon, port) -> None:
    answer = daemon.raw(head("GET", f"/v1/ports/{port}/", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"field": "port"' in answer


def test_the_daemons_own_port_is_not_called(daemon) -> None:
    found = problem(call(daemon, daemon.port, "/healthz"))
    assert (found["reason"], found["field"]) == ("bad_request", "port")


def test_no_command_can_take_the_daemons_port(daemon) -> None:
    """Whatever is set on the socket, and whatever more precise address is asked for."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind((host, daemon.port))


def test_a_token_is_needed_and_connect_is_for_proxies(daemon, serve) -> None:
    server = serve(says(whole(b"")))
    plain = f"GET /v1/ports/{server.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert daemon.raw(plain.encode()).startswith(b"HTTP/1.1 401")
    connect = head("CONNECT", f"/v1/ports/{server.port}/", "Connection: close")
    assert daemon.raw(connect).startswith(b"HTTP/1.1 405")
    assert server.heads == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["nothing", "ssh", "half", "headers", "header", "interim", "switch", "two framings"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_answer_that_can_be_passed_on(daemon, serve, answer, method) -> None:
    server = serve(says(answer))
    found = problem(
        call(daemon, server.port, "/", method, content=b"x" if method == "POST" else None)
    )
    assert (found["reason"], found["status"], found["cause"]) == ("outcome_unknown", 502, "sandbox")
    assert not found["retryable"]


@pytest.mark.parametrize(
    ("framing", "rest"),
    [
        (b"Content-Length: 10\r\n\r\nshort", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b"nonsense\r\n"),
    ],
)
def test_an_answer_that_breaks_off_never_ends_well(daemon, serve, framing, rest) -> None:
    go = threading.Event()

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n" + framing)
        assert go.wait(10)
        sock.sendall(rest)

    server = serve(talk)
    with daemon.client.stream("GET", f"/v1/ports/{server.port}/") as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b"short"
        go.set()
        with pytest.raises(httpx.RemoteProtocolError):
            next(chunks)


def test_a_reset_in_a_body_of_no_length_is_no_end(daemon, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = serve(talk)
    with pytest.raises(httpx.RemoteProtocolError):
        call(daemon, server.port)


def test_a_server_that_breaks_off_while_it_is_written_to(daemon, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = serve(talk)
    answer = call(daemon, server.port, "/", "POST", content=b"x" * 20_000_000)
    assert problem(answer)["reason"] == "outcome_unknown"


def test_a_caller_that_leaves_ends_the_call_at_the_server(daemon, serve) -> None:
    gone = threading.Event()

    def talk(sock: socket.socket, _rest: bytes) -> None:
        if not sock.recv(1):
            gone.set()

    server = serve(talk)
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/"))
        assert wait_until(lambda: server.heads)
    assert gone.wait(5)


def test_broken_chunks_of_the_caller_reach_no_end_at_the_server(daemon, serve) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket, rest: bytes) -> None:
        got.append(rest + read_all(sock))

    server = serve(talk)
    with daemon.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{server.port}/", "Transfer-Encoding: chunked"))
        assert wait_until(lambda: server.heads)
        sock.sendall(b"1\r\na\r\nnonsense\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")
    assert server.ended.acquire(timeout=5)
    assert got in ([b""], [b"1\r\na\r\n"])


def test_a_socket_that_meets_itself_is_a_closed_port() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert ports.is_itself(sock)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with ports.dial(server.getsockname()[1]) as sock:
            assert not ports.is_itself(sock)
        number = server.getsockname()[1]
    with pytest.raises(PortClosedError):
        ports.dial(number)
