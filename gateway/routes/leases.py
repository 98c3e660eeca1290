"""Renew a sandbox; the heartbeats of a run, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from gateway import policy, scopes, views
from gateway.ground import RunKey
from gateway.routes import parse
from gateway.routes.context import Json, json_body
from gateway.routes.forward import living

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
            Route("/v1/runs/{run}/heartbeat", self.end, methods=["DELETE"]),
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
        """`POST /v1/runs/{run}/heartbeat`. Of a run that has nothing, not even what is prepared ahead, nothing is
        written: there is nothing to be kept, and no caller can fill the cluster with Leases."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        run = parse.run_name(request.path_params["run"]) or ""
        body = await json_body(request, context.settings.body_max_bytes)
        ttl_s = parse.heartbeat(body, context.settings)
        key = RunKey(principal.tenant, run)
        count = self._count(key)
        if count or self._is_prepared_for(key):
            await context.beat(key, ttl_s)
        return Json({"run": run, "sandboxes": count})

    async def end(self, request: Request) -> Response:
        """`DELETE /v1/runs/{run}/heartbeat`. While the run has anything nothing is done: it may be another's."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        run = parse.run_name(request.path_params["run"]) or ""
        key = RunKey(principal.tenant, run)
        count = self._count(key)
        if not count and not self._is_prepared_for(key):
            await context.end_beats(key)
        return Json({"run": run, "sandboxes": count})

    def _count(self, key: RunKey) -> int:
        """Sandboxes of a run, attachments to workloads among them."""
        context = self._context
        both = (context.roster.registry, context.attacher.attached.registry)
        return sum(len(registry.of_tenant(key.tenant, key.run)) for registry in both)

    def _is_prepared_for(self, key: RunKey) -> bool:
        """Whether placeholders are, or are being, prepared for the run's reservations."""
        held = self._context.roster.registry.living(key.tenant, besides=())
        return any(one.run == key.run for one in held)
