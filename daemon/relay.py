"""Moves bytes between a caller and a server in the sandbox, both ways at once, in the caller's own thread.

What one side does not take is not read from the other: back-pressure in both directions, and two small
buffers. Waiting has no limit of its own, since the caller's leaving ends it; a side that takes nothing
of what waits for it for STALL_TIMEOUT_S does.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from typing import TYPE_CHECKING

from daemon import config, http1
from daemon.answers import AnswerError, AnswerReader
from daemon.exchange import CallerGoneError
from sandman import names
from sandman.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from daemon.answers import Answer
    from daemon.exchange import Exchange

ROOM_BYTES = 128 * 1024
"""Waits in each direction at most, and one read more."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_DROPPED = frozenset({
    "connection", "keep-alive", "te", "trailer", "transfer-encoding", "content-length", "upgrade",
})  # fmt: skip


class Pipe:
    """Bytes on their way to a socket that does not block."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting = bytearray()
        self._moved = time.monotonic()
        self._full_since = math.inf
        self._is_ended = False

    @property
    def has_room(self) -> bool:
        """Whether more may be read for it."""
        return len(self.waiting) < ROOM_BYTES

    def put(self, data: bytes) -> None:
        """Add bytes, and send what goes at once."""
        if not self.waiting:
            self._moved = time.monotonic()
        self.waiting += data
        if not self.has_room:
            self._full_since = min(self._full_since, time.monotonic())

    def flush(self) -> None:
        """Send what the socket takes.

        Raises:
            OSError: the other side is gone.
        """
        while self.waiting:
            try:
                sent = self.sock.send(self.waiting)
            except BlockingIOError:
                return
            del self.waiting[:sent]
            self._moved = time.monotonic()
            if self.has_room:
                self._full_since = math.inf

    def end(self) -> None:
        """Say that nothing more comes; may be repeated."""
        if not self._is_ended:
            self._is_ended = True
            with contextlib.suppress(OSError):  # both sides have ended by now
                self.sock.shutdown(socket.SHUT_WR)

    def left_s(self) -> float | None:
        """Seconds for which what waits may wait on; None: nothing does."""
        if not self.waiting:
            return None
        return self._moved + config.STALL_TIMEOUT_S - time.monotonic()

    def full_left_s(self) -> float | None:
        """Seconds for which it may have no room yet, though some bytes move; None: it has."""
        if self.has_room:
            return None
        return self._full_since + config.FINISH_S - time.monotonic()


class Relay:
    """One request to a server in the sandbox, and its answer.

    Args:
        exchange: the caller's.
        server: a connection to it.
        port: its number, for words and for the mark on its answer.
        upgrade: whether a WebSocket is asked for.
    """

    def __init__(
        self, exchange: Exchange, server: socket.socket, port: int, *, upgrade: bool
    ) -> None:
        self._exchange = exchange
        self._port = port
        self._up = Pipe(server)
        self._down = Pipe(exchange.sock)
        self._reader = AnswerReader(exchange.head.method, upgrade=upgrade)
        self._is_chunked = exchange.head.length is None
        """The end of the body is still to be said."""
        self._is_deaf = False
        self._is_over = False
        """The answer is whole, or will never be."""

    def run(self, request: bytes) -> None:
        """Send the request's head and body, and pass on the answer.

        Raises:
            CallerGoneError: the caller left, or takes nothing.
            OutcomeUnknownError: no answer came that could be passed on.
        """
        for sock in (self._up.sock, self._down.sock):
            sock.setblocking(False)
        try:
            self._up.put(request)
            self._read_caller()
            self._flush()
            while self._down.waiting or not self._is_over:
                self._step()
                self._flush()
            if self._reader.is_switched:
                Tunnel(self._up, self._down).run(self._exchange.rest)
        finally:
            self._down.sock.settimeout(config.STALL_TIMEOUT_S)

    # --- one round ---

    def _step(self) -> None:
        wanted = {self._down: self._caller_events(), self._up: self._server_events()}
        for pipe, events in wait(wanted, self._left_s()):
            if pipe is self._up:
                if events & ~select.POLLOUT and self._down.has_room:
                    self._read_server()
            elif events & _GONE:
                raise CallerGoneError("closed by the caller")
            elif events & select.POLLIN:
                self._read_caller()

    def _caller_events(self) -> int:
        events = select.POLLRDHUP
        if self._is_uploading and self._up.has_room:
            events |= select.POLLIN
        return events | select.POLLOUT if self._down.waiting else events

    def _server_events(self) -> int:
        if self._is_over:
            return 0
        events = select.POLLIN if self._down.has_room else 0
        return events | select.POLLOUT if self._up.waiting else events

    @property
    def _is_uploading(self) -> bool:
        done = self._is_deaf or self._is_over or self._exchange.body_is_done
        return not done

    def _flush(self) -> None:
        try:
            self._down.flush()
        except OSError as error:
            raise CallerGoneError(str(error)) from None
        try:
            self._up.flush()
        except OSError:
            # It may have answered all the same, and closed.
            self._is_deaf = True
            self._up.waiting.clear()

    def _left_s(self) -> float | None:
        """For how long nothing may happen."""
        caller, server = self._down.left_s(), self._up.left_s()
        if caller is not None and caller <= 0:
            raise CallerGoneError("the reader stalls")
        if server is not None and server <= 0 and not self._reader.answer:
            raise self._unknown(f"takes no data for {config.STALL_TIMEOUT_S:.0f} s")
        if server is not None and server <= 0:
            raise CallerGoneError("the server takes no more of the body")
        return min((left for left in (caller, server) if left is not None), default=None)

    # --- what comes ---

    def _read_caller(self) -> None:
        """More of the request's body; the first call also says that it may come."""
        try:
            pieces = self._exchange.receive() if self._is_uploading else []
        except BlockingIOError:
            return
        for piece in pieces:
            self._up.put(http1.encode_chunk(piece) if self._is_chunked else piece)
        if self._is_chunked and self._exchange.body_is_done:
            self._is_chunked = False
            self._up.put(http1.LAST_CHUNK)

    def _read_server(self) -> None:
        try:
            data = self._up.sock.recv(config.CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._break("broke the connection off")
            return
        if not data:
            self._end()
            return
        try:
            self._take(data)
        except AnswerError as error:
            self._break(f"gives no answer that could be passed on: {error}")

    def _take(self, data: bytes) -> None:
        had_head = self._reader.answer is not None
        pieces = self._reader.feed(data)
        answer = self._reader.answer
        if answer is None:
            return
        if not had_head:
            self._down.put(self._begin(answer))
        for piece in pieces:
            is_framed = answer.length is None and not self._reader.is_switched
            self._down.put(http1.encode_chunk(piece) if is_framed else piece)
        if self._reader.is_switched:
            self._is_over = True
        elif self._reader.is_done:
            self._finish(answer)

    def _begin(self, answer: Answer) -> bytes:
        headers = passed_headers(answer.headers)
        headers.append((names.HEADER_PORT, str(self._port)))
        if self._reader.is_switched:
            headers += [("Upgrade", "websocket"), ("Connection", "Upgrade")]
            return self._exchange.upgrade_bytes(headers)
        if not answer.has_body:
            if answer.length is not None and answer.status != 204:
                headers.append(("Content-Length", str(answer.length)))
            return self._exchange.bare_bytes(answer.status, headers)
        return self._exchange.begin_bytes(answer.status, headers, answer.length)

    def _finish(self, answer: Answer) -> None:
        if answer.has_body:
            if answer.length is None:
                self._down.put(http1.LAST_CHUNK)
            self._exchange.end()
        self._is_over = True

    def _end(self) -> None:
        """The server has closed its side."""
        if self._reader.may_end and self._reader.answer is not None:
            self._finish(self._reader.answer)
        else:
            self._break("closed the connection before the end of its answer")

    def _break(self, what: str) -> None:
        """No more of the answer will come; begun, it stays without an end, which is an error to callers."""
        if not self._exchange.is_answered:
            raise self._unknown(what)
        self._is_over = True

    def _unknown(self, what: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(f"the server on port {self._port} {what}", cause="sandbox")


class Tunnel:
    """Bytes both ways, whatever they are, until both sides have closed.

    When one has, the other is told so, and has HALF_CLOSED_S for each next word of its own. While what
    waits for one side has no room the other is not watched, and may be long gone: hence FINISH_S for that.
    """

    def __init__(self, up: Pipe, down: Pipe) -> None:
        self._pipes = (up, down)
        self._targets = {down: up, up: down}
        """Where the bytes go that are still read from a side."""
        self._moved = time.monotonic()

    def run(self, early: bytes) -> None:
        """Carry them.

        Args:
            early: what the caller sent before it was answered.

        Raises:
            CallerGoneError: it broke, on either side.
        """
        self._pipes[0].put(early)
        try:
            self._flush()
            while self._targets or any(pipe.waiting for pipe in self._pipes):
                self._step()
                self._flush()
        except OSError as error:
            raise CallerGoneError(str(error)) from None

    def _flush(self) -> None:
        for pipe in self._pipes:
            pipe.flush()
            if pipe not in self._targets.values() and not pipe.waiting:
                pipe.end()

    def _step(self) -> None:
        wanted = {pipe: self._events(pipe) for pipe in self._pipes}
        for pipe, events in wait(wanted, self._left_s()):
            if events & ~select.POLLOUT and pipe in self._targets:
                self._read(pipe)

    def _events(self, pipe: Pipe) -> int:
        target = self._targets.get(pipe)
        events = select.POLLIN if target is not None and target.has_room else 0
        return events | select.POLLOUT if pipe.waiting else events

    def _read(self, pipe: Pipe) -> None:
        self._moved = time.monotonic()
        data = pipe.sock.recv(config.CHUNK_BYTES)
        if data:
            self._targets[pipe].put(data)
        else:
            del self._targets[pipe]

    def _left_s(self) -> float | None:
        times = [pipe.left_s() for pipe in self._pipes]
        times += [pipe.full_left_s() for pipe in self._pipes]
        if len(self._targets) < 2:
            times.append(self._moved + config.HALF_CLOSED_S - time.monotonic())
        left = min((one for one in times if one is not None), default=None)
        if left is not None and left <= 0:
            raise CallerGoneError("one side of the tunnel stalls")
        return left


def wait(wanted: Mapping[Pipe, int], left_s: float | None) -> list[tuple[Pipe, int]]:
    """Wait for one of these events; what is wanted for nothing is not watched: its hang-up would wake us
    anew and anew."""
    poll = select.poll()
    pipes = {}
    for pipe, events in wanted.items():
        if events:
            poll.register(pipe.sock, events)
            pipes[pipe.sock.fileno()] = pipe
    ready = poll.poll(None if left_s is None else math.ceil(left_s * 1000))
    return [(pipes[fd], events) for fd, events in ready]


def passed_headers(given: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers that go on: those apart that are of one connection alone, and those that only we say."""
    headers = list(given)
    options = ",".join(value for name, value in headers if name == "connection")
    named = {option.strip().lower() for option in options.split(",")}
    return [
        (name, value)
        for name, value in headers
        if name not in _DROPPED
        and name not in named
        and not name.startswith(("sandman-", "proxy-"))
    ]
