"""What all routes share: the parts that they call, and how a request names its caller."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from gateway import policy, tokens
from sandman import names, wire
from sandman.errors import NotFoundError, TooLargeError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import HTTPConnection, Request

    from gateway.attach import Attacher
    from gateway.auth import Credentials
    from gateway.authentication import Authentication
    from gateway.calls import Calls
    from gateway.certifier import Certifier
    from gateway.config import Settings
    from gateway.desk import Desk
    from gateway.ground import RunKey
    from gateway.handoff import Handoff
    from gateway.keeper import Keeper
    from gateway.model import Instance, Principal
    from gateway.owners import Owners
    from gateway.pool import Pool
    from gateway.proxy import Proxy
    from gateway.registry import Registry
    from gateway.release import Releaser
    from gateway.reservations import Reservations
    from gateway.roster import Roster
    from gateway.routes.lookup import Lookup


NOBODYS = {names.STATE_FREE, names.STATE_RESERVED}
"""States of pods that are no sandboxes yet."""

TOKEN_SLACK_S = 60.0
"""A sandbox token outlives the lease by this much, so that the caller hears `expired` and not 401."""


class Json(JSONResponse):
    """JSON in ASCII. A text may hold half of a surrogate pair, which JSON can say and UTF-8 cannot."""

    def render(self, content: object) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts, as `serve` has put them together."""

    settings: Settings
    credentials: Credentials
    authentication: Authentication
    calls: Calls
    roster: Roster
    lookup: Lookup
    pool: Pool
    desk: Desk
    releaser: Releaser
    reservations: Reservations
    proxy: Proxy
    handoff: Handoff
    keeper: Keeper
    owners: Owners
    beat: Callable[[RunKey, float], Awaitable[None]]
    """Writes a heartbeat of a run; what it says of how long it holds, in seconds."""
    attacher: Attacher
    certifier: Certifier
    end_beats: Callable[[RunKey], Awaitable[None]]
    """Takes away what the heartbeats of a run have left."""
    wall: Callable[[], float]
    """Seconds since the epoch."""
    missing: Callable[[], list[str]]
    """What this replica still waits for before it can serve."""

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Who calls. From then on the call ends with what he is known by.

        Raises:
            UnauthenticatedError: nobody whom we know.
            UnreachableError: this replica is only starting and cannot tell, or nobody else can.
            SandmanError: as `Authentication.principal`.
        """
        self.check_ready()
        header = connection.headers.get("authorization")
        principal = await self.authentication.principal(header, address_of(connection))
        self.calls.begin(connection.scope, principal)
        return principal

    def check_ready(self) -> None:
        """Raises UnreachableError: this replica is only starting, and cannot tell who calls."""
        if missing := self.missing():
            raise UnreachableError(
                f"this gateway is starting: it waits for {', '.join(missing)}", retry_after=1.0
            )

    async def find(self, principal: Principal, sandbox: str, need: str) -> Instance:
        """The living or ended sandbox with this id, if it is the principal's.

        On a cache miss the API server is asked once: this replica's watch may be behind the one that
        made the sandbox. Another tenant's is a miss like any other, so that neither the answer nor its time
        tells of it.

        Args:
            principal: who calls.
            sandbox: the id that the caller gave.
            need: what the call needs of a sandbox's token, of `scopes`.

        Raises:
            NotFoundError: none, or somebody else's.
            ForbiddenError: the token is not good for this.
            SandmanError: it has ended and its pod is gone; the reason is the error.
        """
        policy.may_ask(principal, sandbox, need)
        is_attached = sandbox.startswith(names.ATTACHMENT_PREFIX)
        registry = self.attacher.attached.registry if is_attached else self.roster.registry
        instance = _own(principal, registry.find(sandbox))
        if instance is None:
            self._raise_if_ended(principal, sandbox, registry)
            instance = _own(principal, await self.lookup.find(principal.tenant, sandbox))
        elif not is_attached and instance.address is None and instance.ending is None:
            # It was handed over by another replica, so that it has one.
            found = await self.lookup.find(principal.tenant, sandbox)
            instance = _own(principal, found) or instance
        if instance is None:
            raise NotFoundError(f"no sandbox {sandbox}", sandbox=sandbox)
        if not is_attached:
            self._raise_if_ended(principal, sandbox, registry)
        return instance

    def token(self, instance: Instance, boot_id: str, maker: str) -> str:
        """A token that is good for this sandbox, this boot and the length of its lease.

        Args:
            instance: the sandbox.
            boot_id: which start of its daemon.
            maker: id of the API key or rule that it is made for, and ends with.
        """
        return self.sign(
            tokens.SandboxClaims(
                instance.id, boot_id, instance.tenant or "", self.ends(instance), maker
            )
        )

    def ends(self, instance: Instance) -> float:
        """When a token of this sandbox ends at the latest, in seconds since the epoch."""
        return (instance.expires_at or self.wall()) + TOKEN_SLACK_S

    def sign(self, claims: tokens.SandboxClaims) -> str:
        """The token that says so."""
        keys = self.credentials
        return tokens.make_sandbox_token(claims, keys.sandbox_keys, keys.current_key)

    def _raise_if_ended(self, principal: Principal, sandbox: str, registry: Registry) -> None:
        tenant, ending = registry.ending(sandbox) or (None, None)
        if ending is not None and policy.owns(principal, tenant):
            raise ending.error(sandbox)


def address_of(connection: HTTPConnection) -> str | None:
    """Where a call comes from."""
    return connection.client.host if connection.client is not None else None


def _own(principal: Principal, instance: Instance | None) -> Instance | None:
    """The sandbox, when it is one and the principal's."""
    if instance is None or instance.state in NOBODYS or not policy.owns(principal, instance.tenant):
        return None
    return instance


async def json_body(request: Request, limit: int) -> dict[str, object]:
    """The request's JSON object; an empty body is an empty object.

    Raises:
        TooLargeError: over `limit` bytes.
        BadRequestError: not a JSON object.
    """
    data = bytearray()
    async with contextlib.aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > limit:
                raise TooLargeError(f"the body is over {limit} bytes", field="body")
    return wire.load_object(bytes(data)) if data.strip() else {}
