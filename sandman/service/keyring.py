"""The Secret `sandman-keys`: the keys of daemon tokens and sandbox tokens, read and written.

    current          the key id that new tokens are made with
    daemon-<key id>  32 raw bytes: daemon tokens (`sandman.grants`)
    sandbox-<key id> 32 raw bytes: the tokens that callers get for one sandbox

The webhook fills an empty Secret once; the gateway only reads. To rotate, an operator adds the two
entries of a new key id and then points `current` at it; old entries stay for as long as a pod that
was made with them lives. Pure: bytes in, bytes out, randomness is handed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CURRENT = "current"
DAEMON_PREFIX = "daemon-"
SANDBOX_PREFIX = "sandbox-"

KEY_BYTES = 32
"""Bytes of a key: as many as the output of SHA-256, beyond which HMAC gains nothing."""
_KEY_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,38}[a-z0-9])?")
"""A key id must do as a key of a Secret behind a prefix and stand in tokens and annotations."""


class KeyringError(ValueError):
    """The Secret holds no key that new tokens could be made with; the text says what is amiss."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a deployment. Both mappings have `current`; their bytes never show in a repr."""

    current: str
    daemon: Mapping[str, bytes] = field(repr=False)
    sandbox: Mapping[str, bytes] = field(repr=False)

    def to_data(self) -> dict[str, bytes]:
        """The entries of the Secret."""
        entries = {CURRENT: self.current.encode()}
        entries |= {DAEMON_PREFIX + key_id: key for key_id, key in self.daemon.items()}
        entries |= {SANDBOX_PREFIX + key_id: key for key_id, key in self.sandbox.items()}
        return entries


def parse(data: Mapping[str, bytes]) -> Keyring:
    """The keyring in the entries of the Secret (`sandman.service.kube.objects.Secret.data`).

    An entry that is not a key is passed over unless it is the current one: a slip in an old entry
    costs the sandboxes of that key, not the whole service.

    Raises:
        KeyringError: empty, no `current`, or the current key is not there whole.
    """
    current = data.get(CURRENT, b"").decode("ascii", "replace").strip()
    if not is_key_id(current):
        raise KeyringError(f"the Secret has no usable entry {CURRENT!r}")
    keyring = Keyring(current, _keys(data, DAEMON_PREFIX), _keys(data, SANDBOX_PREFIX))
    for prefix, keys in ((DAEMON_PREFIX, keyring.daemon), (SANDBOX_PREFIX, keyring.sandbox)):
        if current not in keys:
            raise KeyringError(f"entry {prefix + current!r} is not {KEY_BYTES} bytes")
    return keyring


def fresh(key_id: str, daemon_key: bytes, sandbox_key: bytes) -> Keyring:
    """A keyring with one key of each kind, from random bytes that the caller drew.

    Raises:
        KeyringError: the id or a key does not have the right form.
    """
    if not is_key_id(key_id):
        raise KeyringError(f"{key_id!r} cannot be a key id")
    if len(daemon_key) != KEY_BYTES or len(sandbox_key) != KEY_BYTES:
        raise KeyringError(f"a key has {KEY_BYTES} bytes")
    return Keyring(key_id, {key_id: daemon_key}, {key_id: sandbox_key})


def completed(data: Mapping[str, bytes], new: Keyring) -> dict[str, bytes]:
    """The Secret's entries with the new keyring added and current; every other one stays.

    Nothing is thrown away, because an entry that looks wrong here may be the only copy of a key
    that live sandboxes depend on.
    """
    return {**data, **new.to_data()}


def is_key_id(text: str) -> bool:
    """Whether the text can name a key."""
    return _KEY_ID.fullmatch(text) is not None


def _keys(data: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {
        name.removeprefix(prefix): key
        for name, key in data.items()
        if name.startswith(prefix) and len(key) == KEY_BYTES
    }
