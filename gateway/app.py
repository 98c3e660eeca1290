"""The ASGI application: which path goes where, and how an error looks on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gateway.routes.forward import ForwardRoutes
from gateway.routes.sandboxes import SandboxRoutes
from gateway.routes.status import StatusRoutes
from sandman import names
from sandman.errors import (
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    SandmanError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from gateway.metrics import Metrics
    from gateway.routes.context import Context

log = structlog.get_logger()


def build(context: Context, metrics: Metrics, not_ready: Callable[[], list[str]]) -> Starlette:
    """The application over these parts.

    Args:
        not_ready: why the replica should get no new calls; empty when it should.
    """
    edge = _Edge(metrics)
    return Starlette(
        routes=[
            *SandboxRoutes(context, metrics).routes(),
            *ForwardRoutes(context).routes(),
            *StatusRoutes(metrics, not_ready).routes(),
        ],
        exception_handlers={
            SandmanError: edge.known,
            ExceptionGroup: edge.group,
            HTTPException: edge.http,
            Exception: edge.unknown,
        },
    )


class _Edge:
    """Errors → problem documents; the only place where they are."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

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
            allowed = (error.headers or {}).get("Allow", "")
            return self._response(
                MethodNotAllowedError(f"{request.method} is not possible here; possible: {allowed}")
            )
        if error.status_code == 404:
            return self._response(NotFoundError(f"no such path: {request.url.path}"))
        return self._response(InternalError(error.detail))

    async def unknown(self, request: Request, error: Exception) -> Response:
        """A fault of ours: 500, and never a status that could be taken for the caller's fault."""
        log.error("internal error", path=request.url.path, exc_info=error)
        return self._response(InternalError(f"a fault of the gateway: {type(error).__name__}"))

    def _response(self, error: SandmanError) -> Response:
        self._metrics.failed(error.reason)
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(error.retry_after)))
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(
            error.problem(),
            status_code=error.status,
            headers=headers,
            media_type=names.MEDIA_PROBLEM,
        )


def _first(error: BaseException) -> SandmanError | None:
    if isinstance(error, SandmanError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            if (found := _first(part)) is not None:
                return found
    return None
