"""API keys as text and as the Secret's entries, for those who make them and those who check them.

A key is `smk_<key id>_<secret>`. What is kept of it is its SHA-256: the secret has 256 random bits, so a plain hash
is as good as a slow one, and an entry may stand in a repository that others read.

An entry is JSON: `sha256` and `tenant`; optional `expires_at`, `previous` (`sha256` and `until`: the token before a
rotation, which is good for a while yet), `weight`, `concurrent`, `eval_reserved`, `rate`, `cpu`, `memory`, `images`,
`networks`, `kubernetes`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX = "smk"
_KEY_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_SECRET_BYTES = 32

WEIGHT_LEAST, WEIGHT_MOST = 0.01, 100.0
"""Bounds of a weight: a tenant that gets a ten-thousandth of another's share is better served by a limit."""
LIMITS = ("concurrent", "eval_reserved", "rate", "cpu", "memory")
"""Limits of a tenant, as an entry names them."""
LIMIT_LEAST = 0.001
"""Least cores, and creations a second: one in a quarter of an hour."""
PATTERN_MAX = 256
"""Characters of an image pattern; a reference has 512 at most."""
_PATTERN = re.compile(r"[A-Za-z0-9._:/@*\[\]-]+")


def check_id(key_id: str) -> str:
    """The id of a key.

    Raises:
        ValueError: the id has other characters than a-z, 0-9 and inner dashes, or is over 40 long.
    """
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError(f"key id {key_id!r}: use a-z, 0-9 and dashes, 40 characters at most")
    return key_id


def make(key_id: str) -> str:
    """A new key's text.

    Raises:
        ValueError: the id cannot be one.
    """
    return f"{PREFIX}_{check_id(key_id)}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest(token: str) -> str:
    """What is kept of a key: hex SHA-256 of its whole text."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_digest(value: object) -> str:
    """A digest as an entry holds it.

    Raises:
        ValueError, TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError("sha256 is a text")
    if len(bytes.fromhex(value)) != hashlib.sha256().digest_size:
        raise ValueError("sha256 is not 32 bytes in hexadecimal")
    return value.lower()


def check_tenant(value: object) -> str:
    """The name of a tenant, which becomes a label's value.

    Raises:
        ValueError: it cannot be one.
    """
    if not names.is_label(value):
        raise ValueError(f"tenant {str(value)[:80]!r}: use 1 to 63 of A-Z a-z 0-9 . _ -")
    return str(value)


def check_limits(weight: object, limits: Mapping[str, object]) -> None:
    """What a tenant may have, as an entry says it.

    Raises:
        ValueError, TypeError: the weight is no number from `WEIGHT_LEAST` to `WEIGHT_MOST`, or a limit none that is
            greater than 0 (whole where it counts sandboxes or bytes), or more is reserved of `concurrent` than there is.
    """
    if isinstance(weight, bool) or not WEIGHT_LEAST <= weight <= WEIGHT_MOST:  # type: ignore[operator]
        raise ValueError(f"a weight is a number from {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}")
    for name in ("concurrent", "eval_reserved", "memory"):
        count = limits.get(name)
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"{name} is a whole number, at least 1")
    reserved, most = limits.get("eval_reserved"), limits.get("concurrent")
    if reserved is not None and (most is None or reserved > most):  # type: ignore[operator]
        raise ValueError(
            "eval_reserved is a part of concurrent, which must be given and not be less"
        )
    for name in ("rate", "cpu"):
        amount = limits.get(name)
        if amount is not None and (isinstance(amount, bool) or not LIMIT_LEAST <= amount < 1e9):  # type: ignore[operator]
            raise ValueError(f"{name} is a number, at least {LIMIT_LEAST:g}")


def check_patterns(patterns: object) -> tuple[str, ...]:
    """An image allowlist as a key holds it.

    Raises:
        ValueError: it is no list of patterns.
    """
    if not isinstance(patterns, (list, tuple)):
        raise ValueError("images is a list of patterns")  # noqa: TRY004 - all of a key's faults are one
    for one in patterns:
        if not isinstance(one, str) or len(one) > PATTERN_MAX or not _PATTERN.fullmatch(one):
            raise ValueError(f"image pattern {str(one)[:80]!r}: use a reference, * and **")
        if one == "*":
            raise ValueError("image pattern '*' has no host: write ** for every image")
    return tuple(patterns)


def check_networks(given: object) -> tuple[str, ...]:
    """The egress profiles that a key may ask for, as it holds them.

    Raises:
        ValueError: it is no list of names.
    """
    if not isinstance(given, (list, tuple)) or not all(names.is_label(one) for one in given):
        raise ValueError("networks is a list of names of egress profiles")
    return tuple(given)


def entry(  # noqa: PLR0913 - the members that an entry has
    token: str,
    tenant: str,
    *,
    weight: float = 1.0,
    limits: Mapping[str, object] | None = None,
    images: Sequence[str] | None = None,
    networks: Sequence[str] | None = None,
    kubernetes: Mapping[str, object] | None = None,
    expires_at: float | None = None,
) -> dict[str, object]:
    """What the Secret holds of a key; members that say nothing are left out.

    Raises:
        ValueError, TypeError: one of them cannot be.
    """
    given = {name: value for name, value in (limits or {}).items() if value is not None}
    check_limits(weight, given)
    made: dict[str, object] = {"sha256": digest(token), "tenant": check_tenant(tenant)}
    made |= {"weight": weight, **given}
    if images is not None:
        made["images"] = list(check_patterns(images))
    if networks is not None:
        made["networks"] = list(check_networks(networks))
    if kubernetes is not None:
        made["kubernetes"] = dict(kubernetes)
    if expires_at is not None:
        made["expires_at"] = moment(expires_at)
    return made


def rotated(
    before: Mapping[str, object], token: str, until: float, expires_at: float | None = None
) -> dict[str, object]:
    """The entry with another token; the one that it had is good until then, in seconds since the epoch, and
    one from an earlier rotation no more.

    Raises:
        ValueError, TypeError, KeyError: there is no entry to be read.
    """
    old = {"sha256": check_digest(before["sha256"]), "until": moment(until)}
    made = {**before, "sha256": digest(token), "previous": old}
    if expires_at is not None:
        made["expires_at"] = moment(expires_at)
    return made


def moment(seconds: float) -> str:
    """A moment, given in seconds since the epoch, as an entry holds it: RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_moment(text: object) -> float:
    """Seconds since the epoch.

    Raises:
        ValueError, TypeError: it is no time as in RFC 3339, with its zone.
    """
    if not isinstance(text, str):
        raise TypeError("a moment is a text")
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: write 2027-01-31T00:00:00Z")
    return found.timestamp()
