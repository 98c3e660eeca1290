"""Wrappers around an ASGI application: what every server needs and no application should repeat.

Pure ASGI: Starlette's BaseHTTPMiddleware swallows disconnects.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio

from sandman import errors, names

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SERVICE_RESTART = 1012
"""Close code of a WebSocket whose server goes, of IANA's registry: come again."""
READ_AHEAD_BYTES = 256 * 1024
"""Bytes of a request's body taken from the server before the application asks. Enough that a small
body never hides a disconnect behind it; little enough to hold for thousands of requests."""


class _Body:
    """Messages on their way from the server to the application; a few may wait here."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._size = 0
        self._changed = trio.Condition()

    async def put(self, message: Message) -> None:
        """Hand a message over; waits while too much is waiting already."""
        async with self._changed:
            self._messages.append(message)
            self._size += len(message.get("body", b""))
            self._changed.notify_all()
            while self._size > READ_AHEAD_BYTES:
                await self._changed.wait()

    async def get(self) -> Message:
        """The next message."""
        async with self._changed:
            while not self._messages:
                await self._changed.wait()
            message = self._messages.popleft()
            self._size -= len(message.get("body", b""))
            self._changed.notify_all()
            return message


class CancelOnDisconnect:
    """Cancels the application's handling of a request when the caller's connection is gone.

    Without it a handler that waits (for a place in the queue, for a command) goes on for nobody:
    `Request.is_disconnected()` asks only when it is asked, and on trio some servers never answer it
    truly. The body reaches the application as it arrives, with back-pressure; while more than
    READ_AHEAD_BYTES of it are not taken, a disconnect is noticed only once they are.

    After the whole response was sent nothing is cancelled. WebSockets have their own messages for
    this and pass untouched. A client that shuts down its sending side only is taken for gone.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body()
        answered = False

        async def watch() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await body.put(message)
            if not answered:
                nursery.cancel_scope.cancel()

        async def send_on(message: Message) -> None:
            nonlocal answered
            answered = answered or is_end_of_response(message)
            await send(message)

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await self._app(scope, body.get, send_on)
            except Exception as error:  # noqa: BLE001 - raised below, out of the nursery's group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


def is_end_of_response(message: Message) -> bool:
    """Whether this is the last message of a response."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


class CloseWhenStopping:
    """Adds `Connection: close` to every response while the server is stopping.

    The other end then comes back on a new connection, to another replica. The API server keeps its
    connections to a webhook that is ending, and would send its next reviews there (kubernetes#127335).
    """

    def __init__(self, app: App, stop: trio.Event) -> None:
        self._app = app
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and self._stop.is_set():
                headers = [item for item in message.get("headers", ()) if item[0] != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_on)


class CloseSockets:
    """Ends WebSockets when `going` is set: close code 1012, "service restart".

    Their clients connect again, and get to a replica that stays. Cut instead, all that a client could
    see is 1006, as for any fault.
    """

    def __init__(self, app: App, going: trio.Event) -> None:
        self._app = app
        self._going = going

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one WebSocket, or pass on what is none."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        accepted = refused = going_down = False

        async def send_on(message: Message) -> None:
            nonlocal accepted, refused
            if going_down:  # the last word is said; the application will hear of it
                await trio.lowlevel.checkpoint()
                return
            accepted = accepted or message["type"] == "websocket.accept"
            refused = refused or message["type"] == "websocket.http.response.start"
            await send(message)

        async def watch() -> None:
            nonlocal going_down
            await self._going.wait()
            if refused:
                return  # its answer is on its way
            going_down = True
            if accepted:
                reason = "service restart"
                await send({"type": "websocket.close", "code": SERVICE_RESTART, "reason": reason})
            else:
                error = errors.UnreachableError("this server is stopping", retry_after=1.0)
                await _refuse(send, error, "websocket.")
            nursery.cancel_scope.cancel()

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await self._app(scope, receive, send_on)
            except Exception as error:  # noqa: BLE001 - raised below, out of the nursery's group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class LimitBody:
    """Answers 413 to a request whose body is longer than `max_bytes`, by its word or in fact.

    The application's `receive` raises TooLargeError then; it may also answer that itself.
    """

    def __init__(self, app: App, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        taken = 0

        async def receive_on() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            self._check(taken)
            return message

        async def send_on(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._check(_content_length(scope))
            await self._app(scope, receive_on, send_on)
        except errors.TooLargeError as error:
            # A response that has begun cannot be taken back: its connection ends without an end.
            if not started:
                await _refuse(send, error)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise errors.TooLargeError(f"the request's body is longer than {self._max_bytes} bytes")


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _refuse(send: Send, error: errors.SandmanError, kind: str = "") -> None:
    body = json.dumps(error.problem()).encode()
    headers = [
        (b"content-type", names.MEDIA_PROBLEM.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    start = {"type": f"{kind}http.response.start", "status": error.status, "headers": headers}
    await send(start)
    await send({"type": f"{kind}http.response.body", "body": body})
