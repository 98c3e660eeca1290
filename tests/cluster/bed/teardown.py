"""Removes what the node's processes leave in the kernel: containers, mounts, cgroups, files outside the state.

Works from what the kernel shows, not from what containerd remembers, so it also clears up after a crash.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import processes
from tests.cluster.bed.images import buildah_root
from tests.cluster.bed.shell import attempt, pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed.model import Bed

CGROUP_ROOT = Path("/sys/fs/cgroup")
POD_CGROUP = "kubepods"
# Components write here whatever they are told. Ours alone: `up` refuses a machine on which another kubelet runs.
STRAY = (
    "/run/containerd",
    "/run/flannel",
    "/run/xtables.lock",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)


def clear_node(bed: Bed) -> None:
    """End every container and shim, unmount, and remove cgroups. Kubelet and containerd must have stopped."""
    _end_containers(bed)
    for mount in sorted(mounts_below(bed.state, buildah_root(bed)), reverse=True):
        attempt(["umount", "--lazy", mount])
    for hierarchy in pod_cgroups():
        _remove_cgroup(hierarchy)


def remove_strays(before: set[str]) -> None:
    """Remove what appeared outside the state directory since `before`."""
    for name in strays() - before:
        path = Path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def strays() -> set[str]:
    """Which of the known places outside the state directory exist."""
    return {name for name in STRAY if Path(name).exists()}


def mounts_below(*directories: Path) -> list[str]:
    """Mount points at or below the directories, in the order of mounting."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # The kernel writes blanks in paths as octal.
        point = line.split()[4].encode().decode("unicode_escape")
        if any(Path(point).is_relative_to(directory) for directory in directories):
            found.append(point)
    return found


def pod_cgroups() -> list[Path]:
    """The kubelet's cgroup: one a hierarchy on cgroup v1, a single one on v2."""
    places = (CGROUP_ROOT, *(path for path in CGROUP_ROOT.iterdir() if path.is_dir()))
    return [place / POD_CGROUP for place in places if (place / POD_CGROUP).is_dir()]


def _end_containers(bed: Bed) -> None:
    # Shims first, or they would report each death to a containerd that is gone.
    shims = processes.with_word(str(bed.containerd_socket))
    shims = [shim for shim in shims if shim.pid != os.getpid()]
    processes.end_all(shims, signal.SIGKILL, 10.0)
    members = [process for cgroup in pod_cgroups() for process in _members(cgroup)]
    processes.end_all(members, signal.SIGKILL, 10.0)


def _members(cgroup: Path) -> Iterator[processes.Process]:
    for listing in cgroup.rglob("cgroup.procs"):
        for word in listing.read_text().split():
            yield processes.Process(int(word), processes.start_time(int(word)) or 0)


def _remove_cgroup(cgroup: Path) -> None:
    """Remove a tree of empty cgroups, innermost first; the kernel needs a moment after the last process."""
    inner = [path for path in cgroup.rglob("*") if path.is_dir()]
    for path in [*sorted(inner, reverse=True), cgroup]:
        for _ in range(50):
            try:
                path.rmdir()
            except OSError:
                pause(0.02)
            else:
                break
