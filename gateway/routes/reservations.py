"""Reserve sandboxes ahead, see how far that is, and let it be. All of it by the allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from gateway import policy, views
from gateway.routes import parse
from gateway.routes.ahead import reservation_request
from gateway.routes.context import Json, json_body
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from gateway.model import Principal
    from gateway.routes.context import Context


class ReservationRoutes:
    """Endpoints over the reservations."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/reservations", self.create, methods=["POST"]),
            Route("/v1/reservations", self.list, methods=["GET"]),
            Route("/v1/reservations/{id}", self.show, methods=["GET"]),
            Route("/v1/reservations/{id}", self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> ASGIApp:
        """`POST /v1/reservations`."""
        return await self._decide(request, self._create)

    async def list(self, request: Request) -> ASGIApp:
        """`GET /v1/reservations`."""
        return await self._decide(request, self._list)

    async def show(self, request: Request) -> ASGIApp:
        """`GET /v1/reservations/{id}`."""
        return await self._decide(request, self._show)

    async def delete(self, request: Request) -> ASGIApp:
        """`DELETE /v1/reservations/{id}`."""
        return await self._decide(request, self._delete)

    async def _decide(
        self, request: Request, act: Callable[[Request, Principal], Awaitable[Response]]
    ) -> ASGIApp:
        """Here, or at the replica that is the allocator."""
        principal = await self._context.principal(request)
        policy.may_manage(principal)
        if not self._context.handoff.is_allocator:
            return await self._context.handoff.forward(request)
        return await act(request, principal)

    async def _create(self, request: Request, principal: Principal) -> Response:
        context = self._context
        key = parse.idempotency_key(request.headers.get(names.HEADER_IDEMPOTENCY_KEY))
        body = await json_body(request, context.settings.body_max_bytes)
        pools = context.roster.pools
        own = {name: spec for name, spec in pools.items() if spec.admits(principal.tenant)}
        wanted = reservation_request(body, principal, own, context.wall())
        policy.may_run(principal, None if wanted.image == own[wanted.pool].image else wanted.image)
        made = await context.reservations.create(wanted, key)
        shown = context.reservations.get(principal.tenant, made.id)
        return Json(views.reservation(*shown), status_code=201)

    async def _list(self, _request: Request, principal: Principal) -> Response:
        found = self._context.reservations.of_tenant(principal.tenant)
        return Json({"reservations": [views.reservation(*one) for one in found]})

    async def _show(self, request: Request, principal: Principal) -> Response:
        found = self._context.reservations.get(principal.tenant, request.path_params["id"])
        return Json(views.reservation(*found))

    async def _delete(self, request: Request, principal: Principal) -> Response:
        await self._context.reservations.delete(principal.tenant, request.path_params["id"])
        return Response(status_code=204)
