"""Connections of the HTTPS server: what anycorn's do otherwise than is wanted here."""

from __future__ import annotations

import contextlib
import io
import json
import ssl
from typing import TYPE_CHECKING, Any

import anycorn.protocol
import anyio
import anyio.streams.tls
import h11
import trio
from anycorn.events import Closed, Updated
from anycorn.protocol import h11 as http1
from anycorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from anycorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from anycorn.protocol.ws_stream import (
    ASGIWebsocketState,
    FrameTooLargeError,
    WebsocketBuffer,
    WSStream,
)
from anycorn.tcp_server import TCPServer
from wsproto.events import Message, TextMessage
from wsproto.frame_protocol import CloseReason

from sandman import errors, names

if TYPE_CHECKING:
    from anycorn.events import Event
    from anycorn.protocol.events import Event as StreamEvent
    from anycorn.worker_context import WorkerContext

FAREWELL_S = 2.0
"""Seconds until a WebSocket is cut whose message was too long. A connection that is closed with data
unread is reset, which would overtake the close frame that says why."""


class SecureStream(anyio.streams.tls.TLSStream):
    """TLS without goodbyes, whose `send` fails as the server expects it when the peer is gone.

    HTTP says itself where a message ends; and to wait for the other end's goodbye could be to wait for
    a pooled connection that nobody reads from.
    """

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What has arrived, of several records: one has 16 KiB, and each piece has its price."""
        data = await super().receive(max_bytes)
        pieces, left = [data], max_bytes - len(data)
        # Whatever ends this, the next call meets it again.
        with contextlib.suppress(ssl.SSLError):
            while left > 0 and (piece := self._ssl_object.read(left)):
                pieces.append(piece)
                left -= len(piece)
        return b"".join(pieces)

    async def send(self, item: bytes) -> None:
        if not item:
            return
        try:
            await super().send(item)
        except anyio.EndOfStream as error:
            raise anyio.BrokenResourceError from error


class _Request(HTTPStream):
    """A request; what the server refuses by itself gets a body that says so, as all errors have.

    A path that is no UTF-8, an application that ended without a word.
    """

    async def _send_error_response(self, status_code: int) -> None:
        self.state = ASGIHTTPState.CLOSED
        await _send_problem(self, status_code)


class _Buffer(WebsocketBuffer):
    """A message that is coming in. anycorn's counts characters, of up to four bytes, and takes what is
    too long before it refuses it."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length)
        self.is_overrun = False
        self._is_text = False
        self._bytes = io.BytesIO()

    def extend(self, event: Message[Any]) -> None:
        data = event.data.encode() if isinstance(event, TextMessage) else event.data
        self._is_text = isinstance(event, TextMessage)
        self.length += len(data)
        if self.length > self.max_length:
            self.clear()
            self.is_overrun = True
            raise FrameTooLargeError
        self._bytes.write(data)

    def clear(self) -> None:
        self.length = 0
        self._bytes = io.BytesIO()

    def to_message(self) -> dict[str, Any]:
        data = self._bytes.getvalue()
        text, data_or_none = (data.decode(), None) if self._is_text else (None, data)
        return {"type": "websocket.receive", "bytes": data_or_none, "text": text}


class _Socket(WSStream):
    """A WebSocket that ends at a message that is too long; anycorn's says so and goes on taking it.

    As a request's, its refusals have a body: a handshake that is none, a path that is no UTF-8.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - anycorn's own
        super().__init__(*args, **kwargs)
        self._incoming = _Buffer(self.config.websocket_max_message_size)
        self.buffer = self._incoming

    async def handle(self, event: StreamEvent) -> None:
        try:
            await super().handle(event)
        except UnicodeDecodeError:
            if not isinstance(event, Request):
                raise
            # Of a handshake's headers, which it reads as ASCII.
            await self._send_error_response(400)
            self.closed = True

    async def _handle_events(self) -> None:
        await super()._handle_events()
        if self._incoming.is_overrun and not self.closed:
            self.close_code = CloseReason.MESSAGE_TOO_BIG.value
            self.task_group.spawn(self._cut)
            # From here on `handle` passes over what comes, and the application knows.
            await self.handle(StreamClosed(stream_id=self.stream_id))

    async def _cut(self) -> None:
        await self.context.sleep(FAREWELL_S)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int) -> None:
        self.state = ASGIWebsocketState.HTTPCLOSED
        await _send_problem(self, status_code)


async def _send_problem(stream: _Request | _Socket, status_code: int) -> None:
    detail = "the path or the handshake cannot be understood"
    headers, body = _problem(status_code, detail)
    number = stream.stream_id
    await stream.send(Response(stream_id=number, headers=headers, status_code=status_code))
    await stream.send(Body(stream_id=number, data=body))
    await stream.send(EndBody(stream_id=number))
    await stream.send(StreamClosed(stream_id=number))


def _problem(status_code: int, detail: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an answer after which the connection ends."""
    error: errors.SandmanError
    if status_code >= 500:
        error = errors.InternalError("nothing answered the request")
    else:
        error = errors.BadRequestError(detail)
    error.status = status_code
    body = json.dumps(error.problem()).encode()
    headers = [
        (b"content-type", names.MEDIA_PROBLEM.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    return headers, body


class _Reader(h11.Connection):
    """h11's, which takes what another reader in front of us may take for something else: two framings, of which it
    heeds one, and versions that it does not speak."""

    is_over = False
    """Whether the connection has ended: what was read of it is nobody's request any more."""

    def next_event(self) -> Any:  # noqa: ANN401 - as h11 has it
        if self.is_over:
            return h11.ConnectionClosed()
        event = super().next_event()
        if isinstance(event, h11.Request) and (fault := _fault(event)):
            raise h11.RemoteProtocolError(fault)
        return event


def _fault(request: h11.Request) -> str:
    """Why it is not to be taken; empty when it may be."""
    seen = {name for name, _ in request.headers}
    if request.http_version not in {b"1.0", b"1.1"}:
        return "this is an HTTP/1.1 server"
    if b"transfer-encoding" in seen and b"content-length" in seen:
        return "Content-Length and Transfer-Encoding: which one is meant?"
    if b"transfer-encoding" in seen and request.http_version == b"1.0":
        return "HTTP/1.0 knows no Transfer-Encoding"
    return ""


class _Http1(http1.H11Protocol):
    """HTTP/1.1 and nothing else. anycorn's goes over to HTTP/2 where a client asks for it in clear text or simply
    begins, in TLS too: past the limits of here, and past any proxy that passed the question on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - anycorn's own
        super().__init__(*args, **kwargs)
        self.connection = _Reader(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )

    async def handle(self, event: Event) -> None:
        """What anycorn's does; and at the connection's end the reader goes on.

        It waits with the next request for the answer to this one to be whole. Of an answer that could not be sent it
        never is: the connection would stay for ever, and whoever resets often enough has them all.
        """
        if isinstance(event, Closed) and isinstance(self.connection, _Reader):
            self.connection.is_over = True
            await self.can_read.set()
        await super().handle(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """No upgrade: the question is passed over."""

    async def _send_error_response(self, status_code: int) -> None:
        """A problem, as all errors have. What cannot be understood is the caller's fault: h11 has 501 for codings."""
        status_code = 400 if status_code >= 500 else status_code
        headers, body = _problem(status_code, "the request cannot be understood")
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


# There is no other way to say which classes are to be used.
http1.HTTPStream = _Request  # type: ignore[attr-defined]
http1.WSStream = _Socket  # type: ignore[attr-defined]
anycorn.protocol.H11Protocol = _Http1  # type: ignore[attr-defined]


class Connection(TCPServer):
    """A connection that is over when its client closes it; anycorn's waits for `keep_alive_s` first, and
    after a WebSocket for the next ping."""

    context: Any

    async def protocol_send(self, event: Event) -> None:
        # An answer that is done after its client left would begin to wait for the next request.
        if not (isinstance(event, Updated) and event.idle and self.context.over.is_set()):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self.context.over.set()
        await self.idle_task.stop()


class ConnectionContext:
    """The server's context as one connection sees it: what sleeps for it wakes at its end."""

    def __init__(self, shared: WorkerContext) -> None:
        self._shared = shared
        self.over = trio.Event()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever anycorn asks for
        return getattr(self._shared, name)

    async def sleep(self, wait: float) -> None:
        with trio.move_on_after(wait):
            await self.over.wait()
