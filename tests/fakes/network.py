"""What lies between a client, a gateway and a sandbox, in virtual time: it can be cut and the gateway be away.

A fake of the kernel's part, not of ours: SYNs that nobody answers, a connection of which nothing is
acknowledged for as long as `gateway.dialling.KEEP_ALIVE` says, an interruption shorter than that, which nobody
notices. The daemon behind it knows as much as these tests ask.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import trio

from gateway.reach import SILENCE_S
from sandman import names, wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Frames = tuple[tuple[int, bytes], ...]


class Body(httpx.AsyncByteStream):
    """Pieces that an awaitable gives; None ends them. No generator: there is nothing to close."""

    def __init__(self, piece: Callable[[], Awaitable[bytes | None]]) -> None:
        self._piece = piece

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        data = await self._piece()
        if data is None:
            raise StopAsyncIteration
        return data


class Network(httpx.AsyncBaseTransport):
    """The gateway's way to one daemon.

    `command_s`: how long each command runs; `ran`: the ids of those that were started.
    """

    def __init__(self) -> None:
        self.command_s = 0.0
        self.ran: dict[str, float] = {}
        self.calls: list[str] = []
        self._claim: str | None = None
        self._cut_at: float | None = None
        self._change = trio.Event()

    def cut(self) -> None:
        self._cut_at = trio.current_time()
        self._told()

    def mend(self) -> None:
        self._cut_at = None
        self._told()

    def _told(self) -> None:
        self._change.set()
        self._change = trio.Event()

    async def _open(self) -> None:
        """Wait until packets pass."""
        while self._cut_at is not None:
            await self._change.wait()

    async def _given_up(self) -> None:
        """Wait until nothing passed for so long that the kernel ends the connection."""
        while True:
            if self._cut_at is None:
                await self._change.wait()
                continue
            with trio.move_on_at(self._cut_at + SILENCE_S):
                await self._open()
                continue
            return

    async def _under(self, work: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """What this gives, once packets pass; the kernel's error if that takes too long."""
        got: list[bytes | None] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._given_up()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            data = await work()
            await self._open()
            got.append(data)
            nursery.cancel_scope.cancel()
        if not got:
            raise httpx.ReadError("broken") from OSError(errno.ETIMEDOUT, "timed out")
        return got[0]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with trio.move_on_after(request.extensions["timeout"]["connect"]) as connecting:
            await self._open()
        if connecting.cancelled_caught:
            raise httpx.ConnectTimeout("no answer")
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        target = request.extensions["target"].decode()
        self.calls.append(f"{request.method} {target}")
        return await self._answer(request.method, urlsplit(target), body)

    async def _answer(self, method: str, url, body: bytes) -> httpx.Response:
        document = json.loads(body) if body else {}
        if url.path == "/v1/claim":
            self._claim = document["claim_id"]
        if url.path in {"/v1/claim", "/v1/info"}:
            return await self._json({"boot_id": "b1", "claim_id": self._claim})
        if url.path == "/v1/files":
            return await self._whole(b"content", names.MEDIA_BYTES)
        if url.path == "/v1/exec":
            self.ran.setdefault(document["exec_id"], trio.current_time())
            return self._frames(document["exec_id"], 0)
        exec_id = document.get("exec_id") or url.path.split("/")[3]
        if url.path.endswith("/output"):
            return self._frames(exec_id, int(parse_qs(url.query)["stdout"][0]))
        if method == "POST":
            self.ran.setdefault(exec_id, trio.current_time())
            return await self._json({"exec_id": exec_id, "state": "running"})
        return await self._state(exec_id, float(parse_qs(url.query).get("wait_s", ["0"])[0]))

    async def _state(self, exec_id: str, wait_s: float) -> httpx.Response:
        end = self.ran[exec_id] + self.command_s

        async def wait() -> None:
            await trio.sleep_until(min(end, trio.current_time() + wait_s))

        await self._under(wait)
        state = "ended" if trio.current_time() >= end else "running"
        return await self._json({"exec_id": exec_id, "state": state})

    async def _json(self, document: object) -> httpx.Response:
        return await self._whole(json.dumps(document).encode(), names.MEDIA_JSON)

    async def _whole(self, data: bytes, media: str) -> httpx.Response:
        async def nothing() -> None:
            await trio.lowlevel.checkpoint()

        await self._under(nothing)
        parts = [data]

        async def piece() -> bytes | None:
            await trio.lowlevel.checkpoint()
            return parts.pop() if parts else None

        return httpx.Response(200, headers={"content-type": media}, stream=Body(piece))

    def _frames(self, exec_id: str, offset: int) -> httpx.Response:
        """A command that says `done` at its end."""
        started = json.dumps({"exec_id": exec_id}).encode()
        result = json.dumps(wire.ExecResult(0).to_json()).encode()
        parts = [
            wire.encode_frame(wire.STDOUT, b"done"[offset:]) + wire.encode_frame(wire.EXIT, result),
            wire.encode_frame(wire.STARTED, started),
        ]

        async def piece() -> bytes | None:
            await trio.lowlevel.checkpoint()
            if not parts:
                return None
            data = parts.pop()

            async def ready() -> bytes:
                if not parts:
                    await trio.sleep_until(self.ran[exec_id] + self.command_s)
                return data

            return await self._under(ready)

        headers = {"content-type": names.MEDIA_FRAMES}
        return httpx.Response(200, headers=headers, stream=Body(piece))


class Door(httpx.AsyncBaseTransport):
    """The client's way to an ASGI application: its answers come as it gives them."""

    def __init__(self, application: Callable, nursery: trio.Nursery) -> None:
        self._application = application
        self._nursery = nursery
        self._calls: set[trio.CancelScope] = set()
        self.is_away = False

    def leave(self) -> None:
        """The gateway ends, and what it serves breaks off."""
        self.is_away = True
        for scope in self._calls:
            scope.cancel()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise httpx.ConnectError("refused")
        await request.extensions["trace"]("http11.send_request_headers.started", {})
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        send, receive = trio.open_memory_channel[dict](100)
        self._nursery.start_soon(self._run, request, body, send)
        try:
            start = await receive.receive()
        except trio.EndOfChannel:
            raise httpx.ReadError("broken off") from None

        over = False

        async def piece() -> bytes | None:
            nonlocal over
            if over:
                return None
            try:
                message = await receive.receive()
            except trio.EndOfChannel:
                raise httpx.ReadError("broken off") from None
            over = not message.get("more_body", False)
            return message.get("body", b"")

        return httpx.Response(start["status"], headers=start["headers"], stream=Body(piece))

    async def _run(self, request: httpx.Request, body: bytes, send: trio.MemorySendChannel) -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict:
            if not messages:
                await trio.sleep_forever()
            return messages.pop()

        raw_path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": request.method, "path": request.url.path, "raw_path": raw_path,
            "query_string": query, "server": ("gateway", 80), "client": ("client", 1), "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }  # fmt: skip
        async with send:
            with trio.CancelScope() as here:
                self._calls.add(here)
                await self._application(scope, receive, send.send)
            self._calls.discard(here)
