"""Counters of the sandbox's cgroup: kills for want of memory, throttled time, stalls.

Read from descriptors opened once: what a command later mounts over /sys does not change them.
"""

from __future__ import annotations

import os
import resource

from sandman.records import NamedTuple

STATUS = "/proc/self/status"
OWN = "/proc/self/cgroup"
MOUNT = "/sys/fs/cgroup"
_MEMORY = (("", "memory.events"), ("memory", "memory.oom_control"))
_CPU = (("", "cpu.stat"), ("cpu", "cpu.stat"), ("cpu,cpuacct", "cpu.stat"))
"""Hierarchy and file: of version 2, whose name is empty, then of version 1."""
_PEAK = (("", "memory.peak"), ("memory", "memory.max_usage_in_bytes"))
PRESSURES = ("cpu", "memory", "io")
"""As `sandman.evidence` has them, which few sandboxes need."""
_NO_STALLS: tuple[float | None, ...] = (None, None, None)


class Counters(NamedTuple):
    """What the counters said at one moment; None: not readable here."""

    oom_kills: int | None
    throttled_s: float | None
    stalled_s: tuple[float | None, ...] = _NO_STALLS
    """In which all of the sandbox waited, for each of PRESSURES. Version 2 alone has it, where the kernel counts it."""


class Orphans:
    """What the processes of a command used that lost their parents, came to the daemon and ended.

    Added up in the reaper's thread alone.
    """

    __slots__ = ("cpu_s", "peak_kib")

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.peak_kib = 0

    def add(self, usage: resource.struct_rusage) -> None:
        """One more has ended."""
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)


class Meter:
    """Reads the counters of one sandbox; opens them at first use, after listening."""

    def __init__(self, mount: str = MOUNT, own: str = OWN) -> None:
        self._mount = mount
        self._own = own
        self._files: tuple[int | None, int | None, int | None] | None = None
        self._pressures: tuple[int | None, ...] = ()
        self._own_peak_kib = 0

    def read(self) -> Counters:
        """The counters now."""
        memory, cpu, _ = (_fields(file) for file in self._opened())
        stalled = tuple(_full_s(file) for file in self._pressures)
        return Counters(memory.get("oom_kill"), _throttled_s(cpu), stalled)

    def whole(self) -> dict[str, object]:
        """All that the cgroup tells, for a certificate; None where it tells nothing."""
        memory, cpu, _ = (_fields(file) for file in self._opened())
        kinds = {"throttled_usec": 2, "throttled_time": 1}
        peak = _number(self._opened()[2])
        return {
            "cgroup": next((kind for name, kind in kinds.items() if name in cpu), None),
            "cpu": {
                "periods": cpu.get("nr_periods"),
                "throttled_periods": cpu.get("nr_throttled"),
                "throttled_s": _throttled_s(cpu),
            },
            "memory": {"peak_bytes": peak, "oom_kills": memory.get("oom_kill")},
            "stalled_s": dict(zip(PRESSURES, self.read().stalled_s, strict=True)),
        }

    def _opened(self) -> tuple[int | None, int | None, int | None]:
        if self._files is None:
            groups = _groups(self._own)
            names = [(("", f"{one}.pressure"),) for one in PRESSURES]
            self._pressures = tuple(self._first(one, groups) for one in names)
            memory, cpu = self._first(_MEMORY, groups), self._first(_CPU, groups)
            self._files = memory, cpu, self._first(_PEAK, groups)
        return self._files

    def is_over_own_peak(self, kib: int) -> bool:
        """Whether a child's peak is more than what it had of this daemon before it was a program."""
        if kib > self._own_peak_kib:
            self._own_peak_kib = _own_peak_kib()
        return kib > self._own_peak_kib

    def _first(self, places: tuple[tuple[str, str], ...], groups: dict[str, str]) -> int | None:
        """The first of these files that is there.

        In a container what is mounted is its own group, also where the kernel still tells the group's
        place on the node; elsewhere the whole tree is, and that place is the one.
        """
        for hierarchy, name in places:
            for group in (groups.get(hierarchy, ""), ""):
                try:
                    return os.open(f"{self._mount}/{hierarchy}{group}/{name}", os.O_RDONLY)
                except OSError:
                    continue
        return None


def _groups(own: str) -> dict[str, str]:
    """The place of this process in each hierarchy."""
    try:
        file = os.open(own, os.O_RDONLY)
    except OSError:
        return {}
    try:
        lines = os.read(file, 65536).decode("utf-8", "surrogateescape").splitlines()
    finally:
        os.close(file)
    rows = (line.split(":", 2) for line in lines)
    return {row[1]: row[2] for row in rows if len(row) == 3 and ".." not in row[2]}


def _text(file: int | None) -> bytes:
    """What the file says; nothing where there is none."""
    try:
        return b"" if file is None else os.pread(file, 4096, 0)
    except OSError:
        return b""


def _number(file: int | None) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _throttled_s(cpu: dict[str, int]) -> float | None:
    if "throttled_usec" in cpu:
        return cpu["throttled_usec"] / 1e6
    return cpu["throttled_time"] / 1e9 if "throttled_time" in cpu else None


def _full_s(file: int | None) -> float | None:
    """Seconds of the line `full` of a file of pressure; kernels before 5.13 have none for cpu."""
    for line in _text(file).splitlines():
        _, is_there, total = line.partition(b" total=")
        if line.startswith(b"full ") and is_there and total.isdigit():
            return int(total) / 1e6
    return None


def _fields(file: int | None) -> dict[str, int]:
    words = _text(file).split()
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
