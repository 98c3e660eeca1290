"""Connections to daemons: how often one is tried, and what is made of one that breaks."""

from __future__ import annotations

import socket

import httpx
import trio

from gateway import reach
from gateway.daemons import LostError

DIAL_PAUSES_S = (0.05, 0.2, 0.8)
"""Pauses between tries to connect to a sandbox that should be there: as long as a network blip."""
DIAL_S = 16.0
"""Seconds for all of them, where no caller has a limit."""
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 8),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(reach.SILENCE_S * 1000)),
)
"""A command may be silent for hours, so reading has no time limit. What ends it is silence of the kernel there."""


class Tries:
    """Tries to connect, as long as there may be another one.

    Args:
        until: on trio's clock; None: for DIAL_S.
    """

    def __init__(self, until: float | None) -> None:
        self._begun = trio.current_time()
        self._until = self._begun + DIAL_S if until is None else until
        self._pauses = iter(DIAL_PAUSES_S)

    def limit(self, connect_s: float) -> float:
        """Seconds that the next one may take."""
        return max(0.0, min(connect_s, self._until - trio.current_time()))

    def pause(self, error: Exception) -> float:
        """Seconds until the next one.

        Raises:
            LostError: there is none.
        """
        pause = next(self._pauses, None)
        now = trio.current_time()
        if pause is not None and now + pause < self._until:
            return pause
        since = self._begun if is_silence(error) else None
        raise LostError(f"no connection: {error}", sent=False, since=since) from error


def is_silence(error: BaseException) -> bool:
    """Whether a connection was not made because nothing came back."""
    too_late = (trio.TooSlowError, httpx.TimeoutException)
    return any(isinstance(one, too_late) or reach.is_silent(one) for one in reach.causes(error))


def broken(error: Exception, detail: str = "") -> LostError:
    """What a call that went out hears, whose answer did not come, or not all of it."""
    since = reach.last_sign(error, trio.current_time())
    return LostError(detail or str(error) or type(error).__name__, sent=True, since=since)
