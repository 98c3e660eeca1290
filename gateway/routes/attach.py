"""Attach to a user's workload, and see what can be attached to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from starlette.routing import Route

from gateway import attach, policy, views
from gateway.routes import parse
from gateway.routes.context import Json, json_body
from gateway.wants import key_label
from gateway.workloads import name_of
from sandman import names

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from gateway.routes.context import Context


class AttachRoutes:
    """Endpoints over `attach`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/v1/sandboxes/attach", self.attach, methods=["POST"])]

    async def attach(self, request: Request) -> ASGIApp:
        """`POST /v1/sandboxes/attach`. Any replica does it: the Lease's name is what makes it exclusive."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        key = parse.idempotency_key(request.headers.get(names.HEADER_IDEMPOTENCY_KEY))
        body = await json_body(request, context.settings.body_max_bytes)
        wanted = parse.attach_request(body, context.settings)
        served = context.settings.workload_namespaces
        if wanted.namespace not in served:
            raise attach.not_found(wanted.namespace, served)
        hashed = None if key is None else key_label(principal.tenant, key)
        made = await context.attacher.attach(principal, wanted, hashed)
        # The token is good for the longest life; shown is when it ends unless it is renewed.
        token = context.token(made.instance, made.boot_id, principal.key_id)
        shown = dataclasses.replace(made, instance=context.keeper.as_of_now(made.instance))
        return Json(views.ready(shown, token), status_code=201)

    async def attachable(self, request: Request) -> Response:
        """`GET /v1/sandboxes?attachable`."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        namespace = parse.attachable_query(request.query_params.multi_items())
        served = context.settings.workload_namespaces
        if namespace is not None and namespace not in served:
            raise attach.not_found(namespace, served)
        found = await context.attacher.listing(principal.identity, namespace)
        taken = context.attacher.attached.taken()
        shown = [
            views.workload(one, is_taken=name_of(one.uid, one.container) in taken) for one in found
        ]
        return Json({"attachable": shown})
