"""Connections of the HTTPS server: what anycorn's do otherwise than is wanted here."""

from __future__ import annotations

import contextlib
import io
import json
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import anyio.streams.tls
import trio
from anycorn.protocol import h11 as http1
from anycorn.protocol.events import Body, EndBody, Response, StreamClosed
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
    error: errors.SandmanError
    if status_code >= 500:
        error = errors.InternalError("nothing answered the request")
    else:
        error = errors.BadRequestError("the path or the handshake cannot be understood")
    error.status = status_code
    body = json.dumps(error.problem()).encode()
    headers = [
        (b"content-type", names.MEDIA_PROBLEM.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    number = stream.stream_id
    await stream.send(Response(stream_id=number, headers=headers, status_code=status_code))
    await stream.send(Body(stream_id=number, data=body))
    await stream.send(EndBody(stream_id=number))
    await stream.send(StreamClosed(stream_id=number))


# There is no other way to say which classes are to be used.
http1.HTTPStream = _Request  # type: ignore[attr-defined]
http1.WSStream = _Socket  # type: ignore[attr-defined]


class Connection(TCPServer):
    """A connection that is over when its client closes it; anycorn's waits for `keep_alive_s` first, and
    after a WebSocket for the next ping."""

    context: Any

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
