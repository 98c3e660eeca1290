"""What all routes share: the parts that they call, and how a request names its caller."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from gateway import auth, policy, tokens
from sandman import names, wire
from sandman.errors import NotFoundError, TooLargeError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import HTTPConnection, Request

    from gateway.attach import Attacher
    from gateway.auth import Credentials
    from gateway.config import Settings
    from gateway.desk import Desk
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
    from gateway.runs import RunKey


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
    end_beats: Callable[[RunKey], Awaitable[None]]
    """Takes away what the heartbeats of a run have left."""
    wall: Callable[[], float]
    """Seconds since the epoch."""
    missing: Callable[[], list[str]]
    """What this replica still waits for before it can serve."""

    def principal(self, request: HTTPConnection) -> Principal:
        """Who calls.

        Raises:
            UnauthenticatedError: nobody whom we know.
            UnreachableError: this replica is only starting and cannot tell.
        """
        missing = self.missing()
        if missing:
            raise UnreachableError(
                f"this gateway is starting: it waits for {', '.join(missing)}", retry_after=1.0
            )
        return auth.authenticate(
            request.headers.get("authorization"), self.credentials, self.wall()
        )

    async def find(self, principal: Principal, sandbox: str) -> Instance:
        """The living or ended sandbox with this id, if it is the principal's.

        On a cache miss the API server is asked once: this replica's watch may be behind the one that
        made the sandbox.

        Raises:
            NotFoundError: none, or somebody else's.
            SandmanError: it has ended and its pod is gone; the reason is the error.
        """
        policy.may_ask(principal, sandbox)
        if sandbox.startswith(names.ATTACHMENT_PREFIX):
            return await self._find_attached(principal, sandbox)
        instance = self.roster.registry.find(sandbox)
        if instance is None or instance.state in NOBODYS:
            # Claimed through another replica, and the watch is behind; or a guess.
            self._raise_if_ended(principal, sandbox)
            instance = await self.lookup.find(principal.tenant, sandbox)
        elif instance.address is None and instance.ending is None:
            # It was handed over by another replica, so that it has one.
            instance = await self.lookup.find(principal.tenant, sandbox) or instance
        if instance is None or instance.state in NOBODYS:
            raise NotFoundError(f"no sandbox {sandbox}", sandbox=sandbox)
        policy.may_use(principal, sandbox, instance.tenant)
        self._raise_if_ended(principal, sandbox)
        return instance

    async def _find_attached(self, principal: Principal, sandbox: str) -> Instance:
        registry = self.attacher.attached.registry
        instance = registry.find(sandbox)
        if instance is None:
            self._raise_if_ended(principal, sandbox, registry)
            instance = await self.lookup.find(principal.tenant, sandbox)
        policy.may_use(principal, sandbox, instance.tenant if instance else None)
        if instance is None:  # pragma: no cover - `may_use` has raised
            raise NotFoundError(f"no sandbox {sandbox}", sandbox=sandbox)
        return instance

    def token(self, instance: Instance, boot_id: str) -> str:
        """A token that is good for this sandbox, this boot and the length of its lease."""
        claims = tokens.SandboxClaims(
            instance.id,
            boot_id,
            instance.tenant or "",
            (instance.expires_at or self.wall()) + TOKEN_SLACK_S,
        )
        keys = self.credentials
        return tokens.make_sandbox_token(claims, keys.sandbox_keys, keys.current_key)

    def _raise_if_ended(
        self, principal: Principal, sandbox: str, registry: Registry | None = None
    ) -> None:
        remembered = (registry or self.roster.registry).ending(sandbox)
        if remembered is not None:
            tenant, ending = remembered
            policy.may_use(principal, sandbox, tenant)
            raise ending.error(sandbox)


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
