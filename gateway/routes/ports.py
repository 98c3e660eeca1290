"""Calls that go on to a server inside a sandbox, whatever its paths and methods are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import Route

from gateway import scopes
from gateway.ports import Port
from gateway.routes import forward
from sandman import names
from sandman.errors import BadRequestError, NotFoundError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.routes.context import Context

_PATH = re.compile(rb"(/v1/sandboxes/([A-Za-z0-9._-]+)/ports/([^/]*))(/.*)?", re.DOTALL)


class PortRoutes:
    """Endpoints over the proxy. An ASGI application, so that every method comes here."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        below = Route("/v1/sandboxes/{id}/ports/{port}/{path:path}", self, name="port path")
        # Starlette's `path` ends at a line feed, which a path may well have in it.
        below.path_regex = re.compile(below.path_regex.pattern, re.DOTALL)
        return [Route("/v1/sandboxes/{id}/ports/{port}", self, name="port"), below]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one call."""
        request = Request(scope)
        principal = await self._context.principal(request)
        sandbox, port = parse(scope["raw_path"])
        need = scopes.of_port(port.number)
        target = await forward.target(self._context, principal, sandbox, need, request)
        path = forward.daemon_path(port.tail, request)
        call = self._context.proxy.forward(target, path, port)
        await call(scope, receive, send)


def parse(raw_path: bytes) -> tuple[str, Port]:
    """Sandbox and port out of a path as it came; what follows the port is kept byte for byte.

    Raises:
        NotFoundError: something before that is percent-encoded: it would be read differently by two.
        BadRequestError: there is no such port.
    """
    match = _PATH.fullmatch(raw_path)
    if match is None:
        raise NotFoundError(
            "no such path: percent-encoding has no place before the port's own paths"
        )
    prefix, sandbox, number, path = (part or b"" for part in match.groups())
    port = names.port_number(number.decode("latin-1"))
    if port is None:
        raise BadRequestError("a port is a number of 1 to 65535", field="port")
    # As latin-1 it is the same bytes again at the daemon.
    return sandbox.decode("ascii"), Port(port, prefix.decode("ascii"), path.decode("latin-1"))
