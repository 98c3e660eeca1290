"""One limit for all that is tried on behalf of a call whose sandbox does not answer. Pure.

Whoever calls has half a minute in mind. Connecting, connecting again, asking why it failed, and the
caller's own next tries would each be entitled to some of it, and together take twice as long; so each
is given a moment by which the caller must have heard, and none a length of its own.

    cut ──16 s──▶ the kernel gives up ──10 s──▶ nobody knows why: the caller hears     (a call under way)
    call ──16 s──▶ no connection ──10 s──▶ nobody knows why: the caller hears          (a call made since)
"""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING

from sandman import names
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REACH_S = 26.0
"""Seconds from the last sign of a sandbox, or from the call, until a caller hears that it is out of reach. Half a
minute is promised; the rest is for a kernel's timers, a busy machine and the way back."""
SILENCE_S = 16.0
"""Seconds without an acknowledgement that end a connection: a node that is lost sends no end. An interruption
of ten seconds is outlived."""
LEAST_S = 1.0
"""Seconds that a call has at the least: a caller that has less need not ask."""
SILENT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
"""How the kernel says that nothing came, where a refusal or a reset is a word of the other end."""


def until(now: float, headers: Sequence[tuple[bytes, bytes]]) -> float:
    """The moment by which the caller must have heard, on the clock of `now`.

    Args:
        now: when the call came.
        headers: the caller's; it says how long it waits, where that is less than REACH_S.

    Raises:
        BadRequestError: it says so in a way that makes no sense.
    """
    given = next((value for name, value in headers if name == _WITHIN), None)
    return now + (REACH_S if given is None else min(REACH_S, max(LEAST_S, _seconds(given))))


def _seconds(text: bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise BadRequestError("it must be a number of seconds", field=names.HEADER_WITHIN)
    return seconds


_WITHIN = names.HEADER_WITHIN.lower().encode()


def dial_until(now: float, until: float, loss_s: float) -> float:
    """When connecting is given up, so that `loss_s` is left to find out why; of little time, half."""
    left = max(0.0, until - now)
    return now + max(left - loss_s, left / 2)


def search_until(
    now: float, until: float, loss_s: float, since: float | None, *, sent: bool
) -> float:
    """When the search for a loss's reason ends.

    Args:
        now: when it begins.
        until: when the caller must have heard.
        loss_s: longest that it takes.
        since: when the sandbox was last heard of, where it is silent.
        sent: the call had reached it: what counts is not how long ago that was, but `since`.
    """
    limit = (now if since is None else since) + REACH_S if sent else until
    return min(now + loss_s, max(now, limit))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_silent(error: BaseException) -> bool:
    """Whether the kernel says that nothing came."""
    return isinstance(error, OSError) and error.errno in SILENT


def last_sign(error: BaseException, now: float) -> float | None:
    """When the other end of a connection that broke just now was last heard of; None: just now, it said so itself."""
    return now - SILENCE_S if any(map(is_silent, causes(error))) else None
