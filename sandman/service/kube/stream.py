"""One GET whose answer does not end by itself, on a connection of its own: a watch.

h11 over a trio stream, and not httpcore: a reader that stops in the middle of its response leaves
async generators behind for the garbage collector to close. Here closing is one call.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11
import trio

from sandman.service.kube import config, errors, transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_BYTES = 64 * 1024
"""Bytes asked of the socket at once: a pod's event is 5 to 10 KB."""
ERROR_BODY_BYTES = 64 * 1024
"""Most that is read of a refusal's body: a Status object, or a proxy's page."""
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, h11.ProtocolError)


class Stream:
    """The body of one answer, chunk by chunk."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def receive(self) -> bytes:
        """The next chunk; b"" at the body's end.

        Raises:
            UnavailableError: the connection broke.
        """
        try:
            event = await self._next_event()
        except BROKEN as error:
            raise errors.UnavailableError(f"the stream broke: {error!r}") from error
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def start(self, request: transport.Request, host: str, token: str) -> None:
        """Send the request and read the answer's head.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        headers = list(request.headers(host, token).items())
        message = h11.Request(method=request.method, target=request.target, headers=headers)
        try:
            await self._stream.send_all(self._http.send(message) or b"")
            await self._stream.send_all(self._http.send(h11.EndOfMessage()) or b"")
            event = await self._next_event()
        except BROKEN as error:
            raise errors.UnavailableError(f"the connection failed: {error!r}") from error
        if not isinstance(event, h11.Response):
            raise errors.UnavailableError("the server closed the connection without an answer")
        if event.status_code >= 400:
            await self._refuse(event)

    async def _refuse(self, response: h11.Response) -> None:
        body = b""
        while len(body) < ERROR_BODY_BYTES and (chunk := await self.receive()):
            body += chunk
        headers = {
            name.decode().lower(): value.decode("latin-1") for name, value in response.headers
        }
        raise errors.from_answer(response.status_code, body, headers.get("retry-after"))

    async def _next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
            elif not isinstance(event, h11.InformationalResponse):
                return event


@contextlib.asynccontextmanager
async def open_stream(
    target: config.Target, request: transport.Request, token: str
) -> AsyncIterator[Stream]:
    """Connect, ask, and give the answer's body; leaving the block closes the connection at once.

    Raises:
        KubeError: by the answer's status, or UnavailableError where none came.
    """
    url = urlsplit(target.base_url)
    connection = await _connect(target, url.hostname or "", url.port)
    try:
        stream = Stream(connection)
        await stream.start(request, url.netloc, token)
        yield stream
    finally:
        # No TLS goodbye: there is nothing that could be lost, and the peer may not be reading.
        await trio.aclose_forcefully(connection)


async def _connect(target: config.Target, host: str, port: int | None) -> trio.abc.Stream:
    try:
        plain = await trio.open_tcp_stream(host, port or (443 if target.ssl else 80))
    except OSError as error:
        raise errors.UnavailableError(f"cannot connect: {error}", maybe_applied=False) from error
    if target.ssl is None:
        return plain
    secure = trio.SSLStream(
        plain, target.ssl, server_hostname=target.server_name or host, https_compatible=True
    )
    try:
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(plain)
        if isinstance(error, BROKEN):
            raise errors.UnavailableError(f"TLS failed: {error!r}", maybe_applied=False) from error
        raise
    return secure
