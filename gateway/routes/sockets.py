"""WebSockets that go on to a sandbox's daemon: terminals, and servers inside the sandbox.

Whatever is wrong before the upgrade is answered as to any call: a problem document with its status.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway import scopes
from gateway.proxy import SAFE_HEADERS, response_headers
from gateway.routes import forward, ports
from gateway.tunnel import Route, Tunnels
from gateway.websocket import RefusedError
from sandman import names
from sandman.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Receive, Scope, Send

    from gateway.model import Principal
    from gateway.ports import Port
    from gateway.routes.context import Context
    from gateway.routes.tickets import TicketRoutes

SOCKETS = ("processes/{exec_id}/terminal", "ports/{port}/{path:path}")
"""Paths at the daemon that are WebSockets there. Nothing in the first may be percent-encoded."""

_PORT = re.compile(r"/v1/sandboxes/[^/]+/ports/.*", re.DOTALL)
_TERMINAL = re.compile(r"/v1/sandboxes/([A-Za-z0-9._-]+)/processes/([^/]+)/terminal")
_TICKET = b"ticket="
_DROPPED = {b"content-length", b"transfer-encoding", b"connection"}


class SocketRoutes:
    """Every WebSocket: an ASGI application for that kind of scope.

    Args:
        context: the parts.
        tickets: takes those of pages, which cannot set a header.
        refuse: an error as a response.
    """

    def __init__(
        self,
        context: Context,
        tickets: TicketRoutes,
        refuse: Callable[[Scope, Exception], Response],
    ) -> None:
        self._context = context
        self._tickets = tickets
        self._refuse = refuse
        proxy = context.proxy
        self.tunnels = Tunnels(proxy, proxy.registry, proxy.upstream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one, or refuse it."""
        await receive()  # `websocket.connect`, always
        is_open = False

        async def send_on(message: Message) -> None:
            nonlocal is_open
            is_open = is_open or message["type"] == "websocket.accept"
            await send(message)

        try:
            await self._carry(scope, receive, send_on)
        except RefusedError as refused:
            await _pass_on(refused, self._port(scope))(scope, receive, send)
        except Exception as error:
            if is_open:
                raise  # the server closes it with 1011
            response = self._refuse(scope, error)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = self._port(scope)
        ticket = None
        if port is None:
            # What is in the sandbox sees none of them, not even of those who came with a header besides.
            scope, ticket = _without_ticket(scope)
            if b"authorization" in dict(scope["headers"]):
                ticket = None
        connection = HTTPConnection(scope)
        if ticket is None:
            principal = await self._context.principal(connection)
        else:
            principal = await self._admit(connection, ticket)
        sandbox, tail = _terminal(scope) if port is None else (port[0], port[1].tail)
        need = scopes.EXEC if port is None else scopes.of_port(port[1].number)
        target = await forward.target(self._context, principal, sandbox, need, connection)
        path = forward.daemon_path(tail, connection)
        route = Route(target, path, None if port is None else port[1])
        await self.tunnels.run(route, scope, receive, send)

    async def _admit(self, connection: HTTPConnection, ticket: str) -> Principal:
        sandbox, tail = _terminal(connection.scope)
        return await self._tickets.admit(connection, ticket, sandbox, tail.split("/")[1])

    @staticmethod
    def _port(scope: Scope) -> tuple[str, Port] | None:
        is_port = _PORT.fullmatch(scope["raw_path"].decode("latin-1"))
        return ports.parse(scope["raw_path"]) if is_port else None


def _without_ticket(scope: Scope) -> tuple[Scope, str | None]:
    """The handshake without tickets in its query, which are not the daemon's business, and the ticket; None: there is
    none, or several, of which nobody can say which is meant."""
    parts = scope["query_string"].split(b"&")
    rest = [part for part in parts if not part.startswith(_TICKET)]
    found = [part for part in parts if part.startswith(_TICKET)]
    text = found[0].removeprefix(_TICKET).decode("latin-1") if len(found) == 1 else None
    return {**scope, "query_string": b"&".join(rest)}, text


def _terminal(scope: Scope) -> tuple[str, str]:
    match = _TERMINAL.fullmatch(scope["raw_path"].decode("latin-1"))
    if match is None or not names.is_exec_id(match[2]):
        raise NotFoundError(f"no WebSocket at {scope['path'][:200]}")
    return match[1], f"processes/{match[2]}/terminal"


def _pass_on(refused: RefusedError, port: tuple[str, Port] | None) -> Response:
    """The answer of the other end, which is no upgrade."""
    headers = response_headers(refused.headers, None if port is None else port[1])
    response = Response(refused.body, refused.status)
    kept = [header for header in headers if header[0] not in _DROPPED]
    response.raw_headers = [
        *kept,
        *SAFE_HEADERS,
        (b"content-length", str(len(refused.body)).encode()),
        (b"connection", b"close"),
    ]
    return response
