"""Which egress profiles a sandbox had before the one that it has: kept on its pod, so that what is tested is not
certified by what is so afterwards. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping

BEFORE_MAX = 16
"""Profiles that are remembered: more than a cluster has, as a rule. Of more the first go, and that it was changed stays."""
UNREADABLE = "?"
"""In the place of profiles when what is written cannot be read: no profile has this name."""

LATEST = 1e11
"""No time is later, in seconds since the epoch: what shows one ends with the year 9999."""


class Changes(NamedTuple):
    """What a sandbox's egress profile was since its claim."""

    at: float | None
    """Of the last change, in seconds since the epoch; None: what is written cannot be read."""
    before: tuple[str, ...]
    """Each profile once, in the order in which it was first had."""


def changed(known: Changes | None, was: str, profile: str, now: float) -> Changes | None:
    """What is known after a profile is written; None when none was ever another.

    Args:
        known: what was known before.
        was: the profile that it has.
        profile: the one that it is to have.
        now: seconds since the epoch.
    """
    if profile == was:
        return known
    before = known.before if known is not None else ()
    if was not in before:
        before = (*before, was)[-BEFORE_MAX:]
    return Changes(round(now, 3), before)


def record(changes: Changes) -> dict[str, object]:
    """As it is written on the pod."""
    return {"at": changes.at, "before": list(changes.before)}


def of_record(told: Mapping[str, object] | None) -> Changes | None:
    """What stands on the pod. None: nothing does, so that nothing was changed. What cannot be read is a change: nobody
    but Sandman writes it, and for nothing else.

    Args:
        told: the annotation's object, empty when it is none; None when the annotation is not there.
    """
    if told is None:
        return None
    at, before = told.get("at"), told.get("before")
    if not isinstance(at, (int, float)) or isinstance(at, bool) or not 0 <= at < LATEST:
        at = None
    if not isinstance(before, list) or not before or not all(map(names.is_label, before)):
        before = [UNREADABLE]
    return Changes(at, tuple(before[-BEFORE_MAX:]))
