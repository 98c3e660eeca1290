"""The Secret `sandman-keys` for those who change it: which key is current, and which may go.

    current          the key that new tokens are made with
    daemon-<id>      32 bytes; a pod's daemon knows the hash of a token that was made with one of them
    sandbox-<id>     32 bytes; signs the tokens of sandboxes
    retired-<id>     when it ceased to be current, written by the rotation

A free placeholder is never told of another key: it is spoken to with the one of its time, for as long as it lives. So
is a sandbox, and its tokens are signed with one of its time too. Therefore a key may go once no pod lives that was made
before it was retired, and not before. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sandman import apikeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CURRENT = "current"
KINDS = ("daemon-", "sandbox-")
RETIRED = "retired-"
KEY_BYTES = 32
LAG_S = 120.0
"""Seconds after a rotation in which a webhook (it looks each 30 s) or a gateway may still use the old key."""
_KEY_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,38}[a-z0-9])?")


class Pod(NamedTuple):
    """A pod with a daemon: which key its credential was made with, and when, in seconds since the epoch."""

    key_id: str
    created_at: float


class Key(NamedTuple):
    """One key. `retired_at` is None while it is current, or where nobody wrote it down."""

    key_id: str
    is_current: bool
    is_whole: bool
    retired_at: float | None
    pods: int
    older: int
    """Pods that were made before it was retired, by whatever key: a token of theirs may be signed with it."""

    @property
    def may_go(self) -> bool:
        """Whether nothing alive can need it."""
        is_known = not self.is_current and self.retired_at is not None
        return is_known and not self.pods and not self.older


def read(data: Mapping[str, bytes], pods: Iterable[Pod]) -> list[Key]:
    """The keys that there are, the current one first."""
    alive = list(pods)
    current = data.get(CURRENT, b"").decode("ascii", "replace").strip()
    ids = {name.removeprefix(kind) for name in data for kind in KINDS if name.startswith(kind)}
    found = [_key(key_id, key_id == current, data, alive) for key_id in sorted(ids)]
    return sorted(found, key=lambda one: (not one.is_current, one.key_id))


def _key(key_id: str, is_current: bool, data: Mapping[str, bytes], pods: list[Pod]) -> Key:
    is_whole = all(len(data.get(f"{kind}{key_id}", b"")) == KEY_BYTES for kind in KINDS)
    retired_at = None if is_current else _moment(data.get(f"{RETIRED}{key_id}"))
    own = sum(pod.key_id == key_id for pod in pods)
    older = sum(retired_at is not None and pod.created_at < retired_at + LAG_S for pod in pods)
    return Key(key_id, is_current, is_whole, retired_at, own, older)


def _moment(raw: bytes | None) -> float | None:
    try:
        return None if raw is None else apikeys.read_moment(raw.decode("ascii"))
    except ValueError:
        return None


def added(
    data: Mapping[str, bytes], key_id: str, secrets: tuple[bytes, bytes]
) -> dict[str, bytes | None]:
    """What is written first: the new key, which nobody uses before all know it.

    Raises:
        ValueError: the id is taken or cannot be one, or there is no key in use yet.
    """
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError(f"key id {key_id!r}: use a-z, 0-9, dots and dashes, 40 characters at most")
    if not data.get(CURRENT):
        raise ValueError("there is no current key yet: the webhook makes the first")
    if any(f"{kind}{key_id}" in data for kind in KINDS):
        raise ValueError(f"there is a key {key_id}")
    return {f"{kind}{key_id}": secret for kind, secret in zip(KINDS, secrets, strict=True)}


def switched(data: Mapping[str, bytes], key_id: str, now: float) -> dict[str, bytes | None]:
    """What is written then: the new key is the current one, the one before it retired.

    Raises:
        ValueError: the new one is not there whole.
    """
    if not all(len(data.get(f"{kind}{key_id}", b"")) == KEY_BYTES for kind in KINDS):
        raise ValueError(f"the key {key_id} is not there whole")
    before = data[CURRENT].decode("ascii", "replace").strip()
    changes: dict[str, bytes | None] = {CURRENT: key_id.encode()}
    if before != key_id:
        changes |= {f"{RETIRED}{before}": apikeys.moment(now).encode(), f"{RETIRED}{key_id}": None}
    return changes


def pruned(keys: Iterable[Key], now: float) -> dict[str, bytes | None]:
    """What is written to take away keys that nothing alive can need. One of which nobody wrote down when it was
    retired counts as retired from now on."""
    found = list(keys)
    gone = [one.key_id for one in found if one.may_go]
    untold = [one.key_id for one in found if not one.is_current and one.retired_at is None]
    changes: dict[str, bytes | None] = {
        f"{RETIRED}{key_id}": apikeys.moment(now).encode() for key_id in untold
    }
    return changes | {f"{kind}{key_id}": None for key_id in gone for kind in (*KINDS, RETIRED)}
