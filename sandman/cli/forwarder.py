"""A local port that leads to a server inside a sandbox: HTTP/1.1 and WebSockets, with the caller's token added.

What the gateway carries is HTTP: other protocols are answered with 400.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

import anyio
import h11
import httpcore
import httpx

from sandman._core.config import RELEASE_LIMIT_S
from sandman.cli import heads
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from anyio.abc import ByteStream

    from sandman.client import Sandbox

MOST_CONNECTIONS = 100
"""To one local port at once: a browser opens six, a load generator should be told that this is no load balancer."""
IDLE_S = 75.0
"""Seconds that a connection between two requests is kept."""
CONNECT_S = 10.0
_CHUNK_BYTES = 64 * 1024
_HEAD_MAX_BYTES = 32 * 1024
_OVER = {404, 410}
"""Statuses after which there is no sandbox to forward to."""
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""The caller is."""
Done = TypeVar("Done")


class Forwarder:
    """One port of one sandbox.

    Args:
        box: the sandbox.
        port: inside it.
        hosts: names of this machine, see `heads.check_caller`.
        say: tells a person.
    """

    def __init__(
        self, box: Sandbox, port: int, hosts: Collection[str], say: Callable[[str], None]
    ) -> None:
        self.port = port
        self._sandbox = box.id
        self._http = box.http(port, timeout=httpx.Timeout(None, connect=CONNECT_S))
        self._base = httpx.URL(box.port_url(port))
        self._prefix = self._base.raw_path.decode("ascii").rstrip("/")
        self._hosts = hosts
        self._say = say
        self._said = ""
        self._open = 0

    async def aclose(self) -> None:
        """Close the connections to the gateway, also when this is cancelled."""
        with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
            await self._http.aclose()

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection to its end.

        Raises:
            SandmanError: there is no such sandbox any more.
        """
        self._open += 1
        visit = _Visit(stream)
        try:
            async with stream:
                if self._open > MOST_CONNECTIONS:
                    await visit.refuse(503, f"more than {MOST_CONNECTIONS} connections at once")
                    return
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, _EndedError):
                    await self._serve(visit)
        finally:
            self._open -= 1

    async def _serve(self, visit: _Visit) -> None:
        while (request := await visit.request()) is not None:
            try:
                await self._carry(visit, request)
            except heads.RefusedError as refused:
                await visit.refuse(refused.status, refused.text)
                return
            except SandmanError as error:
                self._tell(str(error))
                await visit.refuse(502, str(error))
                if error.status in _OVER:
                    raise
                return
            except httpx.TransportError as error:
                text = f"the way to the gateway failed: {str(error) or type(error).__name__}"
                self._tell(text)
                await visit.refuse(502, text)
                return
            if not visit.again():
                return

    def _tell(self, text: str) -> None:
        """Once, and not for each of a browser's tries."""
        if text != self._said:
            self._said = text
            self._say(f"port {self.port}: {text}")

    async def _carry(self, visit: _Visit, request: h11.Request) -> None:
        headers = list(request.headers)
        heads.check_caller(headers, self._hosts)
        path = heads.path(request.target, self._prefix)
        onward = httpx.Request(
            request.method.decode("ascii"),
            self._base,
            headers=heads.request(headers, self._base.netloc),
            stream=_Body(visit),
            extensions={
                "target": f"{self._prefix}{path}".encode("latin-1"),
                "timeout": {"connect": CONNECT_S},
            },
        )
        response = await visit.while_there(
            lambda: self._http.send(onward, stream=True, follow_redirects=False)
        )
        self._said = ""
        try:
            if response.status_code == httpx.codes.SWITCHING_PROTOCOLS:
                found = heads.answer(response.headers.raw, self._prefix, upgrade=True)
                await visit.upgrade(found, response.extensions["network_stream"])
            else:
                await visit.while_there(lambda: self._answer(visit, response))
        finally:
            with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await response.aclose()

    async def _answer(self, visit: _Visit, response: httpx.Response) -> None:
        found = heads.answer(response.headers.raw, self._prefix)
        await visit.send(
            h11.Response(
                status_code=response.status_code,
                headers=found,
                reason=response.extensions.get("reason_phrase", b""),
            )
        )
        async for chunk in response.aiter_raw():
            await visit.send(h11.Data(data=chunk))
        await visit.send(h11.EndOfMessage())


class _EndedError(Exception):
    """The caller's connection is over, or makes no sense."""


class _Visit:
    """One connection of a caller here."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_MAX_BYTES)
        self._is_read = anyio.Event()
        """All of the request, so that nobody reads of the stream but who waits for its end."""

    async def request(self) -> h11.Request | None:
        """The next; None when there is none."""
        self._is_read = anyio.Event()
        with anyio.move_on_after(IDLE_S):
            event = await self._next()
            return event if isinstance(event, h11.Request) else None
        return None

    def again(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def piece(self) -> bytes | None:
        """Of the request's body the next, as it comes; None at its end."""
        if self._http.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        self._is_read.set()
        return None

    async def while_there(self, call: Callable[[], Awaitable[Done]]) -> Done:
        """What this call comes to; it is cancelled when the caller's side ends once the request was read.

        Raises:
            _EndedError: it did.
        """
        done: list[Done] = []
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self._end()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                done.append(await call())
            except Exception as error:  # noqa: BLE001 - raised below: here it would become a group
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if not done:
            raise _EndedError
        return done[0]

    async def _end(self) -> None:
        """Return at the end of the caller's side. What comes before it is of the next request, and kept for that."""
        await self._is_read.wait()
        kept = 0
        with suppress(*_GONE):
            while kept < _HEAD_MAX_BYTES:
                data = await self._stream.receive(_CHUNK_BYTES)
                self._http.receive_data(data)
                kept += len(data)
            await anyio.sleep_forever()

    async def send(self, event: h11.Event) -> None:
        """One event of the answer."""
        try:
            data = self._http.send(event)
        except h11.LocalProtocolError as error:
            raise _EndedError from error
        if data:
            await self._stream.send(data)

    async def refuse(self, status: int, text: str) -> None:
        """An answer of our own, where none has begun; the connection is not used again."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            raise _EndedError
        body = f"sandman port-forward: {text}\n".encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, _EndedError):
            await self.send(h11.Response(status_code=status, headers=headers))
            await self.send(h11.Data(data=body))
            await self.send(h11.EndOfMessage())

    async def upgrade(
        self, headers: list[heads.Header], other: httpcore.AsyncNetworkStream
    ) -> None:
        """Pass bytes on, both ways, until one side ends."""
        await self.send(h11.InformationalResponse(status_code=101, headers=headers))
        early, _ = self._http.trailing_data
        gone = (*_GONE, httpcore.NetworkError)
        async with anyio.create_task_group() as tasks:

            async def outward() -> None:
                with suppress(*gone):
                    if early:
                        await other.write(early)
                    async for data in self._stream:
                        await other.write(data)
                tasks.cancel_scope.cancel()

            tasks.start_soon(outward)
            with suppress(*gone):
                while data := await other.read(_CHUNK_BYTES):
                    await self._stream.send(data)
            tasks.cancel_scope.cancel()

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                await self._not_http(error)
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            try:
                data = await self._stream.receive(_CHUNK_BYTES)
            except anyio.EndOfStream:
                data = b""
            self._http.receive_data(data)

    async def _not_http(self, error: h11.RemoteProtocolError) -> NoReturn:
        if self._http.our_state is h11.IDLE or self._http.our_state is h11.SEND_RESPONSE:
            await self.refuse(
                error.error_status_hint, f"this is no HTTP that can be carried: {error}"
            )
        raise _EndedError from error


class _Body(httpx.AsyncByteStream):
    """A request's body on its way through."""

    def __init__(self, visit: _Visit) -> None:
        self._visit = visit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._visit.piece()
        if piece is None:
            raise StopAsyncIteration
        return piece
