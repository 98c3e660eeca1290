"""Calls that go on to a sandbox's daemon: commands and files."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import trio
from starlette.routing import Route

from gateway import reach, scopes
from gateway.proxy import Target
from sandman import names
from sandman.errors import ExpiredError, NotFoundError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.metrics import Metrics
    from gateway.model import Instance, Principal
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
    "sessions": ["GET", "POST"],
    "sessions/{name}": ["GET", "DELETE"],
    "sessions/{name}/run": ["POST"],
    "sessions/{name}/input": ["POST"],
    "sessions/{name}/interrupt": ["POST"],
}
"""Paths at the daemon that callers may reach, and by which methods. The claim is not among them."""
LOOKS = {"info", "processes", "processes/{exec_id}", "sessions", "sessions/{name}"}
"""Of these a GET without a query only looks at the sandbox's state: it renews no lease and is no activity, as
the daemon has it (`daemon.routes`)."""

COMMANDS = {"exec", "processes", "sessions/{name}/run"}
"""Those that run a command."""


class ForwardRoutes:
    """Endpoints over the proxy."""

    def __init__(self, context: Context, metrics: Metrics) -> None:
        self._context = context
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Where they are."""
        return [self._route(path, methods) for path, methods in FORWARDED.items()]

    def _route(self, path: str, methods: list[str]) -> Route:
        handler = functools.partial(self.forward, path)
        route = Route(f"/v1/sandboxes/{{id}}/{path}", handler, methods=methods, name=path)
        # Starlette adds HEAD to GET, which the daemon has of files alone.
        route.methods = set(methods)
        return route

    async def forward(self, path: str, request: Request) -> ASGIApp:
        """Any of `FORWARDED`."""
        principal = await self._context.principal(request)
        tail = _tail(path, request)
        is_use = not (path in LOOKS and request.method == "GET" and not request.url.query)
        need = scopes.of_call(path, request.method)
        to = await target(
            self._context, principal, request.path_params["id"], need, request, is_use=is_use
        )
        call = self._context.proxy.forward(to, daemon_path(tail, request))
        is_command = request.method == "POST" and path in COMMANDS
        return _Noted(call, to.instance, self._metrics) if is_command else call


class _Noted:
    """A command on its way; when its answer begins it may have been the sandbox's first."""

    def __init__(self, call: ASGIApp, instance: Instance, metrics: Metrics) -> None:
        self._call = call
        self._instance = instance
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it."""

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                one = self._instance
                self._metrics.commanded(one.id, one.tier, trio.current_time())
            await send(message)

        await self._call(scope, receive, send_on)


async def target(
    context: Context,
    principal: Principal,
    sandbox: str,
    need: str,
    connection: HTTPConnection,
    *,
    is_use: bool = True,
) -> Target:
    """The living sandbox with this id, and the daemon start that the caller means.

    Args:
        context: the parts.
        principal: who calls.
        sandbox: the id that the caller gave.
        need: what the call needs of a sandbox's token, of `scopes`.
        connection: the call; says how long its caller waits.
        is_use: the call is more than a look: it renews the sandbox's lease.

    Raises:
        SandmanError: none, somebody else's, or one that has ended.
    """
    until = reach.until(trio.current_time(), connection.scope["headers"])
    instance = await living(context, principal, sandbox, need)
    if is_use:
        context.keeper.use(instance)
    boot_id = principal.boot_id or await context.proxy.boot_id(instance, until)
    return Target(instance, boot_id, until)


async def living(context: Context, principal: Principal, sandbox: str, need: str) -> Instance:
    """The sandbox with this id; raises as `target`."""
    instance = await context.find(principal, sandbox, need)
    if instance.ending is not None:
        raise instance.ending.error(sandbox)
    if context.keeper.is_over(instance):
        # Its pod has some slack for calls that are under way; new ones have none.
        raise ExpiredError("its longest life was over", sandbox=sandbox)
    return instance


def daemon_path(tail: str, connection: HTTPConnection) -> str:
    """Path and query at the daemon. The raw query: decoding and encoding again would change names of
    files."""
    query = connection.scope["query_string"].decode("latin-1")
    return f"/v1/{tail}" + (f"?{query}" if query else "")


def _tail(path: str, request: Request) -> str:
    """The path at the daemon, put together from what was checked and nothing else.

    Raises:
        NotFoundError: the name of a command or session cannot be one, or something in the path was
            encoded.
    """
    tail = path
    for what in ("exec_id", "name"):
        given = request.path_params.get(what)
        if given is not None and not names.is_exec_id(given):
            raise NotFoundError(f"{given[:64]!r} cannot be the name of a command or session")
        tail = tail.replace(f"{{{what}}}", given or "")
    # Nothing in these paths needs encoding: what is encoded is meant to be read differently by two.
    raw = request.scope["raw_path"].partition(b"?")[0]
    if not raw.endswith(f"/{tail}".encode()):
        raise NotFoundError("no such path: percent-encoding has no place in it")
    return tail
