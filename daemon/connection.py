"""One connection: requests in turn, each an `Exchange` that a handler reads from and answers to."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from daemon import config, http1
from sandman.errors import BadRequestError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class CallerGoneError(Exception):
    """The caller's connection ended or stalled; nobody is there to answer."""


class Response(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes = b""
    media_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Scratch:
    """A connection's buffer for bytes on their way, made at first use.

    Without it each read would ask musl for 64 KiB and give it back: more work than the reading.
    """

    def __init__(self) -> None:
        self._buffer: bytearray | None = None

    def view(self) -> memoryview:
        """All of it."""
        if self._buffer is None:
            self._buffer = bytearray(config.CHUNK_BYTES)
        return memoryview(self._buffer)


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        sock: socket.socket,
        head: http1.Head,
        early: bytes = b"",
        scratch: Scratch | None = None,
    ) -> None:
        self.sock = sock
        self.head = head
        self.scratch = scratch or Scratch()
        self.is_answered = False
        self.is_whole = True
        """False once an answer was begun that cannot be ended: the connection must close."""
        self._decoder = http1.body_decoder(head)
        if not head.has_body:
            self._decoder.rest, early = early, b""
        self._early = early
        self._owes_continue = head.expects_continue and head.has_body and not early
        self._is_chunked = False

    # --- the request's body ---

    @property
    def body_is_done(self) -> bool:
        """Whether the whole body has been taken."""
        return self._decoder.is_done

    @property
    def rest(self) -> bytes:
        """Bytes of the next request that came along."""
        return self._decoder.rest if self._decoder.is_done else b""

    @property
    def owes_continue(self) -> bool:
        """Whether the caller still waits before it sends the body: then it sends none."""
        return self._owes_continue

    def receive(self) -> list[bytes]:
        """The next pieces of the body; blocks, or raises BlockingIOError on a non-blocking socket.

        Raises:
            CallerGoneError: the connection ended before the body did.
            BadRequestError: broken chunks.
        """
        if self._owes_continue:
            self._owes_continue = False
            self.send(http1.CONTINUE)
        data, self._early = self._early, b""
        if not data:
            data = _receive(self.sock)
        if not data:
            raise CallerGoneError("the body is shorter than announced")
        return self._decoder.feed(data)

    def body(self) -> Iterator[bytes]:
        """The body in pieces, read as they are asked for."""
        while not self.body_is_done:
            yield from self.receive()

    def read_body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            TooLargeError: it is longer than `limit` bytes.
        """
        error = TooLargeError(
            f"the body is over the limit of {limit} bytes", facts={"limit": limit}
        )
        if (self.head.length or 0) > limit:
            raise error
        pieces: list[bytes] = []
        size = 0
        for piece in self.body():
            size += len(piece)
            if size > limit:
                raise error
            pieces.append(piece)
        return b"".join(pieces)

    # --- the answer ---

    def respond(self, response: Response) -> None:
        """Send a whole answer."""
        body = b"" if self.head.method == "HEAD" else response.body
        headers = list(response.headers)
        if response.media_type:
            headers.append(("Content-Type", response.media_type))
        if response.status != 204 and not any(name == "Content-Length" for name, _ in headers):
            headers.append(("Content-Length", str(len(response.body))))
        self.send(self._head(response.status, headers) + body)

    def begin(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> None:
        """Send the head of an answer whose body follows by `send`; `length` None: in chunks."""
        self.send(self.begin_bytes(status, headers, length))

    def begin_bytes(
        self, status: int, headers: Iterable[tuple[str, str]], length: int | None
    ) -> bytes:
        """The same, for who sends by itself."""
        if length is None and not self.head.knows_chunks:
            raise BadRequestError("this answer needs HTTP/1.1")
        self.is_whole = False
        framing = ("Transfer-Encoding", "chunked")
        if length is not None:
            framing = ("Content-Length", str(length))
        return self._head(status, [*headers, framing])

    def end(self) -> None:
        """The body is complete, and framed as it was begun."""
        self.is_whole = True

    def _head(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        self.is_answered = True
        if not self.head.keep_alive or not self.body_is_done:
            headers.append(("Connection", "close"))
        return http1.encode_head(status, headers)

    def send(self, data: bytes | bytearray) -> None:
        """Send all of it; a reader that takes nothing for STALL_TIMEOUT_S is gone."""
        view = memoryview(data)
        try:
            while view:
                view = view[self.sock.send(view) :]
        except OSError as error:
            raise CallerGoneError(str(error)) from None

    def wait_writable(self) -> None:
        """Wait until the connection takes more; for who writes past `send`."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        if not poll.poll(config.STALL_TIMEOUT_S * 1000):
            raise CallerGoneError("the reader stalls")


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(config.CHUNK_BYTES)
    except BlockingIOError:
        raise
    except OSError as error:
        raise CallerGoneError(str(error)) from None


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
            if len(self._buffer) >= config.MAX_HEAD_BYTES:
                raise BadRequestError(f"the head is over {config.MAX_HEAD_BYTES} bytes")
            if self._buffer:
                now = time.monotonic()
                deadline = deadline or now + config.HEAD_TIMEOUT_S
                self._sock.settimeout(max(0.001, deadline - now))
            data = _receive(self._sock)
            if not data:
                return None
            self.is_idle = False
            self._buffer += data
        self.is_idle = False
        raw, self._buffer = self._buffer[:end], self._buffer[end + len(http1.HEAD_END) :]
        return raw

    def _refuse(self, error: BadRequestError) -> None:
        """Answer what cannot be understood; nothing after it can be, either."""
        body = str(error).encode()
        headers = [("Content-Type", "text/plain"), ("Connection", "close")]
        headers.append(("Content-Length", str(len(body))))
        exchange = Exchange(self._sock, http1.Head("GET", "/", "", {}, 0, keep_alive=False))
        exchange.send(http1.encode_head(error.status, headers) + body)
        self._linger()

    def _settle(self, exchange: Exchange) -> bool:
        """Whether the connection can carry another request."""
        if not exchange.is_whole or not exchange.is_answered:
            return False
        if not exchange.body_is_done:
            self._linger()
            return False
        self._buffer = exchange.rest
        return exchange.head.keep_alive

    def _linger(self) -> None:
        """Let the answer arrive before the connection goes down: see `config.LINGER_S`."""
        deadline = time.monotonic() + config.LINGER_S
        left = config.LINGER_BYTES
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while left > 0 and (wait := deadline - time.monotonic()) > 0:
                self._sock.settimeout(wait)
                data = self._sock.recv(config.CHUNK_BYTES)
                if not data:
                    return
                left -= len(data)
        except OSError:
            return
