"""One connection: requests in turn, each handed on as an `Exchange`."""

from __future__ import annotations

import socket
import time

from daemon import config, http1
from daemon.exchange import CallerGoneError, Exchange, Scratch, linger, receive
from sandman import names, notation
from sandman.errors import BadRequestError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Connection:
    """A caller's connection, served by one thread until either side ends it."""

    def __init__(self, sock: socket.socket, handle: Callable[[Exchange], None]) -> None:
        self._sock = sock
        self._handle = handle
        self._buffer = b""
        self._scratch = Scratch()
        self.is_idle = True
        """Between two requests: it may be closed without harm."""

    def serve(self) -> None:
        """Answer requests in turn."""
        try:
            while self._serve_one():
                pass
        except CallerGoneError:
            pass
        finally:
            self._sock.close()

    def close_idle(self) -> None:
        """Wake the thread that waits for a request here; from another thread."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it went by itself

    def _serve_one(self) -> bool:
        try:
            raw = self._read_head()
            if raw is None:
                return False
            head = http1.parse_head(raw)
        except BadRequestError as error:
            self._refuse(error)
            return False
        exchange = Exchange(self._sock, head, self._buffer, self._scratch)
        self._buffer = b""
        self._sock.settimeout(config.STALL_TIMEOUT_S)
        self._handle(exchange)
        return self._settle(exchange)

    def _read_head(self) -> bytes | None:
        """The bytes before the empty line; None: the caller wants no more."""
        self.is_idle = True
        self._sock.settimeout(config.IDLE_TIMEOUT_S)
        deadline = None
        while (end := self._buffer.find(http1.HEAD_END, 0, config.MAX_HEAD_BYTES)) < 0:
            http1.check_early(self._buffer[: config.MAX_HEAD_BYTES])
            if len(self._buffer) >= config.MAX_HEAD_BYTES:
                raise BadRequestError(f"the head is over {config.MAX_HEAD_BYTES} bytes")
            if self._buffer:
                now = time.monotonic()
                deadline = deadline or now + config.HEAD_TIMEOUT_S
                self._sock.settimeout(max(0.001, deadline - now))
            data = receive(self._sock)
            if not data:
                return None
            self.is_idle = False
            self._buffer += data
        self.is_idle = False
        raw, self._buffer = self._buffer[:end], self._buffer[end + len(http1.HEAD_END) :]
        return raw

    def _refuse(self, error: BadRequestError) -> None:
        """Answer what cannot be understood; nothing after it can be, either."""
        body = notation.dumps(error.problem(), ascii_only=True).encode()
        headers = [("Content-Type", names.MEDIA_PROBLEM), ("Connection", "close")]
        headers.append(("Content-Length", str(len(body))))
        exchange = Exchange(self._sock, http1.Head("GET", "/", "", {}, 0, keep_alive=False))
        exchange.send(http1.encode_head(error.status, headers) + body)
        linger(self._sock)

    def _settle(self, exchange: Exchange) -> bool:
        """Whether the connection can carry another request."""
        if not exchange.is_whole or not exchange.is_answered:
            return False
        if not exchange.body_is_done:
            linger(self._sock)
            return False
        self._buffer = exchange.rest
        return exchange.head.keep_alive
