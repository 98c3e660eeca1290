"""Tokens for one sandbox, as narrow and as short as whoever gets them needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from gateway import policy, scopes, views
from gateway.routes import changes
from gateway.routes.context import Json, json_body
from gateway.routes.forward import target
from gateway.tokens import SandboxClaims

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.routes.context import Context


class TokenRoutes:
    """Makes them; nothing is kept, for the signature says it all."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/v1/sandboxes/{id}/tokens", self.make, methods=["POST"])]

    async def make(self, request: Request) -> Response:
        """`POST /v1/sandboxes/{id}/tokens`."""
        context = self._context
        principal = await context.principal(request)
        policy.may_manage(principal)
        body = await json_body(request, context.settings.body_max_bytes)
        may, ttl_s = changes.token_request(body)
        sandbox = request.path_params["id"]
        to = await target(context, principal, sandbox, scopes.MANAGE, request, is_use=False)
        found = to.instance
        # No longer than the sandbox: what it was for is over then.
        ends = min(context.wall() + ttl_s, context.ends(found))
        claims = SandboxClaims(found.id, to.boot_id, principal.tenant, ends, principal.key_id, may)
        shown = {
            "sandbox": found.id,
            "token": context.sign(claims),
            "may": list(may) or None,
            "expires_at": views.moment(ends),
        }
        return Json(shown, status_code=201)
