"""Renew a sandbox; the heartbeat of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from gateway import policy, scopes, views
from gateway.routes import parse
from gateway.routes.context import Json, json_body
from gateway.routes.forward import living
from gateway.runs import RunKey

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.routes.context import Context


class LeaseRoutes:
    """Endpoints over the keeper of leases."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/sandboxes/{id}/renew", self.renew, methods=["POST"]),
            Route("/v1/runs/{run}/heartbeat", self.heartbeat, methods=["POST"]),
        ]

    async def renew(self, request: Request) -> Response:
        """`POST /v1/sandboxes/{id}/renew`."""
        context = self._context
        principal = await context.principal(request)
        found = await living(context, principal, request.path_params["id"], scopes.RENEW)
        await context.keeper.renew(found)
        shown = context.keeper.as_of_now(found)
        return Json({"id": found.id, "expires_at": views.moment(shown.expires_at)})

    async def heartbeat(self, request: Request) -> Response:
        """`POST /v1/runs/{run}/heartbeat`. Of a run without sandboxes nothing is written: there is nothing to
        be kept, and no caller can fill the cluster with Leases."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        run = parse.run_name(request.path_params["run"]) or ""
        body = await json_body(request, context.settings.body_max_bytes)
        ttl_s = parse.heartbeat(body, context.settings)
        both = (context.roster.registry, context.attacher.attached.registry)
        count = sum(len(registry.of_tenant(principal.tenant, run)) for registry in both)
        if count:
            await context.beat(RunKey(principal.tenant, run), ttl_s)
        return Json({"run": run, "sandboxes": count})
