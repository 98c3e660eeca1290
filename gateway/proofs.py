"""By what a caller is known, as a value. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """By what somebody is known: enough to say later whether he still is. No secret is in it."""

    kind: str
    """`key`, `sandbox`, `account` or `jwt`."""
    key_id: str
    """Id of the API key or rule; "" for none."""
    sha256: str = ""
    """Of the API key."""
    signer: str = ""
    """Id of the key that signed a sandbox's token."""
    expires_at: float | None = None
    """Seconds since the epoch; None where it is only looked at when a call begins."""
