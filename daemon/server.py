"""Threads: gives each connection one, within bounds."""

from __future__ import annotations

import socket
import threading
import time

from daemon import config, log, signals
from daemon.connection import Connection
from daemon.http1 import encode_head
from sandman import names
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange

_STACK_BYTES = 4 * 1024 * 1024
"""Python's limit on nesting assumes a large stack: with musl's 128 KiB, and even with 1 MiB, a JSON
body of some thousand brackets ended PID 1. Only what is touched takes memory."""
_BUSY = (
    b'{"type": "urn:sandman:unreachable", "title": "unreachable", "status": 503, '
    b'"reason": "unreachable", "cause": "sandbox", "retryable": true, "retry_after": 1, '
    b'"detail": "too many connections or processes in the sandbox: nothing was done"}'
)
"""Of the sandbox's own making: the connections are from within, or its processes leave no room."""
_BUSY_HEADERS = (
    ("Content-Type", names.MEDIA_PROBLEM),
    ("Content-Length", str(len(_BUSY))),
    ("Retry-After", "1"),
    ("Connection", "close"),
)


class Server:
    """Accepts connections for one handler."""

    def __init__(self, sock: socket.socket, handle: Callable[[Exchange], None]) -> None:
        self._sock = sock
        self._handle = handle
        self._connections: dict[Connection, bool] = {}
        """Each with whether it comes from within the sandbox."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Accept from now on, in a thread of its own."""
        threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._run, name="accept", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                # Out of descriptors or memory, most likely by what runs in the sandbox: it passes.
                log.line(f"accept: {error}")
                time.sleep(0.05)
                continue
            except MemoryError:
                time.sleep(0.05)
                continue
            try:
                self._admit(sock)
            except (MemoryError, RuntimeError, OSError):
                # As above: this one is closed, and this thread goes on, for there is no other. To say so
                # might take memory, too.
                sock.close()

    def _admit(self, sock: socket.socket) -> None:
        """Give the connection a thread; when there are too many, an idle one gives way."""
        connection = Connection(sock, self._handle)
        is_within = comes_from_within(sock)
        with self._lock:
            if not self._make_room(is_within=is_within):
                _turn_away(sock)
                return
            self._connections[connection] = is_within
        try:
            threading.Thread(target=self._serve, args=(connection, sock), daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # the sandbox's limit of processes is reached
            self._forget(connection)
            log.line(f"no thread for a connection: {error}")
            _turn_away(sock)

    def _make_room(self, *, is_within: bool) -> bool:
        """Whether there is a place for one more. From within only those from within give way."""
        if len(self._connections) < min(config.MAX_WITHIN, config.MAX_CONNECTIONS):
            return True
        within = [one for one, is_from_within in self._connections.items() if is_from_within]
        if is_within and len(within) >= config.MAX_WITHIN:
            candidates = within
        elif len(self._connections) >= config.MAX_CONNECTIONS:
            candidates = within if is_within else [*within, *self._connections]
        else:
            return True
        idle = next((one for one in candidates if one.is_idle), None)
        if idle is None:
            return False
        del self._connections[idle]
        idle.close_idle()
        return True

    def _serve(self, connection: Connection, sock: socket.socket) -> None:
        signals.ignore_children()
        try:
            _tune(sock)
            connection.serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)


def comes_from_within(sock: socket.socket) -> bool:
    """Whether the other end is in this very sandbox: it came over the loopback, or from the address that it
    came to."""
    try:
        peer, own = sock.getpeername(), sock.getsockname()
    except OSError:
        return True  # it has gone again
    host = peer[0] if peer else ""
    on_loopback = host == "::1" or host.removeprefix("::ffff:").startswith("127.")
    return on_loopback or peer[:1] == own[:1]


def _turn_away(sock: socket.socket) -> None:
    with sock:
        sock.setblocking(False)
        try:
            sock.send(encode_head(503, _BUSY_HEADERS) + _BUSY)
        except OSError:
            return


def _tune(sock: socket.socket) -> None:
    """Send at once; notice within half a minute that the other machine is gone."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    except OSError:
        return
