"""Requests that are not done: ask again, give up; and the stream of a call for several sandboxes."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import httpx
from starlette.responses import Response
from starlette.routing import Route

from gateway import policy, views
from gateway.cases import member_ids
from gateway.model import COUNT_MAX, Ready
from gateway.routes import parse
from gateway.routes.context import Json
from gateway.wants import Queued, key_label
from sandman import names
from sandman.errors import BadRequestError, InternalError, SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.cases import Member, Outcome
    from gateway.desk import Desk
    from gateway.metrics import Metrics
    from gateway.model import Instance
    from gateway.routes.context import Context

Shown = dict[str, object]


class RequestRoutes:
    """Endpoints over the desk.

    Args:
        show: a sandbox that was just handed over, as the caller with the key of this id sees it.
    """

    def __init__(self, context: Context, show: Callable[[str, Ready], Shown]) -> None:
        self._context = context
        self._show = show

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/requests", self.drop_by_key, methods=["DELETE"]),
            Route("/v1/requests/{id}", self.ask, methods=["GET"]),
            Route("/v1/requests/{id}", self.drop, methods=["DELETE"]),
        ]

    async def ask(self, request: Request) -> ASGIApp:
        """`GET /v1/requests/{id}?wait_s=`."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        if not context.handoff.is_allocator:
            return await context.handoff.forward(request)
        wait_s = parse.ask_query(request.query_params.multi_items(), context.settings)
        made = await context.desk.ask(principal.tenant, request.path_params["id"], wait_s)
        return answer(made, functools.partial(self._show, principal.key_id))

    async def drop(self, request: Request) -> ASGIApp:
        """`DELETE /v1/requests/{id}`."""
        return await self._drop(request, request.path_params["id"])

    async def drop_by_key(self, request: Request) -> ASGIApp:
        """`DELETE /v1/requests` with an Idempotency-Key: all that the key stands for."""
        principal = await self._context.principal(request)
        key = parse.idempotency_key(request.headers.get(names.HEADER_IDEMPOTENCY_KEY))
        if key is None:
            raise BadRequestError(
                f"name the request by {names.HEADER_IDEMPOTENCY_KEY}, or by its id in the path",
                field=names.HEADER_IDEMPOTENCY_KEY,
            )
        return await self._drop(request, key_label(principal.tenant, key))

    async def _drop(self, request: Request, whole: str) -> ASGIApp:
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        requests = [whole, *member_ids(whole, COUNT_MAX)]
        if not context.handoff.is_allocator:
            handed = await context.handoff.forward(request)
            if handed.status == httpx.codes.NO_CONTENT:
                # The same caller may ask here what it has before the watch has told.
                context.releaser.released(self._got(principal.tenant, requests))
            return handed
        await context.desk.drop(principal.tenant, requests)
        await context.releaser.release_all(self._got(principal.tenant, requests))
        return Response(status_code=204)

    def _got(self, tenant: str, requests: Sequence[str]) -> list[Instance]:
        """What these requests got, as far as this replica knows: the key label of a pod is its request's id."""
        keys = set(requests)
        own = self._context.roster.registry.of_tenant(tenant)
        return [one for one in own if one.key in keys]


def answer(made: Ready | Queued, show: Callable[[Ready], Shown]) -> Response:
    """201 with the sandbox, or 202 with where its request stands."""
    if isinstance(made, Ready):
        location = {"Location": f"/v1/sandboxes/{made.instance.id}"}
        return Json(show(made), status_code=201, headers=location)
    headers = {
        "Retry-After": str(max(1, round(made.retry_after))),
        "Location": f"/v1/requests/{made.id}",
    }
    return Json(views.queued(made), status_code=202, headers=headers)


class Stream:
    """A call for several sandboxes: a line of JSON for each as soon as it is ready. An ASGI application.

    Args:
        desk: knows the members.
        members: of the call.
        wait_s: seconds after which the others are told of as they stand.
        show: a sandbox that was just handed over, as callers see it.
        metrics: counts errors.
    """

    def __init__(
        self,
        desk: Desk,
        members: Sequence[Member],
        wait_s: float,
        show: Callable[[Ready], Shown],
        metrics: Metrics,
    ) -> None:
        self._desk = desk
        self._members = members
        self._wait_s = wait_s
        self._show = show
        self._metrics = metrics
        self._ready = 0
        self._failed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream; a caller that goes away is the server's to notice, which cancels this."""

        async def line(document: Mapping[str, object]) -> None:
            text = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
            body = text.encode("ascii")
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def tell(member: Member, outcome: Outcome) -> None:
            await line({"index": member.index, **self._told(outcome)})

        async def pause(waiting: int) -> None:
            await line({"progress": self._counts(waiting)})

        kind = (b"content-type", names.MEDIA_NDJSON.encode())
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        left = await self._desk.follow(self._members, self._wait_s, tell, pause)
        for member, stands in left:
            await line({"index": member.index, "waiting": views.queued(stands)})
        await line({"summary": {"count": len(self._members), **self._counts(len(left))}})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _told(self, outcome: Outcome) -> Shown:
        if isinstance(outcome, Ready):
            self._ready += 1
            return {"sandbox": self._show(outcome)}
        error = outcome if isinstance(outcome, SandmanError) else InternalError(str(outcome))
        self._failed += 1
        self._metrics.failed(error.reason)
        return {"error": error.problem()}

    def _counts(self, waiting: int) -> Shown:
        return {"ready": self._ready, "failed": self._failed, "waiting": waiting}
