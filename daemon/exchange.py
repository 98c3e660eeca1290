"""One request and its answer, as a handler sees them: pieces of a body in, an answer out."""

from __future__ import annotations

import math
import select
import socket
import time

from daemon import config, http1
from sandman.errors import BadRequestError, TooLargeError
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
        self.query: dict[str, bytes] = {}
        """The parameters that the call takes and that were given."""
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
            data = receive(self.sock)
        if not data:
            raise CallerGoneError("the body is shorter than announced")
        return self._decoder.feed(data)

    def body(self) -> Iterator[bytes]:
        """The body in pieces, read as they are asked for."""
        while not self.body_is_done:
            yield from self.receive()

    def views(self) -> Iterator[bytes | memoryview]:
        """The body in large pieces, each good only until the next one is asked for.

        They are read into one buffer: a large body costs no allocation and few calls.
        """
        buffer: memoryview | None = None
        while not self.body_is_done:
            direct = self._decoder.direct
            if not direct or self._early or self._owes_continue:
                yield from self.receive()
                continue
            buffer = buffer or memoryview(bytearray(config.BODY_BYTES))
            size = receive_into(self.sock, buffer[:direct])
            self._decoder.passed(size)
            yield buffer[:size]

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

    def respond(self, response: Response, until: float = math.inf) -> None:
        """Send a whole answer; `until` as of `send`."""
        body = b"" if self.head.method == "HEAD" else response.body
        headers = list(response.headers)
        if response.media_type:
            headers.append(("Content-Type", response.media_type))
        if response.status != 204 and not any(name == "Content-Length" for name, _ in headers):
            headers.append(("Content-Length", str(len(response.body))))
        self.send(self._head(response.status, headers) + body, until)

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

    def upgrade_bytes(self, headers: Iterable[tuple[str, str]]) -> bytes:
        """The head after which the connection speaks another protocol, to its end."""
        self.is_answered = True
        self.is_whole = False
        return http1.encode_head(101, headers)

    def end(self) -> None:
        """The body is complete, and framed as it was begun."""
        self.is_whole = True

    def bare_bytes(self, status: int, headers: Iterable[tuple[str, str]]) -> bytes:
        """The head of an answer without a body, whatever its headers say of one (HEAD, 204, 304)."""
        return self._head(status, list(headers))

    def _head(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        self.is_answered = True
        if not self.head.keep_alive or not self.body_is_done:
            headers.append(("Connection", "close"))
        return http1.encode_head(status, headers)

    def send(self, data: bytes | bytearray, until: float = math.inf) -> None:
        """Send all of it; a reader that takes nothing for STALL_TIMEOUT_S is gone, as is one that has not
        taken all when the clock is at `until`."""
        view = memoryview(data)
        try:
            while view:
                view = view[self.sock.send(view) :]
                if time.monotonic() > until:
                    raise CallerGoneError("the reader takes too long")
        except OSError as error:
            raise CallerGoneError(str(error)) from None

    def wait_writable(self) -> None:
        """Wait until the connection takes more; for who writes past `send`."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        if not poll.poll(config.STALL_TIMEOUT_S * 1000):
            raise CallerGoneError("the reader stalls")


def linger(sock: socket.socket) -> None:
    """Let the answer arrive before the connection goes down: see `config.LINGER_S`."""
    deadline = time.monotonic() + config.LINGER_S
    left = config.LINGER_BYTES
    try:
        sock.shutdown(socket.SHUT_WR)
        while left > 0 and (wait := deadline - time.monotonic()) > 0:
            sock.settimeout(wait)
            data = sock.recv(config.CHUNK_BYTES)
            if not data:
                return
            left -= len(data)
    except OSError:
        return


def receive_into(sock: socket.socket, buffer: memoryview) -> int:
    """Read some bytes of a body; how many.

    Raises:
        CallerGoneError: there are none any more.
    """
    try:
        size = sock.recv_into(buffer)
    except OSError as error:
        raise CallerGoneError(str(error)) from None
    if not size:
        raise CallerGoneError("the body is shorter than announced")
    return size


def receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(config.CHUNK_BYTES)
    except BlockingIOError:
        raise
    except OSError as error:
        raise CallerGoneError(str(error)) from None
