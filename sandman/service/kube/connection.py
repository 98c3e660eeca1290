"""One HTTP/1.1 connection to the API server: h11 over a trio stream. Used for one call at a time.

Own code, because this is the path of every claim. httpx and httpcore look at every pooled connection for
each request: 3.0 ms of CPU with 32 of them, against 0.8 here in the same minute. They leak a slot when a
request is cancelled in their pool (httpcore#1093) and a socket when it is cancelled in the TLS handshake;
and a reader that stops in the middle of an answer leaves async generators behind for the garbage collector.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import h11
import trio

from sandman.service.kube import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.service.kube import config

READ_BYTES = 64 * 1024
"""Bytes asked of the socket at once: a pod is 5 to 10 KB, a page of a list a few MB."""
ERROR_BODY_BYTES = 64 * 1024
"""Most that is read of a refused watch's body: a Status object, or a proxy's page."""
USER_AGENT = "sandman"
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, h11.ProtocolError)


@dataclasses.dataclass(frozen=True)
class Request:
    """One call, ready to send.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: below the target's base URL.
        params: the query.
        body: JSON, or None.
        content_type: of the body.
    """

    method: str
    path: str
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.params)}" if self.params else self.path

    def headers(self, host: str, token: str) -> list[tuple[str, str]]:
        """Its headers; the token is among them, so do not log them."""
        headers = [("Host", host), ("Accept", "application/json"), ("User-Agent", USER_AGENT)]
        if self.body is not None:
            headers.append(("Content-Type", self.content_type))
            headers.append(("Content-Length", str(len(self.body))))
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        return headers


class Connection:
    """An open connection. Leaving it half read is fine: close it."""

    def __init__(self, stream: trio.abc.Stream, raw: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._raw = raw
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    async def call(self, request: Request, token: str) -> bytes:
        """Send a request and read the whole answer.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        response = await self._start(request, token)
        chunks = []
        while chunk := await self.receive():
            chunks.append(chunk)
        body = b"".join(chunks)
        if response.status_code >= 400:
            raise _refusal(response, body)
        return body

    async def start(self, request: Request, token: str) -> None:
        """Send a request whose answer does not end by itself; then `receive`.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        response = await self._start(request, token)
        if response.status_code < 400:
            return
        body = b""
        while len(body) < ERROR_BODY_BYTES and (chunk := await self.receive()):
            body += chunk
        raise _refusal(response, body)

    async def receive(self) -> bytes:
        """The next piece of the answer's body; b"" at its end.

        Raises:
            UnavailableError: the connection broke.
        """
        try:
            event = await self._next_event()
        except BROKEN as error:
            raise errors.UnavailableError(f"the stream broke: {error!r}") from error
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def reset(self) -> bool:
        """Get ready for another call; False where this connection cannot take one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def is_stale(self) -> bool:
        """Whether an idle connection has something to read: that can only be its end."""
        return self._raw.socket.is_readable()

    async def aclose(self) -> None:
        """Close at once. No TLS goodbye: nothing could be lost, and the peer may not be reading."""
        await trio.aclose_forcefully(self._stream)

    async def _start(self, request: Request, token: str) -> h11.Response:
        message = h11.Request(
            method=request.method,
            target=request.target,
            headers=request.headers(self._host, token),
        )
        data = self._http.send(message) or b""
        if request.body:
            data += self._http.send(h11.Data(data=request.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        try:
            await self._stream.send_all(data)
            event = await self._next_event()
        except BROKEN as error:
            raise errors.UnavailableError(f"the connection failed: {error!r}") from error
        if not isinstance(event, h11.Response):
            raise errors.UnavailableError("the server closed the connection without an answer")
        return event

    async def _next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
            elif not isinstance(event, h11.InformationalResponse):
                return event


def _refusal(response: h11.Response, body: bytes) -> errors.KubeError:
    headers = dict(response.headers.raw_items())
    wait = next((value for name, value in headers.items() if name.lower() == b"retry-after"), b"")
    return errors.from_answer(response.status_code, body, wait.decode("latin-1"))


async def connect(target: config.Target) -> Connection:
    """Open a connection.

    Raises:
        UnavailableError: the server cannot be reached, or is not who it should be.
    """
    url = urlsplit(target.base_url)
    host, port = url.hostname or "", url.port or (443 if target.ssl else 80)
    try:
        plain = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise errors.UnavailableError(f"cannot connect: {error}", maybe_applied=False) from error
    if target.ssl is None:
        return Connection(plain, plain, url.netloc)
    secure = trio.SSLStream(
        plain, target.ssl, server_hostname=target.server_name or host, https_compatible=True
    )
    try:
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(plain)
        if isinstance(error, BROKEN):
            words = f"TLS failed: {error.__cause__ or error!r}"
            raise errors.UnavailableError(words, maybe_applied=False) from error
        raise
    return Connection(secure, plain, url.netloc)
