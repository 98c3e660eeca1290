"""A daemon that may be asked for anything: PID 1 of a root directory of its own, the rest read-only.

It runs as root and is asked to remove `/`, among other things. So it sees this machine's programs
and libraries mounted read-only, a few devices, and directories in memory; and it may have so many
processes and no more, for sooner or later a shell is told to start itself again and again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.daemon import harness

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETUP = r"""
set -eu
root=$1 repository=$2 python=$3
shift 3
mount -t tmpfs -o mode=755,size=256m fuzz "$root"
mkdir "$root/usr" "$root/proc" "$root/dev" "$root/tmp" "$root/work" "$root/etc"
mount --bind /usr "$root/usr"
mount -o remount,ro,bind "$root/usr"
for name in bin sbin lib lib64; do
    if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"; fi
done
for place in "$repository" "$python"; do
    mkdir -p "$root$place"
    mount --bind "$place" "$root$place"
    mount -o remount,ro,bind "$root$place"
done
mount -t proc -o ro proc "$root/proc"
mount -t tmpfs -o mode=755,size=1m fuzz "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -o remount,ro "$root/dev"
mkfifo "$root/work/fifo"
echo 'root:x:0:0::/root:/bin/sh
ann:x:1000:1000::/home/ann:/bin/sh' >"$root/etc/passwd"
chmod 1777 "$root/tmp" "$root/work"
cd "$repository"
exec env -i "PATH=$PATH" "PYTHONPATH=$PYTHONPATH" "SANDMAN_PORT=$SANDMAN_PORT" \
    "SANDMAN_TOKEN_SHA256=$SANDMAN_TOKEN_SHA256" chroot "$root" sh -c 'cd /work; exec "$@"' sh "$@"
"""
_PROCESSES_MAX = 512
_CGROUPS = Path("/sys/fs/cgroup")
_ENTER = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
_OWN_NAMESPACES = ("unshare", "--pid", "--fork", "--mount", "--kill-child")


@contextmanager
def caged(runtime: Path | None = None) -> Iterator[harness.Daemon]:
    """A daemon on this checkout's sources, to be asked for anything. Needs root.

    Args:
        runtime: directory of the Python that goes into pods (`interpreter.build`); None: this program's own.
    """
    # The interpreter itself, since the virtual environment's link may lead out of what is mounted.
    python, home = os.path.realpath(sys.executable), sys.base_prefix
    program: tuple[str, ...] = (python, "-m", "daemon", "serve")
    if runtime is not None:
        program, home = harness.serve_by(runtime / "bin" / "python3"), str(runtime)
    with tempfile.TemporaryDirectory(prefix="fuzz-root-") as root:
        places = (root, str(harness.ROOT), home)
        with _few_processes() as entered:
            prefix = (*entered, *_OWN_NAMESPACES, "sh", "-c", _SETUP, "sh", *places)
            running = harness.start(*prefix, program=program)
            try:
                line = Path(f"/proc/{running.pid}/cmdline").read_bytes()
                assert b"daemon" in line.split(b"\0"), f"not the daemon is watched: {line!r}"
                yield running
            finally:
                running.stop()


@contextmanager
def _few_processes() -> Iterator[tuple[str, ...]]:
    """A command that runs another in a cgroup of its own; version 1 or 2. Root has no other limit of processes."""
    parent = _CGROUPS / "pids"
    if (_CGROUPS / "cgroup.subtree_control").exists():
        parent = _CGROUPS
        (parent / "cgroup.subtree_control").write_text("+pids")
    group = parent / f"sandman-fuzz-{os.getpid()}"
    group.mkdir()
    try:
        (group / "pids.max").write_text(str(_PROCESSES_MAX))
        yield ("sh", "-c", _ENTER, str(group))
    finally:
        assert harness.wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
