"""How many free placeholders a pool should have. Pure.

    as many as are asked for just now ── the queue, the reservations, the claims of the next seconds
    never under `min`, never so many that all pods of the pool are over `max`
    up at once, in waves; down only to the most of the last minutes

Claimed pods have left their ReplicaSet: whatever is said here, no sandbox in use goes for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

WAVE = 1000
"""Placeholders of one pool that are on their way up at once: more only queue at the scheduler and at the
nodes' kubelets."""
AHEAD_S = 10.0
"""Seconds of claims for which there is a placeholder: its start takes about as long on a node that is busy."""
HOLD_DOWN_S = 180.0
"""Seconds for which what was wanted once stays wanted: a training step comes again within minutes, and to let
placeholders go and make them again costs more than to keep them."""
SMOOTH_S = 10.0
"""Seconds over which the rate of claims is averaged."""
IDLE_RATE = 0.02
"""Claims a second below which there are none: one in a minute, which `min` is for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of one pool just now, and what it has."""

    free: int
    """Placeholders that run."""
    in_use: int
    """Pods that are leased or reserved."""
    waiting: int
    """Requests in the queue."""
    forecast: int
    """Placeholders that reservations will ask for yet."""
    rate: float
    """Claims a second, lately."""


def wanted(demand: Demand, least: int) -> int:
    """Free placeholders for what is asked for, whatever the pool's maximum."""
    rate = demand.rate if demand.rate > IDLE_RATE else 0.0
    return max(least, demand.waiting + demand.forecast + math.ceil(rate * AHEAD_S))


def target(demand: Demand, most_wanted: int, current: int, most: int) -> int:
    """The `replicas` to write.

    Args:
        demand: as it is now.
        most_wanted: the most that was wanted within HOLD_DOWN_S.
        current: the `replicas` of now.
        most: pods of the pool at once, free and in use.
    """
    # At the maximum each claim takes one away for good: a refill would be a pod too many.
    within = min(most_wanted, max(0, most - demand.in_use))
    if within <= current:
        return within
    return max(current, min(within, demand.free + WAVE))


class Window:
    """The most that was wanted within HOLD_DOWN_S; what was there at the first look counts as wanted."""

    def __init__(self, now: float, current: int) -> None:
        # Falling values, each with when it was wanted last.
        self._peaks: deque[tuple[float, int]] = deque([(now, current)])

    def add(self, now: float, value: int) -> int:
        """Take one in; the most of all."""
        while self._peaks and self._peaks[-1][1] <= value:
            self._peaks.pop()
        self._peaks.append((now, value))
        while now - self._peaks[0][0] > HOLD_DOWN_S:
            self._peaks.popleft()
        return self._peaks[0][1]


class Rate:
    """Claims a second, averaged over SMOOTH_S."""

    def __init__(self, now: float) -> None:
        self._at = now
        self.value = 0.0

    def add(self, now: float, count: int) -> float:
        """So many since the last time; the rate."""
        passed = now - self._at
        if passed > 0:
            share = 1.0 - math.exp(-passed / SMOOTH_S)
            self.value += share * (count / passed - self.value)
            self._at = now
        return self.value
