"""WebSockets as tests speak them: a server's side at a scripted daemon, and a caller's side."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
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
from wsproto.utilities import generate_accept_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.daemons import Call


class Peer:
    """One end of an open WebSocket."""

    def __init__(self, stream: trio.abc.Stream, protocol) -> None:
        self.stream = stream
        self.protocol = protocol
        self.subprotocol: str | None = None
        self.headers: dict[str, str] = {}
        self.pings = 0
        self._events: list = []
        self._sending = trio.Lock()

    async def event(self):
        """The next event; None at the end of the connection."""
        while True:
            self._events += self.protocol.events()
            if self._events:
                return self._events.pop(0)
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.protocol.receive_data(bytes(data))

    async def receive(self) -> str | bytes | tuple[int, str] | None:
        """The next message; code and reason of a close; None at the end of the connection."""
        parts: list = []
        while True:
            event = await self.event()
            if event is None:
                return None
            if isinstance(event, Ping):
                self.pings += 1
                await self.say(event.response())
            elif isinstance(event, CloseConnection):
                with contextlib.suppress(Exception):
                    await self.say(event.response())
                return int(event.code), event.reason or ""
            elif isinstance(event, Message):
                parts.append(event.data)
                if event.message_finished:
                    return type(parts[0])().join(parts)

    async def say(self, event) -> None:
        async with self._sending:
            await self.stream.send_all(self.protocol.send(event))

    async def send(self, message: str | bytes) -> None:
        is_text = isinstance(message, str)
        await self.say(TextMessage(message) if is_text else BytesMessage(message))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self.say(CloseConnection(code, reason))


async def upgraded(call: Call, *lines: bytes) -> Peer:
    """Accept the handshake that this call is; more lines are headers."""
    token = generate_accept_token(call.headers[b"sec-websocket-key"])
    head = [
        b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + token, *lines,
    ]  # fmt: skip
    await call.send(b"\r\n".join(head) + b"\r\n\r\n")
    return Peer(call.stream, Connection(ConnectionType.SERVER))


async def echo(peer: Peer) -> None:
    """Send back what comes, to the end."""
    while isinstance(message := await peer.receive(), str | bytes):
        await peer.send(message)


class Refused(Exception):  # noqa: N818
    """The answer to a handshake was an HTTP response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(status, headers, body)
        self.status = status
        self.headers = headers
        self.body = body


@contextlib.asynccontextmanager
async def connected(
    stream: trio.abc.Stream, target: str, headers: dict[str, str], *subprotocols: str
) -> AsyncIterator[Peer]:
    """A caller's WebSocket over this stream.

    Raises:
        Refused: it was not accepted.
    """
    try:
        yield await _shaken(stream, target, headers, subprotocols)
    finally:
        await trio.aclose_forcefully(stream)


async def _shaken(stream, target: str, headers: dict[str, str], subprotocols) -> Peer:
    peer = Peer(stream, WSConnection(ConnectionType.CLIENT))
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    await peer.say(Request("x", target, subprotocols=list(subprotocols), extra_headers=extra))
    event = await peer.event()
    if isinstance(event, RejectConnection):
        body = b""
        while isinstance(part := await peer.event(), RejectData):
            body += part.data
            if part.body_finished:
                break
        raise Refused(event.status_code, _texts(event.headers), body)
    assert isinstance(event, AcceptConnection), event
    peer.subprotocol = event.subprotocol
    peer.headers = _texts(event.extra_headers)
    return peer


def _texts(headers) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in headers}
