"""Limits of cpu, memory and processes for sandboxes of local mode: cgroups, of either version, below a place where
this user may make some.

They hold against accidents: a loop that takes all memory, a fork bomb. They are no wall against hostile root.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.model import Amounts

CONTROLLERS = ("cpu", "memory", "pids")
PREFIX = "sandman-"
"""Of the group of each gateway."""
PERIOD_US = 100_000
"""In which cpu time is counted, microseconds: the kernel's own."""
LEAST_QUOTA_US = 1000
"""The kernel takes no less."""
PROCESSES_MAX = 4096
"""Processes and threads of one sandbox: what build tools of many cores start, and far below what a machine has."""
OWN, MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """Where groups may be made."""

    version: int
    places: Mapping[str, Path]
    """Directory by controller; of version 2 one for all."""


def find(own: str, mounts: str, may: Callable[[Path], str]) -> Tree | str:
    """Where this process may make groups with all that is limited, or why nowhere.

    Args:
        own: `/proc/self/cgroup`.
        mounts: `/proc/self/mountinfo`.
        may: why groups cannot be made in a directory, "" where they can.
    """
    groups = {row[1]: row[2] for line in own.splitlines() if len(row := line.split(":", 2)) == 3}
    unified, older = _mounted(mounts)
    if set(CONTROLLERS) <= older.keys():
        return _older(groups, older, may)
    if unified is None:
        return "no cgroups are mounted"
    return _unified(unified, groups.get("", "/"), may)


def _mounted(mounts: str) -> tuple[Path | None, dict[str, Path]]:
    """Where version 2 is, and of version 1 each controller."""
    unified: Path | None = None
    older: dict[str, Path] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split(" ")[4])
        if kind == "cgroup2":
            unified = place
        elif kind == "cgroup":
            older |= dict.fromkeys(set(options.split(",")) & set(CONTROLLERS), place)
    return unified, older


def _older(
    groups: Mapping[str, str], mounted: Mapping[str, Path], may: Callable[[Path], str]
) -> Tree | str:
    names = {one: path for hierarchy, path in groups.items() for one in hierarchy.split(",")}
    places = {}
    for one in CONTROLLERS:
        place = mounted[one] / names.get(one, "/").strip("/")
        # In a container what is mounted is often its own group already.
        places[one] = place if place.is_dir() else mounted[one]
        if why := may(places[one]):
            return why
    return Tree(1, places)


def _unified(mounted: Path, group: str, may: Callable[[Path], str]) -> Tree | str:
    """The nearest group above this process's own whose children have the controllers: its own holds processes, and
    then the kernel gives its children none."""
    place, why = (
        mounted / group.strip("/"),
        "no group above this process's has them for its children",
    )
    while True:
        with contextlib.suppress(OSError):
            given = (place / "cgroup.subtree_control").read_text().split()
            if set(CONTROLLERS) <= set(given):
                if not (why := may(place)):
                    return Tree(2, dict.fromkeys(CONTROLLERS, place))
                return why
        if place == mounted:
            return f"cgroups: {why}"
        place = place.parent


def may_make(place: Path) -> str:
    """Why this user can make no groups there; "" where he can."""
    if not os.access(place, os.W_OK) or not os.access(place / "cgroup.procs", os.W_OK):
        return "this user may make no cgroups"
    return ""


def writes(version: int, limits: Amounts) -> list[tuple[str, str, str]]:
    """Controller, file and text for each limit; what is None has none."""
    quota = None if limits.cpu is None else max(LEAST_QUOTA_US, limits.cpu * PERIOD_US // 1000)
    # Memory first: it is what the kernel may refuse, and then nothing is changed.
    if version == 1:
        memory = "-1" if limits.memory is None else str(limits.memory)
        return [
            ("memory", "memory.limit_in_bytes", memory),
            ("cpu", "cpu.cfs_period_us", str(PERIOD_US)),
            ("cpu", "cpu.cfs_quota_us", "-1" if quota is None else str(quota)),
            ("pids", "pids.max", str(PROCESSES_MAX)),
        ]
    return [
        ("memory", "memory.max", "max" if limits.memory is None else str(limits.memory)),
        ("cpu", "cpu.max", f"{'max' if quota is None else quota} {PERIOD_US}"),
        ("pids", "pids.max", str(PROCESSES_MAX)),
    ]


@contextlib.contextmanager
def opened(name: str) -> Iterator[Groups | str]:
    """Groups for a gateway's sandboxes, or why there are none; gone afterwards.

    Args:
        name: the gateway's, unlike any other's that runs.
    """
    tree = find(OWN.read_text(), MOUNTS.read_text(), may_make)
    if isinstance(tree, str):
        yield tree
        return
    groups = Groups(tree, name)
    groups.sweep()
    try:
        groups.open()
    except OSError as error:
        groups.close()
        yield f"cgroups: {error}"
        return
    try:
        yield groups
    finally:
        groups.close()


class Groups:
    """Those of one gateway's sandboxes.

    Args:
        tree: where.
        name: the gateway's, unlike any other's that runs.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._places = {one: place / f"{PREFIX}{name}" for one, place in tree.places.items()}

    def open(self) -> None:
        """Make the gateway's own.

        Raises:
            OSError: the kernel refused it.
        """
        for place in set(self._places.values()):
            place.mkdir(exist_ok=True)
        if self._tree.version != 1:
            enable = " ".join(f"+{one}" for one in CONTROLLERS)
            (self._places["cpu"] / "cgroup.subtree_control").write_text(enable)

    def make(self, name: str, limits: Amounts) -> Group:
        """A group for one sandbox.

        Raises:
            OSError: the kernel refused it, or a limit.
        """
        group = Group(
            self._tree.version, {one: place / name for one, place in self._places.items()}
        )
        for place in set(group.places.values()):
            place.mkdir()
        try:
            group.limit(limits)
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Take away what is left; what still holds processes stays."""
        for place in set(self._places.values()):
            _remove(place)

    def sweep(self) -> None:
        """Take away what gateways have left that were killed."""
        for place in set(self._tree.places.values()):
            for left in place.glob(f"{PREFIX}*"):
                if not _is_running(left.name.removeprefix(PREFIX)):
                    _remove(left)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One sandbox's."""

    version: int
    places: Mapping[str, Path]

    @property
    def procs(self) -> tuple[str, ...]:
        """Files that a process is to be written in, to belong to it."""
        return tuple(sorted({str(place / "cgroup.procs") for place in self.places.values()}))

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """Directories by the names that they have below /sys/fs/cgroup, for its daemon to read its counters."""
        if self.version == 1:
            return tuple((one, str(self.places[one])) for one in ("cpu", "memory"))
        return (("", str(self.places["memory"])),)

    def limit(self, limits: Amounts) -> None:
        """Set them.

        Raises:
            OSError: the kernel refused one; or it uses more memory than that, which the kernel of version 2 would
                answer by killing.
        """
        if limits.memory is not None and self._used() > limits.memory:
            raise OSError(f"it uses more memory than {limits.memory} bytes")
        for controller, file, text in writes(self.version, limits):
            (self.places[controller] / file).write_text(text)

    def _used(self) -> int:
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int((self.places["memory"] / name).read_text())

    def was_short(self) -> bool:
        """Whether the kernel has killed something in it for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        with contextlib.suppress(OSError):
            for line in (self.places["memory"] / name).read_text().splitlines():
                word, _, number = line.partition(" ")
                if word == "oom_kill":
                    return int(number) > 0
        return False

    def remove(self) -> bool:
        """Kill what is left in it, and take it away; whether it is gone: what was killed takes a moment to go."""
        gone = True
        for place in set(self.places.values()):
            _kill(place)
            gone &= _remove(place)
        return gone


def _is_running(name: str) -> bool:
    """Whether the process of a gateway is there, by its name: its pid, and more."""
    pid, dash, _ = name.partition("-")
    return bool(dash) and pid.isdigit() and Path("/proc", pid).exists()


def _kill(place: Path) -> None:
    with contextlib.suppress(OSError):
        for word in (place / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)


def _remove(place: Path) -> bool:
    """The group and those below it; whether it is gone."""
    with contextlib.suppress(OSError):
        for below in place.iterdir():
            if below.is_dir():
                _remove(below)
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
