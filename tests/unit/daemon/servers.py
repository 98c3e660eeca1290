"""Servers behind a port, and calls of them, for tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from tests.unit.daemon.harness import Daemon


class Server:
    """A server on the loopback that handles each connection with `talk`."""

    def __init__(self, talk: Callable[[socket.socket, bytes], None], host: str) -> None:
        self._talk = talk
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, 0), family=family)
        self.port = self._sock.getsockname()[1]
        self.heads: list[bytes] = []
        self.ended = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(20)
        with sock, contextlib.suppress(OSError):
            head, _, rest = until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")
            self.heads.append(head)
            self._talk(sock, rest)
        self.ended.release()

    def close(self) -> None:
        # A close alone does not wake who accepts.
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def until(sock: socket.socket, mark: bytes) -> bytes:
    """All that comes, up to a piece with this mark in it."""
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        if not more:
            raise ConnectionError("ended early")
        data += more
    return data


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    running: list[Server] = []

    def make(talk: Callable[[socket.socket, bytes], None], host: str = "127.0.0.1") -> Server:
        running.append(Server(talk, host))
        return running[-1]

    yield make
    for one in running:
        one.close()


def says(*pieces: bytes) -> Callable[[socket.socket, bytes], None]:
    """A server that says this to whatever it is asked, and closes."""

    def talk(sock: socket.socket, _rest: bytes) -> None:
        for piece in pieces:
            sock.sendall(piece)

    return talk


def whole(body: bytes, *lines: bytes) -> bytes:
    """An answer of known length."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *lines, b"", body])


def call(
    daemon: Daemon, port: int, path: str = "/", method: str = "GET", **kwargs
) -> httpx.Response:
    return daemon.client.request(method, f"/v1/ports/{port}{path}", **kwargs)
