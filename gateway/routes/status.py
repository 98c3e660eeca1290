"""Health, readiness and metrics: without a token, and without anything of a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.metrics import Metrics
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request


class DescriptionRoutes:
    """What there is to ask, for whoever generates clients.

    Args:
        document: OpenAPI, as it is served.
    """

    def __init__(self, document: bytes) -> None:
        self._document = document

    def routes(self) -> list[Route]:
        """Where it is."""
        return [Route("/v1/openapi.json", self.show, methods=["GET"])]

    async def show(self, _request: Request) -> Response:
        """The whole of it."""
        return Response(self._document, media_type=names.MEDIA_JSON)


class StatusRoutes:
    """Endpoints for the platform.

    Args:
        render: the metrics as text.
        missing: what this replica still waits for, empty when it can serve.
    """

    def __init__(self, render: Callable[[], bytes], missing: Callable[[], list[str]]) -> None:
        self._render = render
        self._missing = missing

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/healthz", self.health, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def health(self, _request: Request) -> Response:
        """The event loop turns."""
        return PlainTextResponse("ok")

    async def ready(self, _request: Request) -> Response:
        """Whether calls can be served."""
        missing = self._missing()
        if missing:
            return PlainTextResponse(f"waiting for {', '.join(missing)}", status_code=503)
        return PlainTextResponse("ok")

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text format."""
        return Response(self._render(), media_type=Metrics.media_type)
