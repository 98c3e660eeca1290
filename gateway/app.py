"""The ASGI application: which path goes where, and how an error looks on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import structlog
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from gateway import calls
from gateway.handoff import BrokenAnswerError
from gateway.openapi import document
from gateway.proxy import BrokenBodyError, has_body
from gateway.routes.certificates import CertificateRoutes
from gateway.routes.context import Json
from gateway.routes.forward import ForwardRoutes
from gateway.routes.leases import LeaseRoutes
from gateway.routes.networks import NetworkRoutes
from gateway.routes.overview import OverviewRoutes
from gateway.routes.page import PageRoutes
from gateway.routes.ports import PortRoutes
from gateway.routes.requests import RequestRoutes
from gateway.routes.reservations import ReservationRoutes
from gateway.routes.sandboxes import SandboxRoutes
from gateway.routes.sockets import SocketRoutes
from gateway.routes.status import DescriptionRoutes, StatusRoutes
from gateway.routes.tickets import TicketRoutes
from gateway.routes.tokens import TokenRoutes
from sandman import names
from sandman.errors import (
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    SandmanError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.metrics import Metrics
    from gateway.routes.context import Context

log = structlog.get_logger()

LINGER_S = 2.0
"""How long a body that nobody wants is read away after its answer, as the daemon does."""
LINGER_BYTES = 16 * 1024 * 1024


def build(context: Context, metrics: Metrics, not_ready: Callable[[], list[str]]) -> ASGIApp:
    """The application over these parts.

    Args:
        not_ready: why the replica should get no new calls; empty when it should.
    """
    edge = _Edge(metrics)
    tickets = TicketRoutes(context)
    routes = table(context, metrics, tickets, not_ready)
    application = Starlette(
        routes=[*routes, *PageRoutes().routes()],
        exception_handlers={
            SandmanError: edge.known,
            ExceptionGroup: edge.group,
            HTTPException: edge.http,
            Exception: edge.unknown,
        },
    )
    # A path with a slash too many is another path: a redirect would lose the body, and says nothing.
    application.router.redirect_slashes = False
    sockets = SocketRoutes(context, tickets, edge.refuse)
    metrics.watch_sockets(lambda: sockets.tunnels.open)
    metrics.watch_pool(context.pool)
    metrics.watch_networks(context.pool.networks.enforced)
    whole = calls.Ending(ByKind(Lingering(application), sockets), context.calls, edge.refuse)
    port = context.settings.metrics_port
    status = Starlette(routes=StatusRoutes(metrics.render_all, not_ready).routes())
    return ByPort(whole, {port: status}) if port else whole


def table(
    context: Context, metrics: Metrics, tickets: TicketRoutes, not_ready: Callable[[], list[str]]
) -> list[Route]:
    """Every call that there is, WebSockets and the page's files apart. `openapi` describes the same."""
    sandboxes = SandboxRoutes(context, metrics)
    return [
        *sandboxes.routes(),
        *RequestRoutes(context, sandboxes.hand_over).routes(),
        *ForwardRoutes(context, metrics).routes(),
        *PortRoutes(context).routes(),
        *ReservationRoutes(context).routes(),
        *LeaseRoutes(context).routes(),
        *NetworkRoutes(context).routes(),
        *TokenRoutes(context).routes(),
        *CertificateRoutes(context).routes(),
        *tickets.routes(),
        *OverviewRoutes(context, metrics).routes(),
        *DescriptionRoutes(document.text()).routes(),
        *StatusRoutes(metrics.render, not_ready).routes(),
    ]


class ByPort:
    """One port is for callers, another for those who run the platform, and leads nowhere else."""

    def __init__(self, app: ASGIApp, others: Mapping[int, ASGIApp]) -> None:
        self._app = app
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one of either."""
        app = self._others.get(scope["server"][1], self._app)
        await app(scope, receive, send)


class ByKind:
    """Calls go one way, WebSockets another."""

    def __init__(self, calls: ASGIApp, sockets: ASGIApp) -> None:
        self._calls = calls
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one of either."""
        app = self._sockets if scope["type"] == "websocket" else self._calls
        await app(scope, receive, send)


class Lingering:
    """Reads the rest of an upload that was answered early (413, no such path) before the answer ends.

    Else the connection would be closed with bytes of the caller's in it, and the reset that the kernel
    sends then overtakes the answer: the caller sees a broken connection and not why.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        upload = _Upload(receive)

        async def send_on(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if not is_last or upload.is_whole:
                await send(message)
                return
            await send({**message, "more_body": True})
            await upload.drain()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, upload.receive, send_on)


class _Upload:
    """A request's body on its way in."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self.is_whole = not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Take what is left, within limits."""
        left = LINGER_BYTES
        with trio.move_on_after(LINGER_S):
            while not self.is_whole and left > 0:
                left -= len((await self.receive()).get("body", b""))


class _Edge:
    """Errors → problem documents; the only place where they are."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def refuse(self, scope: Scope, error: Exception) -> Response:
        """Any error, of a WebSocket that is not accepted."""
        ours = _first(error)
        return self._response(ours) if ours else self._fault(scope, error)

    async def known(self, _request: Request, error: Exception) -> Response:
        """One of ours."""
        return self._response(cast("SandmanError", error))

    async def group(self, request: Request, error: Exception) -> Response:
        """What a nursery gathered: the first of ours in it speaks for all."""
        ours = _first(error)
        return self._response(ours) if ours else await self.unknown(request, error)

    async def http(self, request: Request, failure: Exception) -> Response:
        """Starlette's own: no such path, no such method."""
        error = cast("HTTPException", failure)
        if error.status_code == 405:
            allowed = ", ".join(_methods(request))
            response = self._response(
                MethodNotAllowedError(f"{request.method} is not possible here; possible: {allowed}")
            )
            response.headers["Allow"] = allowed
            return response
        if error.status_code == 404:
            return self._response(NotFoundError(f"no such path: {request.scope['path']}"))
        return self._response(InternalError(error.detail))

    async def unknown(self, request: Request, error: Exception) -> Response:
        """A fault of ours: 500, and never a status that could be taken for the caller's fault."""
        if _is_cut(error):
            log.info("an answer was cut off", path=request.scope["path"], error=str(error))
            # Nobody gets it: another had begun.
            return Response(status_code=502)
        return self._fault(request.scope, error)

    def _fault(self, scope: Scope, error: Exception) -> Response:
        log.error("internal error", path=scope["path"], exc_info=error)
        return self._response(InternalError(f"a fault of the gateway: {type(error).__name__}"))

    def _response(self, error: SandmanError) -> Response:
        self._metrics.failed(error.reason)
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(error.retry_after)))
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Json(
            error.problem(),
            status_code=error.status,
            headers=headers,
            media_type=names.MEDIA_PROBLEM,
        )


def _methods(request: Request) -> list[str]:
    """Every method of this path: each has a route of its own, and Starlette names the first's alone."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


def _is_cut(error: BaseException) -> bool:
    """Whether what made the answer was lost in the middle of it, sandbox or allocator."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cut(part) for part in error.exceptions)
    return isinstance(error, (BrokenBodyError, BrokenAnswerError))


def _first(error: BaseException) -> SandmanError | None:
    if isinstance(error, SandmanError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            if (found := _first(part)) is not None:
                return found
    return None
