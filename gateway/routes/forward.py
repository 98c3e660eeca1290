"""Calls that go on to a sandbox's daemon: commands and files."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from starlette.routing import Route

from sandman import names
from sandman.errors import ExpiredError, NotFoundError

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
    "processes": ["GET", "POST"],
    "processes/{exec_id}": ["GET", "DELETE"],
    "processes/{exec_id}/output": ["GET"],
    "processes/{exec_id}/stdin": ["POST"],
    "processes/{exec_id}/signal": ["POST"],
    "processes/{exec_id}/resize": ["POST"],
}
"""Paths at the daemon that callers may reach, and by which methods. The claim is not among them."""


class ForwardRoutes:
    """Endpoints over the proxy."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route(
                f"/v1/sandboxes/{{id}}/{path}",
                functools.partial(self.forward, path),
                methods=methods,
                name=path,
            )
            for path, methods in FORWARDED.items()
        ]

    async def forward(self, path: str, request: Request) -> ASGIApp:
        """Any of `FORWARDED`."""
        principal = self._context.principal(request)
        tail = _tail(path, request)
        sandbox = request.path_params["id"]
        instance = await self._context.find(principal, sandbox)
        if instance.ending is not None:
            raise instance.ending.error(sandbox)
        if instance.expires_at is not None and self._context.wall() >= instance.expires_at:
            # Its pod has some slack for calls that are under way; new ones have none.
            raise ExpiredError("its lease ran out", sandbox=sandbox)
        proxy = self._context.proxy
        boot_id = principal.boot_id or await proxy.boot_id(instance)
        # The raw query: decoding and encoding again would change names of files.
        query = request.scope["query_string"].decode("latin-1")
        return proxy.forward(instance, boot_id, f"/v1/{tail}" + (f"?{query}" if query else ""))


def _tail(path: str, request: Request) -> str:
    """The path at the daemon, put together from what was checked and nothing else.

    Raises:
        NotFoundError: the command's name cannot be one, or something in the path was encoded.
    """
    exec_id = request.path_params.get("exec_id")
    if exec_id is not None and not names.is_exec_id(exec_id):
        raise NotFoundError(f"{exec_id[:64]!r} cannot be the id of a command")
    tail = path.replace("{exec_id}", exec_id or "")
    # Nothing in these paths needs encoding: what is encoded is meant to be read differently by two.
    raw = request.scope["raw_path"].partition(b"?")[0]
    if not raw.endswith(f"/{tail}".encode()):
        raise NotFoundError("no such path: percent-encoding has no place in it")
    return tail
