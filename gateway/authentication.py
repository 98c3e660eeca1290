"""Who calls, whatever his token is: our own decided at once, those of others found out and kept for a while.

    smk_…, sbt_…    `auth`: pure, no waiting
    a JWT           of an issuer in `sandman-callers`: its keys (`keysets`), then `callers.judged`
                    of a ServiceAccount there: the API server (`reviews`), then `callers.reviewed`

Failures are counted by address. What is over the limit is refused as 429 where it fails, and before others would have
to be asked about it; a token that is known is never refused.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import trio

from gateway import auth, callers, jose, tokens, verdicts
from gateway.failures import Failures, source_of
from gateway.keylocks import KeyLocks
from gateway.model import Principal
from gateway.proofs import Proof
from sandman.errors import (
    ForbiddenError,
    SandmanError,
    ThrottledError,
    UnauthenticatedError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.auth import Credentials
    from gateway.callers import Callers, Issuer

REFUSED = (UnauthenticatedError, ForbiddenError)
WAIT_S = 20.0
"""Seconds to find out whose a token is, waiting for another call with the same one included."""


class Reviewer(Protocol):
    """Asks the API server."""

    async def ask(self, token: str) -> Mapping[str, Any]:
        """The status of a TokenReview."""


class Verifier(Protocol):
    """Knows the keys of issuers."""

    async def verify(self, token: jose.Token, issuer: Issuer) -> bool:
        """Whether one of the issuer's keys made the token's signature."""


class Authentication:
    """Finds out who calls.

    Args:
        credentials: keys and rules in force.
        reviewer: asks the API server about ServiceAccounts' tokens.
        verifier: checks the signatures of JWTs.
        audience: what ServiceAccounts' tokens must be for.
        verdict_s: seconds that a verdict on a token of others holds.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        credentials: Credentials,
        reviewer: Reviewer,
        verifier: Verifier,
        *,
        audience: str,
        verdict_s: float,
        wall: Callable[[], float],
    ) -> None:
        self._credentials = credentials
        self._reviewer = reviewer
        self._verifier = verifier
        self._audience = audience
        self._verdict_s = verdict_s
        self._wall = wall
        self.counts: Counter[tuple[str, str]] = Counter()
        """Outcomes, by kind of token."""
        self._failures = Failures()
        self._verdicts: verdicts.Verdicts[Principal] = verdicts.Verdicts()
        self._locks = KeyLocks()

    def forget(self) -> None:
        """The rules have changed: what was found out by the old ones counts no more."""
        self._verdicts.clear()

    def is_in_force(self, principal: Principal) -> bool:
        """Whether what somebody is known by would still be taken."""
        return auth.is_in_force(principal, self._credentials, self._wall())

    async def principal(self, header: str | None, address: str | None) -> Principal:
        """Who calls.

        Args:
            header: the Authorization header, None when absent.
            address: where from.

        Raises:
            UnauthenticatedError: nobody whom we know.
            ForbiddenError: somebody who is no tenant's.
            ThrottledError: too many of either from there.
            SandmanError: whoever could tell does not answer.
        """
        source = source_of(address)

        async def find() -> Principal:
            token = tokens.bearer(header)
            return await self._identify(token, kind_of(token), source)

        return await self.counted(_kind_in(header), address, find)

    async def counted(
        self, kind: str, address: str | None, find: Callable[[], Awaitable[Principal]]
    ) -> Principal:
        """Who calls, found in this way. Failures count against the address, as those of any token.

        Args:
            kind: of what he showed.
            address: where from.
            find: finds him.

        Raises:
            ThrottledError: too many failures from there.
            SandmanError: as `find`.
        """
        try:
            found = await find()
        except REFUSED as error:
            self.counts[kind, error.reason] += 1
            if wait := self._failures.count(source_of(address), trio.current_time()):
                raise throttled(wait) from error
            raise
        except SandmanError as error:
            self.counts[kind, error.reason] += 1
            raise
        self.counts[kind, "ok"] += 1
        return found

    async def _identify(self, token: str, kind: str, source: str) -> Principal:
        if kind != "jwt":
            return auth.recognize(token, self._credentials, self._wall())
        key = verdicts.digest(token)
        if (known := self._verdicts.get(key, self._wall())) is not None:
            return known
        if wait := self._failures.wait(source, trio.current_time()):
            raise throttled(wait)
        with trio.move_on_after(WAIT_S):
            async with self._locks.alone(key.hex(), math.inf):
                # Those that waited for the same token need not ask any more.
                if (known := self._verdicts.get(key, self._wall())) is not None:
                    return known
                return await self._find_out(token, key)
        raise UnreachableError("nobody told in time whose the token is", retry_after=1.0)

    async def _find_out(self, token: str, key: bytes) -> Principal:
        rules = self._credentials.callers
        try:
            found, ends = await self._vouched(token, rules)
        except UnreachableError as error:
            self._verdicts.refuse(key, error, self._wall() + verdicts.AWAY_S)
            raise
        except REFUSED as error:
            if rules is self._credentials.callers:
                self._verdicts.refuse(key, error, self._wall() + verdicts.REFUSED_S)
            raise
        if rules is self._credentials.callers:
            self._verdicts.allow(key, found, min(ends, self._wall() + self._verdict_s))
        return found

    async def _vouched(self, token: str, rules: Callers) -> tuple[Principal, float]:
        """Who it is, and until when a token that says so is good, in seconds since the epoch."""
        try:
            parsed = jose.parse(token)
        except jose.TokenError as error:
            raise UnauthenticatedError(f"the token cannot be read: {error}") from None
        issuer = rules.issuers.get(_text(parsed.claims.get("iss")))
        if issuer is not None:
            return await self._issued(parsed, issuer)
        return await self._reviewed(token, parsed, rules)

    async def _issued(self, token: jose.Token, issuer: Issuer) -> tuple[Principal, float]:
        if token.algorithm not in issuer.algorithms:
            raise UnauthenticatedError(f"{issuer.issuer} is not taken with {token.algorithm}")
        if not await self._verifier.verify(token, issuer):
            raise UnauthenticatedError(f"the token is not signed by a key of {issuer.issuer}")
        found = callers.judged(token, issuer, self._wall())
        ends = jose.number(token.claims["exp"]) or 0.0
        return _proven(found, "jwt"), ends + issuer.leeway_s

    async def _reviewed(
        self, token: str, parsed: jose.Token, rules: Callers
    ) -> tuple[Principal, float]:
        if not callers.is_account(parsed) or not rules.accounts:
            raise UnauthenticatedError("the token's issuer is not known here: see sandman-callers")
        if not callers.is_due(parsed, self._audience, self._wall()):
            raise UnauthenticatedError(
                f"the ServiceAccount token has expired, or is not for the audience {self._audience}"
            )
        found = callers.reviewed(await self._reviewer.ask(token), rules, self._audience)
        ends = jose.number(parsed.claims.get("exp")) or 0.0
        return _proven(found, "account"), ends + callers.LEEWAY_S


def kind_of(token: str) -> str:
    """`key`, `sandbox`, `jwt`, by its form."""
    if token.startswith(f"{tokens.SANDBOX_PREFIX}_"):
        return "sandbox"
    return "jwt" if jose.looks_like(token) else "key"


def _kind_in(header: str | None) -> str:
    try:
        return kind_of(tokens.bearer(header))
    except UnauthenticatedError:
        return "none"


def throttled(wait: int) -> ThrottledError:
    """What somebody hears who sends many tokens that nobody knows."""
    return ThrottledError("many tokens that are not known came from your address", retry_after=wait)


def _proven(found: Principal, kind: str) -> Principal:
    proof = Proof(kind, found.key_id)
    return Principal(
        found.tenant, found.key_id, share=found.share, identity=found.identity, proof=proof
    )


def _text(claim: object) -> str:
    return claim if isinstance(claim, str) else ""
