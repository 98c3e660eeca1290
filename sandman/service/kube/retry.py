"""When to try again, and after how long. Pure."""

from __future__ import annotations

from sandman.service.kube import errors

MAX_ATTEMPTS = 5
"""Calls in all, the first included. Four waits of 0.2, 0.4, 0.8 and 1.6 s at most outlast a change
of the API server's leader without holding a caller for long."""
FIRST_DELAY_S = 0.2
MAX_DELAY_S = 30.0
"""No wait is longer, whatever the server asks: a caller who wants to wait on may call again."""
MIN_JITTER = 0.5
"""Waits are drawn from [half, whole], so that callers who failed together do not return together."""


def backoff(
    failures: int, luck: float, *, first_s: float = FIRST_DELAY_S, most_s: float = MAX_DELAY_S
) -> float:
    """Seconds to wait after so many failures in a row (1 = the first).

    Args:
        failures: how many calls failed in a row, at least 1.
        luck: a random number of [0, 1).
        first_s: the whole wait after the first failure; it doubles with each.
        most_s: the longest one.
    """
    whole = min(most_s, first_s * 2.0 ** min(failures - 1, 30))
    return whole * (MIN_JITTER + (1.0 - MIN_JITTER) * luck)


def delay_before_retry(error: errors.KubeError, attempt: int, luck: float) -> float | None:
    """Seconds until the next attempt of a call that may be repeated, or None to give up.

    Args:
        error: how the last attempt failed.
        attempt: which one that was, from 1.
        luck: a random number of [0, 1).
    """
    if attempt >= MAX_ATTEMPTS:
        return None
    if not isinstance(error, errors.ThrottledError | errors.UnavailableError):
        return None
    wait = backoff(attempt, luck)
    if error.retry_after is None:
        return wait
    return min(MAX_DELAY_S, error.retry_after + wait)
