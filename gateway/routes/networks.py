"""Egress profiles: which there are, and another one for a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from starlette.routing import Route

from gateway import choice, policy, scopes, views
from gateway.routes import changes
from gateway.routes.context import Json, json_body
from gateway.routes.forward import living
from sandman.errors import NetworkUnsupportedError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.routes.context import Context


class NetworkRoutes:
    """Endpoints over the networks."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/networks", self.list, methods=["GET"]),
            Route("/v1/sandboxes/{id}/network", self.change, methods=["PUT"]),
        ]

    async def list(self, request: Request) -> Response:
        """`GET /v1/networks`."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        networks = context.pool.networks
        shown = {
            namespace: views.networks(await networks.known(namespace), principal.share)
            for namespace in context.settings.sandbox_namespaces
        }
        return Json({
            "networks": views.in_each(shown.values()),
            "enforced": views.enforced(context.settings.sandbox_namespaces, networks.enforced),
        })  # fmt: skip

    async def change(self, request: Request) -> Response:
        """`PUT /v1/sandboxes/{id}/network`: written, and then probed until it is so."""
        context, begun = self._context, trio.current_time()
        principal = await context.principal(request)
        policy.may_manage(principal)
        body = await json_body(request, context.settings.body_max_bytes)
        asked, wait_s = changes.network_change(body, context.settings)
        instance = await living(context, principal, request.path_params["id"], scopes.MANAGE)
        if instance.place is not None:
            raise NetworkUnsupportedError(
                "a workload's network is its owner's: attaching changes nothing of it",
                sandbox=instance.id,
            )
        context.keeper.use(instance)
        networks = context.pool.networks
        spec = context.roster.spec(instance.pool, instance.namespace)
        network = choice.network_of(asked, spec, principal.share)
        instance = await networks.set(instance, network)
        probes = await networks.prove(instance, network, wait_s)
        took_ms = (trio.current_time() - begun) * 1e3
        return Json(views.applied(instance, probes, took_ms))
