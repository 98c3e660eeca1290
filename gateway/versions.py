"""Which daemons a gateway of this version works with: those of the same minor version, of one before and of one after. Pure.

Placeholders are injected when they are made, and may be days old when a gateway is upgraded; a gateway may be
rolled back. What each version added, and what is done without it: docs/design/20261130-version-skew.md.
"""

from __future__ import annotations

from sandman.errors import VersionSkewError
from sandman.version import __version__

OWN = __version__
MINORS_APART = 1
"""Minor versions between a gateway and a daemon: an upgrade is one step, and either part may take it first."""


def check(daemon: str, sandbox: str | None = None) -> None:
    """Look whether a daemon may be given to anybody.

    Args:
        daemon: the version that it tells; empty: it tells none, and is taken as it is.
        sandbox: whose it is.

    Raises:
        VersionSkewError: it is too old or too new; says what to do.
    """
    if daemon and not fits(daemon):
        older = _older(daemon)
        upgrade = "the pool's pods" if older else "the gateway"
        raise VersionSkewError(
            f"the sandbox's daemon has version {daemon[:40]}, the gateway {OWN}: they work together one minor version "
            f"apart. Upgrade {upgrade} (docs/operations.md, Upgrades)",
            sandbox=sandbox,
            facts={"daemon": daemon[:40], "gateway": OWN},
        )


def fits(daemon: str) -> bool:
    """Whether this gateway and a daemon of that version work together."""
    theirs, ours = _parts(daemon), _parts(OWN)
    if theirs is None or ours is None:
        return theirs == ours
    return theirs[0] == ours[0] and abs(theirs[1] - ours[1]) <= MINORS_APART


def _older(daemon: str) -> bool:
    theirs, ours = _parts(daemon), _parts(OWN)
    return theirs is None or ours is None or theirs < ours


def _parts(version: str) -> tuple[int, int] | None:
    """Major and minor; None for what is no version."""
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(n.isascii() and n.isdigit() and len(n) < 6 for n in numbers):
        return None
    return int(numbers[0]), int(numbers[1])
