"""Seconds that something took, less those in which the machine had no processor for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
MOST_S = 3.0
"""Of waiting that is taken off. What a test is to find takes longer than its bar by more: the five seconds
of a grace, the minute of a `sleep`."""


def waited() -> float:
    """Seconds so far in which some process of this machine was ready and had to wait.

    The kernel averages over processors; whoever is measured may have been on the one that was busy.
    """
    try:
        some = PRESSURE.read_text().splitlines()[0]
    except (OSError, IndexError):  # a kernel without it
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6 * (os.cpu_count() or 1)


class Stopwatch:
    """Runs from when it is made. On a machine with nothing else to do it shows plain seconds."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._waited = waited()

    def all_seconds(self) -> float:
        """By the clock on the wall."""
        return time.monotonic() - self._begun

    def seconds(self) -> float:
        """What was not waiting for a processor."""
        return self.all_seconds() - min(waited() - self._waited, MOST_S)
