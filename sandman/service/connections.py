"""Connections of the HTTPS server: what anycorn's do otherwise than is wanted here."""

from __future__ import annotations

import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import anyio.streams.tls
import trio
from anycorn.protocol import h11 as http1
from anycorn.protocol.events import Body, EndBody, Response, StreamClosed
from anycorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from anycorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from anycorn.tcp_server import TCPServer

from sandman import errors, names

if TYPE_CHECKING:
    from anycorn.worker_context import WorkerContext


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


class _Socket(WSStream):
    """The same for a WebSocket: a handshake that is none, a path that is no UTF-8."""

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
