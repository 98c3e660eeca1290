"""Tokens of callers, as text: API keys and the tokens of single sandboxes. Pure; the clock comes in.

`sandman.apikeys` says what an API key is and what is kept of it.

A sandbox token is `sbt_<key id>_<claims>.<mac>`: it says which sandbox, which boot of it, whose, until when, who had
it made and what it may, and is signed with a key that all replicas hold, so none has to remember it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.model import DEFAULT_SHARE, Identity, Share
from sandman import apikeys
from sandman.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_KEY_PREFIX = apikeys.PREFIX
SANDBOX_PREFIX = "sbt"
OWN_MAX = 1024
"""Characters of an API key or sandbox token; a longer one is refused before anything is computed over it."""
BEARER_MAX = 8192
"""Characters of any token: those of others (`jose.TOKEN_MAX`) are longer."""
_NO_DIGEST = "0" * 64
_OLD_CLAIMS = 4
"""What tokens of earlier versions say: no maker, no scope."""


class Seal(NamedTuple):
    """A kind of what is signed here: the text's beginning, and what keeps one kind's signature from being another's."""

    prefix: str
    purpose: bytes


SANDBOX_SEAL = Seal(SANDBOX_PREFIX, b"sandman sandbox token v1\0")


class ApiKey(NamedTuple):
    """One entry of the Secret with API keys."""

    key_id: str
    sha256: str
    tenant: str
    share: Share = DEFAULT_SHARE
    identity: Identity | None = None
    expires_at: float | None = None
    """Seconds since the epoch; None: it is good until it is taken away."""
    previous: tuple[str, float] | None = None
    """SHA-256 of the token before a rotation, and until when it is good, in seconds since the epoch."""

    def has(self, sha256: str, now: float) -> bool:
        """Whether the token with this hash is one of its, just now. Takes as long either way."""
        old, until = self.previous or (_NO_DIGEST, 0.0)
        is_new = hmac.compare_digest(sha256, self.sha256)
        is_old = hmac.compare_digest(sha256, old)
        return is_new or (is_old and now < until)

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and now >= self.expires_at


class SandboxClaims(NamedTuple):
    """What a sandbox token says. `expires_at` in seconds since the epoch."""

    sandbox: str
    boot_id: str
    tenant: str
    expires_at: float
    maker: str = ""
    """Id of the API key or rule that it was made for: it ends with that. "": of none."""
    may: tuple[str, ...] = ()
    """What it is good for, see `scopes`; all that a sandbox's token may, where nothing is said."""


def make_api_key(key_id: str) -> str:
    """A new API key's text.

    Raises:
        ValueError: the id cannot be one.
    """
    return apikeys.make(key_id)


def api_key_entry(
    token: str, tenant: str, share: Share = DEFAULT_SHARE, identity: Identity | None = None
) -> bytes:
    """The Secret's entry for this key: what the gateway reads again with `parse_api_keys`."""
    who = None if identity is None else {"user": identity.user, "groups": list(identity.groups)}
    entry = apikeys.entry(
        token,
        tenant,
        weight=share.weight,
        limits={name: getattr(share, name) for name in apikeys.LIMITS},
        images=share.images,
        networks=share.networks,
        kubernetes=who,
    )
    return json.dumps(entry).encode()


def parse_api_keys(data: Mapping[str, bytes]) -> tuple[dict[str, ApiKey], list[str]]:
    """Keys by id, and the ids of entries that cannot be read: one bad entry must not lock all out."""
    keys: dict[str, ApiKey] = {}
    bad: list[str] = []
    for key_id, raw in data.items():
        try:
            keys[key_id] = _read_entry(key_id, raw)
        except (ValueError, KeyError, TypeError, RecursionError):
            bad.append(key_id)
    return keys, sorted(bad)


def _read_entry(key_id: str, raw: bytes) -> ApiKey:
    entry = json.loads(raw)
    if not isinstance(entry, dict):
        raise TypeError("not a JSON object")
    expires, previous = entry.get("expires_at"), entry.get("previous")
    return ApiKey(
        key_id,
        apikeys.check_digest(entry["sha256"]),
        apikeys.check_tenant(entry["tenant"]),
        read_share(entry),
        read_identity(entry.get("kubernetes")),
        None if expires is None else apikeys.read_moment(expires),
        None if previous is None else _read_previous(previous),
    )


def _read_previous(entry: Mapping[str, object]) -> tuple[str, float]:
    return apikeys.check_digest(entry["sha256"]), apikeys.read_moment(entry["until"])


def read_share(entry: Mapping[str, Any]) -> Share:
    """What an entry says of its tenant's share; raises as `check_share`."""
    return check_share(
        entry.get("weight", 1.0),
        images=entry.get("images"),
        networks=entry.get("networks"),
        **{name: entry.get(name) for name in apikeys.LIMITS},
    )


def read_identity(entry: Mapping[str, object] | None) -> Identity | None:
    """What an entry says of whom the cluster knows its caller as.

    Raises:
        ValueError, TypeError, KeyError: it makes no sense.
    """
    if entry is None:
        return None
    user, groups = entry["user"], entry.get("groups", [])
    if not isinstance(groups, list):
        raise TypeError("groups")
    return check_identity(user, groups)


def check_identity(user: object, groups: Sequence[object]) -> Identity:
    """Whom a key's caller is to the cluster.

    Raises:
        ValueError: one of the names is empty or no text.
    """
    if not all(isinstance(one, str) and one for one in (user, *groups)):
        raise ValueError("a Kubernetes user or group is a text that is not empty")
    return Identity(str(user), tuple(str(one) for one in groups))


def check_share(
    weight: float,
    *,
    images: object = None,
    networks: object = None,
    **limits: Any,  # noqa: ANN401 - whatever an entry says; checked here
) -> Share:
    """What a tenant may have; `limits` are those of `apikeys.LIMITS`, None and left out is no limit.

    Raises:
        ValueError, TypeError: one of it cannot be; `apikeys.check_limits`, `check_patterns` and `check_networks` say
            what can.
    """
    apikeys.check_limits(weight, limits)
    patterns = None if images is None else apikeys.check_patterns(images)
    profiles = None if networks is None else apikeys.check_networks(networks)
    return Share(float(weight), images=patterns, networks=profiles, **limits)


def check_api_key(token: str, keys: Mapping[str, ApiKey], now: float) -> ApiKey:
    """The key that this token is.

    Raises:
        UnauthenticatedError: unknown, revoked or malformed; the text does not say which. Or one that has expired,
            which only who has it hears.
    """
    parts = token.split("_", 2)
    entry = keys.get(parts[1]) if len(parts) == 3 else None
    # Compared even when there is no such id, so that the time tells nothing of which ids exist.
    same = (entry or _NOBODYS).has(apikeys.digest(token), now)
    if entry is None or not same or parts[0] != API_KEY_PREFIX:
        raise UnauthenticatedError("the token is not known")
    if entry.is_over(now):
        raise UnauthenticatedError(f"the API key {entry.key_id} has expired: ask for another")
    return entry


_NOBODYS = ApiKey("", _NO_DIGEST, "")


def make_sandbox_token(claims: SandboxClaims, keys: Mapping[str, bytes], current: str) -> str:
    """The token for one sandbox, signed with the current key."""
    said = list(claims) if claims.maker or claims.may else list(claims[:_OLD_CLAIMS])
    return seal(SANDBOX_SEAL, said, keys, current)


def check_sandbox_token(token: str, keys: Mapping[str, bytes], now: float) -> SandboxClaims:
    """What a sandbox token says, once its signature and its expiry have been checked.

    Raises:
        UnauthenticatedError: forged, expired, signed with a key that is gone, or malformed.
    """
    try:
        claims = SandboxClaims(*unseal(SANDBOX_SEAL, token, keys))
        claims = claims._replace(may=tuple(claims.may))
    except (ValueError, TypeError):
        raise UnauthenticatedError("the sandbox token is not valid") from None
    if now >= claims.expires_at:
        raise UnauthenticatedError("the sandbox token has expired", sandbox=claims.sandbox)
    return claims


def seal(kind: Seal, said: Sequence[object], keys: Mapping[str, bytes], current: str) -> str:
    """A text that says this, signed with the current key."""
    body = _encode(json.dumps(said, separators=(",", ":")).encode())
    return f"{kind.prefix}_{current}_{body}.{_mac(kind, keys[current], current, body)}"


def unseal(kind: Seal, text: str, keys: Mapping[str, bytes]) -> list[Any]:
    """What such a text says.

    Raises:
        ValueError: it is none, or no key that is there has signed it.
    """
    try:
        # A key id holds no underscore: the text between the first two is all of it.
        prefix, key_id, rest = text.split("_", 2)
        body, _, mac = rest.rpartition(".")
        is_ours = hmac.compare_digest(mac.encode(), _mac(kind, keys[key_id], key_id, body).encode())
        said: object = json.loads(_decode(body)) if is_ours and prefix == kind.prefix else None
    except (ValueError, KeyError):
        said = None
    if isinstance(said, list):
        return said
    raise ValueError("it is not signed by one of our keys")


def bearer(header: str | None) -> str:
    """The token in an Authorization header.

    Raises:
        UnauthenticatedError: there is none, or it is not a bearer token.
    """
    scheme, _, token = (header or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > BEARER_MAX or not token.isascii():
        raise UnauthenticatedError("send Authorization: Bearer <token>")
    return token


def _mac(kind: Seal, key: bytes, key_id: str, body: str) -> str:
    message = kind.purpose + key_id.encode() + b"\0" + body.encode()
    return _encode(hmac.digest(key, message, hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
