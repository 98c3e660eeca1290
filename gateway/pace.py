"""How fast a queue is served, as measured: what those who wait are told. Pure."""

from __future__ import annotations

from collections import deque

SAMPLES = 64
"""Services that the pace is measured over: some two windows of claims in flight."""
GUESS_PER_S = 1.0
"""Served a second, as long as nothing was measured: a node makes a few pods a second."""
LEAST_S, MOST_S = 1.0, 60.0
"""Bounds of what is told: a caller that comes back once a minute misses little."""


class Pace:
    """The pace at which one queue is served while somebody waits in it."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=SAMPLES + 1)
        """When the queue last began to fill, or somebody was served; at most the last SAMPLES."""
        self._before = GUESS_PER_S

    def begin(self, now: float) -> None:
        """Somebody begins to wait where nobody did: idle time says nothing about the pace."""
        self._before = self.per_second(now)
        self._times.clear()
        self._times.append(now)

    def served(self, now: float) -> None:
        """One was served."""
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """Served a second; while nothing is it falls, since the time goes on."""
        served = len(self._times) - 1
        if served < 1:
            return self._before
        return served / max(now - self._times[0], 1e-3)

    def wait_s(self, place: int, now: float) -> float:
        """Seconds until the one at this place (first is 1) is likely to be served."""
        wait = place / self.per_second(now)
        if len(self._times) == 1:
            # Nothing was served since: it will hardly be sooner than it has taken so far.
            wait = max(wait, now - self._times[0])
        return min(max(wait, LEAST_S), MOST_S)
