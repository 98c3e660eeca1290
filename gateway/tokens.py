"""Tokens of callers, as text: API keys and the tokens of single sandboxes. Pure; the clock comes in.

An API key is `smk_<key id>_<secret>`; the gateway keeps its SHA-256 alone. The secret has 256 random
bits, so a plain hash is as good as a slow one: there is nothing to guess.

A sandbox token is `sbt_<key id>_<claims>.<mac>`: it says which sandbox, which boot of it, whose and
until when, and is signed with a key that all replicas hold, so none has to remember it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple

from gateway import references
from gateway.model import DEFAULT_SHARE, Identity, Share
from sandman import names
from sandman.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_KEY_PREFIX = "smk"
SANDBOX_PREFIX = "sbt"
_KEY_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_PURPOSE = b"sandman sandbox token v1\0"
_SECRET_BYTES = 32
_MAX_TOKEN = 1024
"""Characters; a longer one is refused before anything is computed over it."""


WEIGHT_LEAST, WEIGHT_MOST = 0.01, 100.0
"""Bounds of a weight: a tenant that gets a ten-thousandth of another's share is better served by a limit."""
LIMITS = ("concurrent", "rate", "cpu", "memory")
"""Limits of a tenant, as an entry and `Share` name them."""
LIMIT_LEAST = 0.001
"""Least cores, and creations a second: one in a quarter of an hour."""


class ApiKey(NamedTuple):
    """One entry of the Secret with API keys."""

    key_id: str
    sha256: str
    tenant: str
    share: Share = DEFAULT_SHARE
    identity: Identity | None = None


class SandboxClaims(NamedTuple):
    """What a sandbox token says. `expires_at` in seconds since the epoch."""

    sandbox: str
    boot_id: str
    tenant: str
    expires_at: float


def make_api_key(key_id: str) -> str:
    """A new API key's text.

    Raises:
        ValueError: the id has other characters than a-z, 0-9 and inner dashes, or is over 40 long.
    """
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError(f"key id {key_id!r}: use a-z, 0-9 and dashes, 40 characters at most")
    return f"{API_KEY_PREFIX}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def api_key_entry(
    token: str, tenant: str, share: Share = DEFAULT_SHARE, identity: Identity | None = None
) -> bytes:
    """The Secret's entry for this key: what the gateway reads again with `parse_api_keys`."""
    entry: dict[str, object] = {
        "sha256": _sha256(token),
        "tenant": tenant,
        "weight": share.weight,
    }
    limits = {name: getattr(share, name) for name in LIMITS}
    entry |= {name: limit for name, limit in limits.items() if limit is not None}
    if share.images is not None:
        entry["images"] = list(share.images)
    if share.networks is not None:
        entry["networks"] = list(share.networks)
    if identity is not None:
        entry["kubernetes"] = {"user": identity.user, "groups": list(identity.groups)}
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
    digest, tenant = entry["sha256"], entry["tenant"]
    # A tenant becomes a label's value.
    if len(bytes.fromhex(digest)) != hashlib.sha256().digest_size or not names.is_label(tenant):
        raise ValueError(key_id)
    return ApiKey(
        key_id,
        digest.lower(),
        tenant,
        check_share(
            entry.get("weight", 1.0),
            images=entry.get("images"),
            networks=entry.get("networks"),
            **{name: entry.get(name) for name in LIMITS},
        ),
        _identity(entry.get("kubernetes")),
    )


def _identity(entry: Mapping[str, object] | None) -> Identity | None:
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
    concurrent: int | None = None,
    *,
    rate: float | None = None,
    cpu: float | None = None,
    memory: int | None = None,
    images: object = None,
    networks: object = None,
) -> Share:
    """What a tenant may have.

    Raises:
        ValueError, TypeError: the weight is no number from `WEIGHT_LEAST` to `WEIGHT_MOST`, or a limit none
            that is greater than 0 (whole where it counts sandboxes or bytes), or the images no list of
            patterns, or the networks no list of names.
    """
    if isinstance(weight, bool) or not WEIGHT_LEAST <= weight <= WEIGHT_MOST:
        raise ValueError(f"a weight is a number from {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}")
    for name, count in (("concurrent", concurrent), ("memory", memory)):
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"{name} is a whole number, at least 1")
    for name, amount in (("rate", rate), ("cpu", cpu)):
        if amount is not None and (isinstance(amount, bool) or not LIMIT_LEAST <= amount < 1e9):
            raise ValueError(f"{name} is a number, at least {LIMIT_LEAST:g}")
    patterns = None if images is None else references.check_patterns(images)
    profiles = None if networks is None else _check_networks(networks)
    return Share(float(weight), concurrent, patterns, rate, cpu, memory, profiles)


def _check_networks(given: object) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not all(names.is_label(one) for one in given):
        raise ValueError("networks is a list of names of egress profiles")
    return tuple(given)


def check_api_key(token: str, keys: Mapping[str, ApiKey]) -> ApiKey:
    """The key that this token is.

    Raises:
        UnauthenticatedError: unknown, revoked or malformed; the text does not say which.
    """
    parts = token.split("_", 2)
    entry = keys.get(parts[1]) if len(parts) == 3 else None
    # Compared even when there is no such id, so that the time tells nothing of which ids exist.
    same = hmac.compare_digest(_sha256(token), entry.sha256 if entry else "0" * 64)
    if entry is None or not same or parts[0] != API_KEY_PREFIX:
        raise UnauthenticatedError("the token is not known: check SANDMAN_TOKEN")
    return entry


def make_sandbox_token(claims: SandboxClaims, keys: Mapping[str, bytes], current: str) -> str:
    """The token for one sandbox, signed with the current key."""
    body = _encode(json.dumps(list(claims), separators=(",", ":")).encode())
    return f"{SANDBOX_PREFIX}_{current}_{body}.{_mac(keys[current], current, body)}"


def check_sandbox_token(token: str, keys: Mapping[str, bytes], now: float) -> SandboxClaims:
    """What a sandbox token says, once its signature and its expiry have been checked.

    Raises:
        UnauthenticatedError: forged, expired, signed with a key that is gone, or malformed.
    """
    try:
        claims = _read_claims(token, keys)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise UnauthenticatedError("the sandbox token is not valid") from None
    if now >= claims.expires_at:
        raise UnauthenticatedError("the sandbox token has expired", sandbox=claims.sandbox)
    return claims


def _read_claims(token: str, keys: Mapping[str, bytes]) -> SandboxClaims:
    # A key id holds no underscore: the text between the first two is all of it.
    _, key_id, rest = token.split("_", 2)
    body, _, mac = rest.rpartition(".")
    if not hmac.compare_digest(mac.encode(), _mac(keys[key_id], key_id, body).encode()):
        raise ValueError(key_id)
    return SandboxClaims(*json.loads(_decode(body)))


def bearer(header: str | None) -> str:
    """The token in an Authorization header.

    Raises:
        UnauthenticatedError: there is none, or it is not a bearer token.
    """
    scheme, _, token = (header or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN or not token.isascii():
        raise UnauthenticatedError("send Authorization: Bearer <token>")
    return token


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _mac(key: bytes, key_id: str, body: str) -> str:
    message = _PURPOSE + key_id.encode() + b"\0" + body.encode()
    return _encode(hmac.digest(key, message, hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
