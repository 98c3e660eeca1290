"""What may answer at a daemon's port: scripts over real sockets, for what the real daemon never does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from sandman import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Script = Callable[["Call"], Awaitable[bool | None]]

INFO = b'{"boot_id":"b1"}'


def answer(body: bytes = INFO, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer; more lines are headers."""
    head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


class Call:
    """One request whose head has come in."""

    def __init__(self, stream: trio.SocketStream, data: bytes) -> None:
        self.stream = stream
        head, _, self.early = data.partition(b"\r\n\r\n")
        self.body = b""
        self.line, *lines = head.split(b"\r\n")
        parts = (line.partition(b": ") for line in lines)
        self.headers = {name.lower(): value for name, _, value in parts}

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read_body(self) -> bytes:
        """All of a body of known length, or to the last chunk."""
        data = self.early
        length = int(self.headers.get(b"content-length", b"-1"))
        chunked = b"transfer-encoding" in self.headers
        while (chunked and not data.endswith(b"0\r\n\r\n")) or len(data) < length:
            more = await self.stream.receive_some()
            if not more:
                break
            data += more
        self.body = data
        return data


class ScriptedDaemon:
    """Plays `script` for each request; keeps the requests."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.connections = 0
        self.port = 0
        self.script: Script = says(answer())

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                data = b""
                while b"\r\n\r\n" not in data:
                    more = await stream.receive_some()
                    if not more:
                        return
                    data += more
                call = Call(stream, data)
                self.calls.append(call)
                if not await self.script(call):
                    await trio.aclose_forcefully(stream)
                    return


def says(data: bytes, *, stay: bool = True) -> Script:
    """Answer with these bytes, and keep the connection or not."""

    async def script(call: Call) -> bool:
        await call.read_body()
        await call.send(data)
        return stay

    return script


def claims(script: Script, boot_id: bytes = b"b1") -> Script:
    """Shake hands as the real one does; `script` for everything else."""

    async def whole(call: Call) -> bool | None:
        if b"/v1/info" not in call.line and b"/v1/claim" not in call.line:
            return await script(call)
        await call.read_body()
        await call.send(answer(b'{"boot_id":"%s"}' % boot_id))
        return True

    return whole


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedDaemon]:
    daemon = ScriptedDaemon()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        daemon.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, daemon._serve, listeners)
        yield daemon
        nursery.cancel_scope.cancel()


BOOT_HEADER = names.HEADER_BOOT_ID.lower().encode()
