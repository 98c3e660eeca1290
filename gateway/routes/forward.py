"""Calls that go on to a sandbox's daemon: commands and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from sandman.errors import ExpiredError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from gateway.routes.context import Context

FORWARDED = {
    "exec": ["POST"],
    "files": ["GET", "HEAD", "PUT", "DELETE"],
    "files/stat": ["GET"],
    "files/list": ["GET"],
    "files/move": ["POST"],
    "files/mkdir": ["POST"],
    "archive": ["GET", "PUT"],
    "info": ["GET"],
}
"""Paths at the daemon that callers may reach, and by which methods. The claim is not among them."""


class ForwardRoutes:
    """Endpoints over the proxy."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route(f"/v1/sandboxes/{{id}}/{path}", self.forward, methods=methods, name=path)
            for path, methods in FORWARDED.items()
        ]

    async def forward(self, request: Request) -> ASGIApp:
        """Any of `FORWARDED`."""
        principal = self._context.principal(request)
        sandbox = request.path_params["id"]
        instance = await self._context.find(principal, sandbox)
        if instance.ending is not None:
            raise instance.ending.error(sandbox)
        if instance.expires_at is not None and self._context.wall() >= instance.expires_at:
            # Its pod has some slack for calls that are under way; new ones have none.
            raise ExpiredError("its lease ran out", sandbox=sandbox)
        proxy = self._context.proxy
        boot_id = principal.boot_id or await proxy.boot_id(instance)
        # Not of `request.url`, which is put together with the caller's Host header.
        path = request.scope["path"].split("/", 4)[4]
        # The raw query: decoding and encoding again would change names of files.
        query = request.scope["query_string"].decode("latin-1")
        return proxy.forward(instance, boot_id, f"/v1/{path}" + (f"?{query}" if query else ""))
