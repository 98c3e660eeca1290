"""Certificates of sandboxes, and the keys that verify them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from starlette.responses import Response
from starlette.routing import Route

from gateway import scopes
from gateway.routes import changes
from gateway.routes.context import Json, json_body
from gateway.routes.forward import target
from sandman import certificates

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

    from gateway.routes.context import Context
    from sandman.certificates import Certificate


class CertificateRoutes:
    """Endpoints over the certifier."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/sandboxes/{id}/certificate", self.make, methods=["POST"]),
            Route("/v1/certificate-keys", self.keys, methods=["GET"]),
        ]

    async def make(self, request: Request) -> Response:
        """`POST /v1/sandboxes/{id}/certificate`."""
        context = self._context
        principal = await context.principal(request)
        body = await json_body(request, context.settings.body_max_bytes)
        exec_ids = changes.certificate_request(body)
        # It tells of commands. No use: the sandbox's lease is not renewed by it.
        to = await target(
            context, principal, request.path_params["id"], scopes.EXEC, request, is_use=False
        )
        made: list[Certificate] = []
        async with trio.open_nursery() as nursery:
            # A turn may be long in coming, and is nobody's whose caller has gone meanwhile.
            nursery.start_soon(_until_gone, request.receive, nursery.cancel_scope)
            made.append(await context.certifier.certify(to, exec_ids))
            nursery.cancel_scope.cancel()
        # To nobody it does not matter what is answered.
        return Json(made[0].to_json()) if made else Response(status_code=502)

    async def keys(self, request: Request) -> Response:
        """`GET /v1/certificate-keys`: for everybody, as whoever verifies has no business here."""
        del request
        self._context.check_ready()
        return Json(certificates.keys_to_json(self._context.certifier.keys))


async def _until_gone(receive: Receive, work: trio.CancelScope) -> None:
    """Cancel the work when its caller goes away; the request's body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
    work.cancel()
