"""Counters of the sandbox's cgroup: kills for want of memory, throttled time.

Read from descriptors opened once: what a command later mounts over /sys does not change them.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

STATUS = "/proc/self/status"
_V2 = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/cpu.stat")
_V1 = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/cpu/cpu.stat")


class Counters(NamedTuple):
    """What the counters said at one moment; None: not readable here."""

    oom_kills: int | None
    throttled_s: float | None


class Meter:
    """Reads the counters of one sandbox; opens them at first use, after listening."""

    def __init__(self, v2: tuple[str, str] = _V2, v1: tuple[str, str] = _V1) -> None:
        self._paths = (v2, v1)
        self._files: tuple[int | None, int | None] | None = None
        self._own_peak_kib = 0

    def read(self) -> Counters:
        """The counters now."""
        if self._files is None:
            self._files = self._open()
        memory, cpu = (_fields(file) for file in self._files)
        throttled = None
        if "throttled_usec" in cpu:
            throttled = cpu["throttled_usec"] / 1e6
        elif "throttled_time" in cpu:
            throttled = cpu["throttled_time"] / 1e9
        return Counters(memory.get("oom_kill"), throttled)

    def is_over_own_peak(self, kib: int) -> bool:
        """Whether a child's peak is more than what it had of this daemon before it was a program."""
        if kib > self._own_peak_kib:
            self._own_peak_kib = _own_peak_kib()
        return kib > self._own_peak_kib

    def _open(self) -> tuple[int | None, int | None]:
        v2, v1 = self._paths
        memory, cpu = (_first((a, b)) for a, b in zip(v2, v1, strict=True))
        return memory, cpu


def _first(paths: tuple[str, str]) -> int | None:
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            continue
    return None


def _fields(file: int | None) -> dict[str, int]:
    if file is None:
        return {}
    try:
        words = os.pread(file, 4096, 0).split()
    except OSError:
        return {}
    pairs = zip(words[::2], words[1::2], strict=False)
    return {key.decode("latin-1"): int(value) for key, value in pairs if value.isdigit()}


def _own_peak_kib() -> int:
    try:
        with open(STATUS, "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
