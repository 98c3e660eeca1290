"""`/v1/ports`: WebSockets, and sides that stall."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from daemon import config, relay
from tests.unit.daemon.harness import Daemon, head, read_all, small
from tests.unit.daemon.servers import Server, call, says, until, whole

if TYPE_CHECKING:
    from collections.abc import Iterator


# --- WebSockets ----------------------------------------------------------------------------------

UPGRADE = ("Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: k")
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nA: b\r\n\r\n"
)


@contextlib.contextmanager
def tunnel(daemon: Daemon, server: Server, early: bytes = b"") -> Iterator[socket.socket]:
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/ws", *UPGRADE) + early)
        got = b""
        while not got.endswith(b"\r\n\r\n"):
            got += sock.recv(1)
        assert got.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nSandman-Port: %d\r\n" % server.port in got
        assert b"\r\na: b\r\n" in got
        assert got.lower().count(b"upgrade: websocket") == 1
        yield sock


def test_bytes_both_ways_after_the_upgrade(daemon, serve) -> None:
    def talk(sock: socket.socket, rest: bytes) -> None:
        sock.sendall(SWITCH)
        while rest or (rest := sock.recv(65536)):
            sock.sendall(rest)
            rest = b""

    server = serve(talk)
    with tunnel(daemon, server, b"early") as sock:
        assert until(sock, b"early") == b"early"
        data = bytes(range(256)) * 8192
        sender = threading.Thread(
            target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR))
        )
        sender.start()
        back = read_all(sock)  # the half-close went there and came back
        assert (len(back), back == data) == (len(data), True)
        sender.join()
    [got] = server.heads
    assert got.startswith(b"GET /ws HTTP/1.1\r\n")
    assert b"\r\nConnection: Upgrade\r\nUpgrade: websocket" in got
    assert b"sec-websocket-key: k" in got


def test_a_servers_half_close_reaches_the_caller_who_may_still_speak(daemon, serve) -> None:
    heard: list[bytes] = []

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(SWITCH + b"bye")
        sock.shutdown(socket.SHUT_WR)
        heard.append(read_all(sock))

    server = serve(talk)
    with tunnel(daemon, server) as sock:
        assert read_all(sock) == b"bye"
        sock.sendall(b"last words")
        sock.shutdown(socket.SHUT_WR)
        assert server.ended.acquire(timeout=5)
    assert heard == [b"last words"]


def test_a_tunnel_ends_with_either_side(daemon, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), read_all(sock)))
    with tunnel(daemon, server):
        pass
    assert server.ended.acquire(timeout=5)
    short = serve(says(SWITCH, b"x"))
    with tunnel(daemon, short) as sock:
        assert read_all(sock) in {b"x", b""}


def test_an_upgrade_that_is_refused_is_an_answer(daemon, serve) -> None:
    server = serve(says(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"))
    answer = daemon.raw(head("GET", f"/v1/ports/{server.port}/", *UPGRADE, "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"\r\n\r\nno")


# --- who stalls -----------------------------------------------------------------------------------


@pytest.fixture
def impatient(start, tmp_path) -> Daemon:
    """A daemon whose limits of time are short."""
    limits = {"STALL_TIMEOUT_S": 0.4, "HALF_CLOSED_S": 0.4, "LINGER_S": 0.1}
    return start(program=small(tmp_path, **limits))


def test_a_server_that_is_slow_to_answer_has_all_the_time(impatient, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        time.sleep(1)
        sock.sendall(whole(b"at last"))

    assert call(impatient, serve(talk).port).content == b"at last"


def test_a_server_that_takes_no_body_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: time.sleep(5))
    port, length = server.port, 50_000_000
    with impatient.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{port}/", f"Content-Length: {length}"))
        answer = flood(sock)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"takes no data" in answer

    def half(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        time.sleep(5)

    with impatient.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{serve(half).port}/", f"Content-Length: {length}"))
        answer = flood(sock)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not answer.endswith(b"0\r\n\r\n")


def flood(sock: socket.socket) -> bytes:
    """What comes while one writes and writes."""

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(bytes(1_000_000))

    threading.Thread(target=write, daemon=True).start()
    return read_all(sock)


def test_a_caller_that_does_not_read_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: sock.sendall(whole(bytes(50_000_000))))
    with impatient.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/"))
        assert server.ended.acquire(timeout=10)
        assert len(read_all(sock)) < 50_000_000


def test_a_tunnel_with_one_side_gone_ends_in_silence(impatient, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), time.sleep(5)))
    with tunnel(impatient, server) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_a_tunnel_that_is_only_silent_goes_on(impatient, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(SWITCH)
        time.sleep(1)
        sock.sendall(b"still here")

    with tunnel(impatient, serve(talk)) as sock:
        assert read_all(sock) == b"still here"


def test_a_tunnel_that_nobody_reads_from_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), sock.sendall(bytes(50_000_000))))
    with tunnel(impatient, server):
        assert server.ended.acquire(timeout=10)


def test_a_tunnel_whose_server_takes_a_byte_now_and_then_is_given_up(
    start, tmp_path, serve
) -> None:
    # The caller is gone, and unwatched: its bytes fill the buffer.
    daemon = start(program=small(tmp_path, FINISH_S=0.4, HALF_CLOSED_S=60.0))

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(SWITCH)
        until_s = time.monotonic() + 15
        while time.monotonic() < until_s and sock.recv(64):
            time.sleep(0.01)

    with tunnel(daemon, serve(talk)) as sock:
        sock.settimeout(0.2)
        with contextlib.suppress(OSError):
            while True:
                sock.send(bytes(100_000))
        sock.settimeout(10)
        came = b""
        with contextlib.suppress(ConnectionError):
            came = sock.recv(1)
        assert came == b""


@pytest.mark.parametrize("finish_s", [0.0, 60.0])
def test_a_buffer_is_full_until_it_has_room(
    monkeypatch: pytest.MonkeyPatch, finish_s: float
) -> None:
    monkeypatch.setattr(config, "FINISH_S", finish_s)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        pipe = relay.Pipe(near)
        assert pipe.full_left_s() is None
        while pipe.has_room:
            pipe.put(bytes(relay.ROOM_BYTES))
            pipe.flush()
        left = pipe.full_left_s()
        assert left is not None
        assert left <= finish_s
        far.recv(1_000_000)
        pipe.flush()
        assert not pipe.has_room or pipe.full_left_s() is None
        while pipe.waiting:
            far.recv(1_000_000)
            pipe.flush()
        assert pipe.full_left_s() is None
        assert pipe.left_s() is None
