"""How things stand for one tenant: what the page and `sandman top` show at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from gateway import policy, views
from gateway.routes.context import Json
from sandman import apikeys

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from gateway.metrics import Metrics
    from gateway.model import Principal
    from gateway.recent import Allocated
    from gateway.routes.context import Context
    from gateway.wants import Waiting


class OverviewRoutes:
    """Endpoint over the queue and the last allocations, which are the allocator's memory."""

    def __init__(self, context: Context, metrics: Metrics) -> None:
        self._context = context
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Where it is."""
        return [Route("/v1/overview", self.show, methods=["GET"])]

    async def show(self, request: Request) -> ASGIApp:
        """`GET /v1/overview`."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        if not context.handoff.is_allocator:
            return await context.handoff.forward(request)
        mine = [one for one in context.pool.waiting() if one.tenant == principal.tenant]
        return Json(
            {
                "now": views.moment(context.wall()),
                "tenant": self._tenant(principal, mine),
                "requests": views.waiting(mine),
                "queue": self._queue(),
                "allocations": [_shown(one) for one in self._metrics.recent.of(principal.tenant)],
            }
        )

    def _tenant(self, principal: Principal, mine: list[Waiting]) -> dict[str, object]:
        """Of the caller's own, and of no other."""
        context, share = self._context, principal.share
        waits = [one.waited_s for one in mine]
        both = (context.roster.registry, context.attacher.attached.registry)
        held = [one for registry in both for one in registry.of_tenant(principal.tenant)]
        limits = {name: getattr(share, name) for name in apikeys.LIMITS}
        return {
            "name": principal.tenant,
            "key": principal.key_id,
            "weight": share.weight,
            "limits": limits,
            "sandboxes": sum(one.ending is None for one in held),
            "waiting": len(waits),
            "oldest_s": round(max(waits), 1) if waits else None,
        }

    def _queue(self) -> dict[str, object]:
        """Of all tenants together, as `/metrics` tells everybody."""
        now = self._context.roster.allocation.statistics()
        return {"waiting": now.waiting, "claiming": now.claiming, "cold": now.cold}


def _shown(one: Allocated) -> dict[str, object]:
    return {
        "at": views.moment(one.at),
        "tier": one.tier,
        "queued_ms": round(one.queued_ms, 3),
        "total_ms": round(one.total_ms, 3),
    }
