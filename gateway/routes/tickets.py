"""Makes tickets for WebSockets, and takes them back."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

import trio
from starlette.responses import Response
from starlette.routing import Route

from gateway import scopes, tickets, tokens, views
from gateway.routes import changes
from gateway.routes.context import Json, address_of, json_body
from gateway.routes.forward import living
from sandman.errors import UnauthenticatedError, UnreachableError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.types import ASGIApp

    from gateway.model import Principal
    from gateway.routes.context import Context

USE = "/v1/tickets/use"
MAX_BODY = 4096
USED = "the ticket was used before, or is lost: ask for another"


class TicketRoutes:
    """Endpoints over the ledger, which is the allocator's alone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ledger = tickets.Ledger()

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/sandboxes/{id}/tickets", self.make, methods=["POST"]),
            Route(USE, self.use, methods=["POST"]),
        ]

    async def make(self, request: Request) -> ASGIApp:
        """`POST /v1/sandboxes/{id}/tickets`."""
        context = self._context
        principal = await context.principal(request)
        if not context.handoff.is_allocator:
            return await context.handoff.forward(request)
        exec_id = changes.ticket_request(await json_body(request, MAX_BODY))
        sandbox = request.path_params["id"]
        instance = await living(context, principal, sandbox, scopes.EXEC)
        now, proof = context.wall(), principal.proof
        until = proof.expires_at if proof is not None else None
        ticket = tickets.Ticket(
            id=secrets.token_urlsafe(16),
            tenant=principal.tenant,
            sandbox=instance.id,
            exec_id=exec_id,
            boot_id=principal.boot_id,
            maker=principal.key_id if proof is None else proof.key_id,
            expires_at=now + tickets.LIFE_S,
            ends_at=min(context.ends(instance), math.inf if until is None else until),
        )
        self._ledger.add(ticket.id, ticket.tenant, trio.current_time())
        keys = context.credentials
        shown = {
            "sandbox": instance.id,
            "exec_id": exec_id,
            "ticket": tickets.make(ticket, keys.sandbox_keys, keys.current_key),
            "expires_at": views.moment(ticket.expires_at),
        }
        return Json(shown, status_code=201)

    async def use(self, request: Request) -> ASGIApp:
        """`POST /v1/tickets/use`: of replicas, with the ticket as the token. It is of no use afterwards."""
        context = self._context
        context.check_ready()
        read: list[tickets.Ticket] = []

        async def find() -> Principal:
            ticket, signer = self._read(tokens.bearer(request.headers.get("authorization")))
            read.append(ticket)
            return ticket.principal(signer)

        # Before it is handed on: a guess counts against who guesses here, and not, at the allocator, against this
        # replica, whose callers would all wait for it.
        await context.authentication.counted("ticket", address_of(request), find)
        if not context.handoff.is_allocator:
            return await context.handoff.forward(request)
        if not self._ledger.take(read[0].id, trio.current_time()):
            raise UnauthenticatedError(USED)
        return Response(status_code=204)

    async def admit(
        self, connection: HTTPConnection, text: str, sandbox: str, exec_id: str
    ) -> Principal:
        """Who opens this terminal with this ticket, which is used by that.

        Raises:
            ForbiddenError: from a page that is not the gateway's.
            UnauthenticatedError: it is not good for this, or was used.
            UnreachableError: the allocator, who would know, is not there.
        """
        context = self._context
        context.check_ready()
        tickets.check_origin(connection.headers.get("origin"), connection.headers.get("host"))
        read: list[tickets.Ticket] = []

        async def find() -> Principal:
            ticket, signer = self._read(text)
            if not tickets.leads_to(ticket, sandbox, exec_id):
                raise UnauthenticatedError("the ticket is for another terminal")
            read.append(ticket)
            return ticket.principal(signer)

        principal = await context.authentication.counted("ticket", address_of(connection), find)
        await self._take(read[0], text)
        context.calls.begin(connection.scope, principal)
        return principal

    def _read(self, text: str) -> tuple[tickets.Ticket, str]:
        context = self._context
        return tickets.check(text, context.credentials.sandbox_keys, context.wall())

    async def _take(self, ticket: tickets.Ticket, text: str) -> None:
        handoff = self._context.handoff
        if handoff.is_allocator:
            is_good = self._ledger.take(ticket.id, trio.current_time())
        else:
            status = await handoff.ask(USE, text)
            if status >= 500:
                raise UnreachableError("the allocator cannot tell just now", retry_after=1.0)
            is_good = status == 204
        if not is_good:
            raise UnauthenticatedError(USED)
