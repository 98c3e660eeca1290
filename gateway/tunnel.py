"""Carries a WebSocket between a caller and a path of the sandbox's daemon, message by message.

    caller ⇄ server (ASGI) ⇄ here ⇄ websocket.DaemonSocket ⇄ daemon

One message at a time each way: who does not take what came holds up who sends. Each side's goodbye
becomes the other's, with its code; where there was none, the close frame says why in our own words.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import trio

from gateway import calls, websocket
from gateway.daemons import LostError, NotListeningError
from sandman import names
from sandman.errors import (
    OutcomeUnknownError,
    QuotaError,
    SandmanError,
    TooLargeError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from gateway.either import Registries
    from gateway.model import Instance
    from gateway.ports import Port
    from gateway.proxy import Proxy, Target
    from gateway.registry import Registry
    from gateway.upstream import Upstream
    from gateway.websocket import DaemonSocket

    Direction = Callable[[], Awaitable["_End"]]

SOCKETS_MAX = 2048
"""WebSockets that one replica carries at once; some 60 KB each when idle."""
SOCKETS_PER_SANDBOX_MAX = 64
"""Of them for one sandbox: a notebook has a dozen, and no sandbox may have them all. Each may hold some
messages of MESSAGE_MAX_BYTES, see docs/limits.md."""
RETRY_S = 5.0
"""Seconds until it makes sense to ask again when there are too many."""
REASON_MAX_BYTES = 120
"""Of a close frame's reason, which with its code has 125 (RFC 6455)."""
ASK_S = 2.0
"""Seconds for a daemon to say that it lives, when one of its WebSockets broke off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """Where a WebSocket leads.

    `path` is path and query at the daemon; `port` the server in the sandbox, where it is one.
    """

    target: Target
    path: str
    port: Port | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """How it ended: what each side is told; None: it knows."""

    to_caller: tuple[int, str] | None
    to_daemon: int | None


class Tunnels:
    """All WebSockets of this replica.

    Args:
        proxy: knows why a sandbox has ended.
        registry: ends a call when its sandbox does.
        upstream: the way to the daemons.
    """

    def __init__(self, proxy: Proxy, registry: Registry | Registries, upstream: Upstream) -> None:
        self._proxy = proxy
        self._registry = registry
        self._upstream = upstream
        self.open = 0
        self._of_sandbox: Counter[str] = Counter()
        """How many are open by the sandbox's uid; none are not in it."""

    async def run(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one, from its handshake to its end.

        Args:
            route: where it leads.
            scope: of the caller's handshake, whose `websocket.connect` was taken.
            receive: the caller's messages.
            send: to the caller.

        Raises:
            RefusedError: the answer there is an HTTP response.
            QuotaError: the sandbox has SOCKETS_PER_SANDBOX_MAX of them here.
            SandmanError: it was not accepted yet, and will not be.
        """
        with self._place(route.target.instance):
            await self._run(route, scope, _Caller(receive, send))

    @contextlib.contextmanager
    def _place(self, instance: Instance) -> Iterator[None]:
        if self.open >= SOCKETS_MAX:
            raise UnreachableError(
                "this gateway carries as many WebSockets as it can", retry_after=RETRY_S
            )
        if self._of_sandbox[instance.uid] >= SOCKETS_PER_SANDBOX_MAX:
            raise QuotaError(
                f"{SOCKETS_PER_SANDBOX_MAX} WebSockets of this sandbox are open; close some",
                sandbox=instance.id,
                retry_after=RETRY_S,
            )
        self.open += 1
        self._of_sandbox[instance.uid] += 1
        try:
            yield
        finally:
            self.open -= 1
            self._of_sandbox[instance.uid] -= 1
            if not self._of_sandbox[instance.uid]:
                del self._of_sandbox[instance.uid]

    async def _run(self, route: Route, scope: Scope, caller: _Caller) -> None:
        instance = route.target.instance
        end: _End | None = None
        lost: LostError | None = None
        call = calls.of(scope)
        with (
            trio.CancelScope() as ended,
            self._registry.during(instance.uid, ended),
            call.during(ended),
        ):
            if (over := self._proxy.losses.known_end(instance)) is not None:
                # It ended between the look-up and here: nobody would cancel this call.
                raise over
            headers = _headers(route, scope)
            try:
                async with contextlib.AsyncExitStack() as stack:
                    opening = self._upstream.open_socket(
                        instance,
                        route.path,
                        headers,
                        scope["subprotocols"],
                        self._proxy.dial_until(route.target),
                    )
                    socket = await caller.while_here(stack.enter_async_context(opening))
                    if socket is None:
                        return
                    await caller.accept(socket)
                    end = await _Exchange(caller, socket).run()
            except LostError as error:
                lost = error
        if end is None:
            why = call.error or await self._why(route, lost)
            if not caller.is_accepted:
                raise why
            code = _code(why) if call.error is None else websocket.POLICY
            end = _End((code, str(why)), None)
        if end.to_caller is not None:
            await caller.close(*end.to_caller)

    async def _why(self, route: Route, lost: LostError | None) -> SandmanError:
        """Why there is no more of it: the sandbox's end, or something in a sandbox that lives."""
        if lost is not None and lost.sent and await self._lives(route):
            return OutcomeUnknownError(f"in the sandbox: {lost}", cause="sandbox")
        return await self._proxy.losses.diagnose(
            route.target.instance, lost, "GET", route.target.until
        )

    async def _lives(self, route: Route) -> bool:
        try:
            info = await self._upstream.info(route.target.instance, ASK_S)
        except (NotListeningError, SandmanError):
            return False
        return info.boot_id == route.target.boot_id


class _Caller:
    """The caller's side."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._kept: list[Message] = []
        """What was read before the accept; one at most."""
        self.is_accepted = False
        self.left: int | None = None
        """The code of the caller's goodbye; None while it is here."""

    async def while_here(self, opening: Awaitable[DaemonSocket]) -> DaemonSocket | None:
        """What this gives; it is cancelled, and the answer None, when the caller leaves before."""

        async def watch() -> None:
            self._kept.append(await self._receive())
            if self._kept[0]["type"] == "websocket.disconnect":
                nursery.cancel_scope.cancel()

        socket: DaemonSocket | None = None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                socket = await opening
            except Exception as error:  # noqa: BLE001 - raised below, out of the nursery's group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return socket

    async def accept(self, socket: DaemonSocket) -> None:
        mark = [header for header in socket.headers if header[0].lower() == _MARK]
        accept = {"type": "websocket.accept", "subprotocol": socket.subprotocol, "headers": mark}
        self.is_accepted = True
        await self._send(accept)

    async def receive(self) -> str | bytes | None:
        """The next message; None when the caller has left."""
        message = self._kept.pop() if self._kept else await self._receive()
        if message["type"] == "websocket.disconnect":
            self.left = int(message.get("code") or websocket.NO_STATUS)
            return None
        text = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def send(self, message: str | bytes) -> None:
        text, data = (message, None) if isinstance(message, str) else (None, message)
        await self._send({"type": "websocket.send", "text": text, "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, and let the answer come before the connection goes: a reset would overtake it."""
        with trio.move_on_after(websocket.FAREWELL_S):
            reason = reason.encode()[:REASON_MAX_BYTES].decode("utf-8", "ignore")
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
            while self.left is None:
                await self.receive()


class _Exchange:
    """Both directions at once; the first that ends, ends both."""

    def __init__(self, caller: _Caller, socket: DaemonSocket) -> None:
        self._caller = caller
        self._socket = socket
        self._end: _End | None = None
        self._lost = LostError("it ended in no way at all", sent=True)

    async def run(self) -> _End:
        async with trio.open_nursery() as nursery:
            for direction in (self._up, self._down):
                nursery.start_soon(self._until_end, direction, nursery.cancel_scope)
        if self._end is None:
            raise self._lost
        if self._end.to_daemon is not None:
            await self._socket.close(self._end.to_daemon)
        return self._end

    async def _until_end(self, direction: Direction, both: trio.CancelScope) -> None:
        try:
            end = await direction()
        except LostError as error:
            self._lost = error
            # Sending may fail before the other end's goodbye was read.
            both.deadline = trio.current_time() + (
                websocket.FAREWELL_S if direction == self._up else 0
            )
        else:
            self._end = self._end or end
            both.cancel()

    async def _up(self) -> _End:
        while (message := await self._caller.receive()) is not None:
            await self._socket.send(message)
        return _End(None, self._caller.left)

    async def _down(self) -> _End:
        while True:
            try:
                message = await self._socket.receive()
            except websocket.ClosedError as closed:
                return _End((closed.code, closed.reason), closed.code)
            except websocket.TooBigError:
                most = websocket.MESSAGE_MAX_BYTES
                error = TooLargeError(f"a message from the sandbox has over {most} bytes")
                return _End((websocket.TOO_BIG, str(error)), websocket.TOO_BIG)
            await self._caller.send(message)


def _code(why: SandmanError) -> int:
    """Of the close frame, which has no room for facts."""
    is_silent = isinstance(why, UnreachableError) and names.FACT_SILENT_S in why.facts
    return names.CLOSE_OUT_OF_REACH if is_silent else websocket.INTERNAL


_MARK = names.HEADER_PORT.lower().encode()


def _headers(route: Route, scope: Scope) -> Sequence[tuple[bytes, bytes]]:
    passed = [] if route.port is None else route.port.request_headers(scope["headers"])
    return [*passed, (names.HEADER_BOOT_ID.encode(), route.target.boot_id.encode())]
