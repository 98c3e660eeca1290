"""Who calls: bearer token in, principal out. Pure over the keys that `credentials` keeps fresh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway import tokens
from gateway.model import Principal

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def authenticate(header: str | None, credentials: Credentials, now: float) -> Principal:
    """The principal behind an Authorization header.

    Args:
        header: the header's value, None when absent.
        credentials: keys in force.
        now: seconds since the epoch.

    Raises:
        UnauthenticatedError: no token, an unknown one, or one that has expired.
    """
    token = tokens.bearer(header)
    if token.startswith(f"{tokens.SANDBOX_PREFIX}_"):
        claims = tokens.check_sandbox_token(token, credentials.sandbox_keys, now)
        return Principal(claims.tenant, "sandbox", claims.sandbox, claims.boot_id)
    key = tokens.check_api_key(token, credentials.api_keys)
    return Principal(key.tenant, key.key_id, share=key.share, identity=key.identity)
