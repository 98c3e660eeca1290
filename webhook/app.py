"""The webhook's HTTP: `POST /mutate` for the API server, health and metrics for the cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from webhook import admission, metrics
from webhook.errors import MalformedReviewError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from sandman.service.keyring import Keyring
    from webhook.inject import Settings
    from webhook.metrics import Metrics


@dataclass(frozen=True)
class Parts:
    """What the routes need; made by `serve`, or by a test.

    Args:
        settings: what injection is told.
        keyring: the keys now, None while there are none.
        make_nonce: gives a text that nobody can guess, another each time.
        why_not_ready: empty when the API server can reach this replica and get an answer.
        certificate_not_after: Unix time at which the serving certificate ends.
        metrics: the counters.
    """

    settings: Settings
    keyring: Callable[[], Keyring | None]
    make_nonce: Callable[[], str]
    why_not_ready: Callable[[], str]
    certificate_not_after: Callable[[], float]
    metrics: Metrics


def build(parts: Parts) -> Starlette:
    """The ASGI application."""
    routes = _Routes(parts)
    return Starlette(
        routes=[
            Route("/mutate", routes.mutate, methods=["POST"]),
            Route("/healthz", routes.healthz),
            Route("/readyz", routes.readyz),
            Route("/metrics", routes.metrics),
        ]
    )


class _Routes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._log = structlog.get_logger("admission")

    async def mutate(self, request: Request) -> Response:
        body = await request.body()
        started = time.perf_counter()
        response, outcome = self._admit(body)
        self._parts.metrics.reviewed(outcome, time.perf_counter() - started)
        return response

    def _admit(self, body: bytes) -> tuple[Response, str]:
        parts = self._parts
        try:
            answer = admission.admit(body, parts.keyring(), parts.settings, parts.make_nonce)
        except MalformedReviewError as error:
            self._log.warning("review_malformed", error=str(error))
            return PlainTextResponse(str(error), status_code=400), metrics.MALFORMED
        except NotReadyError as error:
            return PlainTextResponse(str(error), status_code=500), metrics.FAILED
        except Exception as error:  # noqa: BLE001 - the edge: every fault becomes an answer
            # The API server shows this text and, by failurePolicy, does not make the pod.
            self._log.exception("review_failed")
            detail = f"the webhook failed: {type(error).__name__}: {error}"
            return PlainTextResponse(detail, status_code=500), metrics.FAILED
        if answer.detail:
            self._log.info(
                f"pod_{answer.outcome}", namespace=answer.namespace, reason=answer.detail
            )
        return Response(answer.body, media_type="application/json"), answer.outcome

    async def healthz(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(self, _request: Request) -> Response:
        reason = self._parts.why_not_ready()
        return PlainTextResponse(reason or "ok", status_code=503 if reason else 200)

    async def metrics(self, _request: Request) -> Response:
        body = self._parts.metrics.render(self._parts.certificate_not_after())
        return Response(body, media_type=metrics.CONTENT_TYPE)
