"""Who calls, by tokens of our own: token in, principal out. Pure over the keys that `credentials` keeps fresh.

`authentication` is the whole of it, with the tokens of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway import tokens
from gateway.model import Principal
from gateway.proofs import Proof
from sandman import apikeys
from sandman.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.callers import Callers
    from gateway.tokens import ApiKey


class Credentials(Protocol):
    """The keys in force just now."""

    @property
    def api_keys(self) -> Mapping[str, ApiKey]:
        """API keys by id."""

    @property
    def current_key(self) -> str:
        """Id of the key that signs new sandbox tokens."""

    @property
    def sandbox_keys(self) -> Mapping[str, bytes]:
        """Keys that sign sandbox tokens, by id."""

    @property
    def callers(self) -> Callers:
        """Callers whom others vouch for."""


def authenticate(header: str | None, credentials: Credentials, now: float) -> Principal:
    """The principal behind an Authorization header with one of our tokens.

    Args:
        header: the header's value, None when absent.
        credentials: keys in force.
        now: seconds since the epoch.

    Raises:
        UnauthenticatedError: no token, an unknown one, or one that has expired.
    """
    return recognize(tokens.bearer(header), credentials, now)


def recognize(token: str, credentials: Credentials, now: float) -> Principal:
    """The principal behind one of our tokens; raises as `authenticate`."""
    if len(token) > tokens.OWN_MAX:
        raise UnauthenticatedError("the token is not known")
    if token.startswith(f"{tokens.SANDBOX_PREFIX}_"):
        return _of_sandbox(token, credentials, now)
    key = tokens.check_api_key(token, credentials.api_keys, now)
    proof = Proof("key", key.key_id, apikeys.digest(token), expires_at=key.expires_at)
    return Principal(key.tenant, key.key_id, share=key.share, identity=key.identity, proof=proof)


def _of_sandbox(token: str, credentials: Credentials, now: float) -> Principal:
    claims = tokens.check_sandbox_token(token, credentials.sandbox_keys, now)
    signer = token.split("_", 2)[1]
    proof = Proof("sandbox", claims.maker, signer=signer, expires_at=claims.expires_at)
    principal = Principal(
        claims.tenant, "sandbox", claims.sandbox, claims.boot_id, may=claims.may, proof=proof
    )
    if not _is_known(claims.maker, claims.tenant, credentials, now):
        raise UnauthenticatedError("the key that this sandbox token was made for is revoked")
    return principal


def is_in_force(principal: Principal, credentials: Credentials, now: float) -> bool:
    """Whether what a call began with would still be taken: calls of what is revoked are ended.

    The tokens of others are looked at when a call begins; later it is the rule that counts.
    """
    proof = principal.proof
    if proof is None:
        return True
    if proof.expires_at is not None and now >= proof.expires_at:
        return False
    if proof.kind == "sandbox" and proof.signer not in credentials.sandbox_keys:
        return False
    if proof.kind != "key":
        return _is_known(proof.key_id, principal.tenant, credentials, now)
    key = credentials.api_keys.get(proof.key_id)
    return (
        key is not None
        and key.tenant == principal.tenant
        and key.has(proof.sha256, now)
        and not key.is_over(now)
    )


def _is_known(key_id: str, tenant: str, credentials: Credentials, now: float) -> bool:
    """Whether an API key or rule of that id is there for that tenant. None at all is needed for the tokens
    of earlier versions, which name none."""
    if not key_id:
        return True
    if (rule := credentials.callers.rules.get(key_id)) is not None:
        return rule.allows(tenant)
    key = credentials.api_keys.get(key_id)
    return key is not None and key.tenant == tenant and not key.is_over(now)
