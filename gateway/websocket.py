"""One WebSocket to a daemon, from our side: messages in and out, within limits.

wsproto knows the protocol; here are the stream, the bounds and our errors. What answers may be hostile:
its handshake, its messages and its silence are all limited.
"""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from gateway.daemons import LostError
from gateway.dialling import broken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wsproto.events import Event

MESSAGE_MAX_BYTES = 4 * 1024 * 1024
"""Of one message, in either direction. A message is held whole; a screenshot or a notebook's output fits."""
STALL_S = 120.0
"""Seconds for which a daemon may take nothing of a message: then whatever reads there is given up."""
FAREWELL_S = 2.0
"""Seconds that the other end has to answer a close frame."""
REFUSAL_MAX_BYTES = 64 * 1024
"""Of the body of an answer that is no upgrade."""
READ_BYTES = 64 * 1024
EVENTS_AT_ONCE = 64
"""Frames taken apart in one go: 64 KiB of the shortest ones would hold up all other calls for 0.3 s."""

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
NO_STATUS = 1005
ABNORMAL = 1006
POLICY = 1008
TOO_BIG = 1009
INTERNAL = 1011

Header = tuple[bytes, bytes]


class RefusedError(Exception):
    """The answer to the handshake is an HTTP response and no WebSocket."""

    def __init__(self, status: int, headers: list[Header], body: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class ClosedError(Exception):
    """The other end said goodbye."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class TooBigError(Exception):
    """A message over MESSAGE_MAX_BYTES came in; that is its end and the connection's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """What is asked for.

    `host` is the Host header's value; `target` path and query, as they are.
    """

    host: str
    target: str
    headers: Sequence[Header]
    subprotocols: Sequence[str] = ()


class DaemonSocket:
    """An open WebSocket. One task receives, others may send. Made by `shake`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: Iterator[Event] = iter(())
        self._taken = 0
        self._sending = trio.Lock()
        self._is_torn = False
        """Whether a frame was sent in part and never ended: whatever followed would count as the rest of it."""
        self.subprotocol: str | None = None
        self.headers: list[Header] = []
        """Of the answer to the handshake, those apart that belong to it."""

    async def open(self, opening: Opening) -> None:
        """Shake hands.

        Raises:
            RefusedError: the answer is another one.
            LostError: there is none, or it makes no sense.
        """
        request = Request(
            host=opening.host,
            target=opening.target,
            subprotocols=list(opening.subprotocols),
            extra_headers=list(opening.headers),
        )
        await self._send(request)
        event = await self._next()
        if isinstance(event, RejectConnection) and event.status_code >= 200:
            body = await self._refusal() if event.has_body else b""
            raise RefusedError(event.status_code, list(event.headers), body)
        if not isinstance(event, AcceptConnection):
            raise LostError("its answer is no WebSocket's", sent=True)
        self.subprotocol = event.subprotocol
        self.headers = list(event.extra_headers)

    async def receive(self) -> str | bytes:
        """The next message. Pings are answered meanwhile.

        Raises:
            ClosedError: it was the last one.
            TooBigError: it is too long.
            LostError: the connection broke without a word, or what comes makes no sense.
        """
        # Not a list of parts: of four million parts of one byte each that would be a gigabyte.
        message = io.BytesIO()
        while True:
            event = await self._next()
            if isinstance(event, Ping):
                await self._send(event.response())
            elif isinstance(event, CloseConnection):
                self._raise_closed(event)
            elif isinstance(event, Message):
                is_text = isinstance(event, TextMessage)
                message.write(event.data.encode() if is_text else event.data)
                if message.tell() > MESSAGE_MAX_BYTES:
                    raise TooBigError
                if event.message_finished:
                    return message.getvalue().decode() if is_text else message.getvalue()

    def _raise_closed(self, event: CloseConnection) -> None:
        if self._protocol.state is ConnectionState.OPEN:
            # wsproto says so what it could not read; the other end has said no goodbye.
            raise LostError(f"its WebSocket makes no sense: {event.reason}", sent=True)
        raise ClosedError(int(event.code), event.reason or "")

    async def send(self, message: str | bytes) -> None:
        """Send a message; waits while the other end takes nothing.

        Raises:
            LostError: the connection broke, or nothing was taken for STALL_S.
        """
        event: Event = TextMessage(message) if isinstance(message, str) else BytesMessage(message)
        await self._send(event)

    async def close(self, code: int, reason: str = "") -> None:
        """Say goodbye, and wait a moment for the answer; not where a frame was broken off."""
        if code in {NO_STATUS, ABNORMAL}:
            code = NORMAL if code == NO_STATUS else GOING_AWAY
        with trio.move_on_after(FAREWELL_S, shield=True):
            try:
                await self._send(CloseConnection(code, reason))
                while self._protocol.state is not ConnectionState.CLOSED:
                    await self._next()
            except LostError:
                return

    async def _send(self, event: Event) -> None:
        async with self._sending:
            if self._is_torn:
                raise LostError("a frame to it was broken off", sent=True)
            try:
                data = self._protocol.send(event)
                self._is_torn = True
                with trio.fail_after(STALL_S):
                    await self._stream.send_all(data)
                self._is_torn = False
            except ProtocolError:
                return  # it is closing: nobody reads that any more
            except trio.TooSlowError as error:
                raise LostError("it takes no data", sent=True) from error
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise broken(error, "the connection broke") from error

    async def _next(self) -> Event:
        while (event := next(self._events, None)) is None:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise broken(error, "the connection broke") from error
            if not data:
                raise LostError("the connection ended without a close frame", sent=True)
            try:
                self._protocol.receive_data(bytes(data))
            except (ProtocolError, UnicodeError) as error:
                raise LostError(f"its answer makes no sense: {error}", sent=True) from error
            self._events = iter(self._protocol.events())
        self._taken += 1
        if self._taken % EVENTS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        return event

    async def _refusal(self) -> bytes:
        """The body of an answer that is no upgrade; what is too long is cut, as is what breaks off."""
        body = b""
        try:
            while len(body) < REFUSAL_MAX_BYTES:
                event = await self._next()
                if not isinstance(event, RejectData):
                    break
                body += event.data
                if event.body_finished:
                    break
        except LostError:
            return body
        return body[:REFUSAL_MAX_BYTES]
