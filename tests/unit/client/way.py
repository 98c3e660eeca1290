"""The way from a client to a real daemon: what the gateway does to paths, and connections that break."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.daemon.harness import Daemon

SANDBOX = "box-1"


class Way:
    """Forwards `/v1/sandboxes/box-1/x` to the daemon's `/v1/x`, one call a connection.

    `cuts`: after how many bytes of their answers the next connections break; None: never. `holds`: the
    next calls are carried out and their answers kept until the caller hangs up; set once one is there.
    `edits`: what is changed in what comes back, and into what.
    """

    def __init__(self, daemon: Daemon, tls: ssl.SSLContext | None = None) -> None:
        self.daemon = daemon
        self._tls = tls
        self.cuts: deque[int | None] = deque()
        self.holds: deque[threading.Event] = deque()
        self.calls: list[str] = []
        self.edits: list[tuple[bytes, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Way:
        self._spawn(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, call, *args) -> threading.Thread:
        thread = threading.Thread(target=call, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._spawn(self._serve, self._listener.accept()[0])

    def _serve(self, caller: socket.socket | Secure) -> None:
        if self._tls is not None:
            with contextlib.suppress(OSError):
                caller = Secure(self._tls.wrap_socket(caller, server_side=True))
        with contextlib.suppress(OSError), caller, self.daemon.connect() as upstream:
            data = b""
            while b"\r\n\r\n" not in data:
                piece = caller.recv(65536)
                if not piece:
                    return
                data += piece
            line, _, rest = data.partition(b"\r\n")
            self.calls.append(line.decode().rpartition(" ")[0])
            line = re.sub(rb"/v1/sandboxes/%b/" % SANDBOX.encode(), b"/v1/", line)
            cut = self.cuts.popleft() if self.cuts else None
            upstream.settimeout(None)
            upstream.sendall(line + b"\r\nConnection: close\r\n" + rest)
            feeder = self._spawn(pump, caller, upstream, None)
            if self.holds:
                held = self.holds.popleft()
                upstream.recv(1)
                held.set()
                feeder.join()
                return
            pump(upstream, caller, cut, self.edits)


class Secure:
    """TLS for two threads, of which one receives and the other sends.

    OpenSSL's state bears one at a time: with two, one record in some thousands on a busy machine does not
    decrypt at the other end.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._one = threading.Lock()

    def __enter__(self) -> Secure:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._one:
            self._sock.close()

    def recv(self, size: int) -> bytes:
        return self._when_it_can(lambda: self._sock.recv(size))

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._when_it_can(lambda rest=left: self._sock.send(rest)) :]

    def shutdown(self, how: int) -> None:
        with self._one:
            self._sock.shutdown(how)

    def _when_it_can(self, act):
        while True:
            try:
                with self._one:
                    return act()
            except (ssl.SSLWantReadError, BlockingIOError):
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            poll = select.poll()
            poll.register(max(0, self._sock.fileno()), event)  # closed: the next act says so
            poll.poll(1000)


def pump(
    source: socket.socket | Secure,
    target: socket.socket | Secure,
    most: int | None,
    edits: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Pass bytes on, at most so many; then both are at their end."""
    left = 10**12 if most is None else most
    with contextlib.suppress(OSError):
        while left and (data := source.recv(min(65536, left))):
            left -= len(data)
            for old, new in edits:
                data = data.replace(old, new)
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
