"""The root file system of a sandbox in local mode, built in a mount namespace of its own.

An image is a directory, and below an overlay or copied: each sandbox writes for itself. The machine's own root is
bound read-only, with empty directories where people keep what is theirs.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH108, PTH110, PTH112, PTH114, PTH115, PTH118, PTH211
# As all of the daemon: pathlib costs it 5 ms.

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from daemon.local import syscalls
from sandman.records import NamedTuple

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}
EMPTIED = ("/home", "/root", "/tmp", "/var/tmp", "/run", "/mnt", "/media", "/srv")  # nosec B108  # noqa: S108 - hidden, not used
"""Of the machine's own root: where people and programs keep what is no sandbox's business."""
PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger", "acpi", "scsi")
"""Below /proc: what tells the kernel something, for the machine's root also without his capabilities."""
PROC_HIDDEN = ("kcore", "keys", "timer_list", "sched_debug", "latency_stats")
SHM_SIZE = "64m"
"""As container runtimes have it."""


class Root(NamedTuple):
    """What to build.

    `image`: its directory, which nothing is written to; "": the machine's own root. `upper`, `work`: of the overlay
    on it; "": it is copied. `target`: an empty directory. `kept`: of the machine's own root, shown although it lies
    where all else is hidden. `files`: texts of files in /etc. `groups`: directories of its cgroups by the names that they
    get below /sys/fs/cgroup, where the daemon reads its counters.
    """

    target: str
    image: str = ""
    upper: str = ""
    work: str = ""
    kept: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, str], ...] = ()


def enter(root: Root) -> None:
    """Build it and make it the root of this process; nothing else of the machine's file systems is left.

    Raises:
        OSError: the kernel refused a step.
    """
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    if root.image:
        _build(root)
    else:
        _show_own(root)
    _mount_proc(root.target)
    _mount_devices(root.target)
    _change(root.target)


def _build(root: Root) -> None:
    if root.upper:
        mount_overlay(root.target, root.image, root.upper, root.work)
    else:
        copy_tree(root.image, root.target)
        syscalls.mount(root.target, root.target, flags=syscalls.MS_BIND)
        _remount(root.target, syscalls.MS_NODEV)
    for name in ("proc", "dev", "sys", "tmp", "etc"):
        _directory(root.target, name, 0o1777 if name == "tmp" else 0o755)
    for name, text in root.files:
        _write(os.path.join(root.target, "etc", name), text)
    _mount_sys(os.path.join(root.target, "sys"), root.groups)


def _mount_sys(place: str, groups: tuple[tuple[str, str], ...]) -> None:
    """Nothing but its own cgroups, to be read."""
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", place, "tmpfs", safe)
    for name, group in groups:
        below = os.path.join(place, "fs/cgroup", name)
        os.makedirs(below)
        syscalls.mount(group, below, flags=syscalls.MS_BIND)
        _remount(below, syscalls.MS_RDONLY | safe)
    syscalls.mount("none", place, flags=syscalls.MS_REMOUNT | syscalls.MS_RDONLY | safe)


def mount_overlay(target: str, image: str, upper: str, work: str) -> None:
    """A directory, and over it another one that takes what is written.

    Raises:
        OSError: it was refused; Linux before 5.11 does so where this process is not the machine's root.
    """
    options = (
        f"userxattr,lowerdir={_escaped(image)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    )
    syscalls.mount("overlay", target, "overlay", syscalls.MS_NODEV, options)


def copy_tree(source: str, target: str) -> None:
    """All of a tree but devices, sockets and pipes, with modes, owners and times.

    Raises:
        OSError: something could not be copied.
    """
    for entry in os.scandir(source):
        place = os.path.join(target, entry.name)
        info = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(place, 0o700)
            copy_tree(entry.path, place)
        elif entry.is_file(follow_symlinks=False):
            shutil.copyfile(entry.path, place, follow_symlinks=False)
        else:
            continue
        if os.geteuid() == 0:
            _give(place, info)
        if not entry.is_symlink():
            os.chmod(place, stat.S_IMODE(info.st_mode))
        os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def _give(place: str, info: os.stat_result) -> None:
    """Where there are no other users it stays what it is."""
    with contextlib.suppress(OSError):
        os.chown(place, info.st_uid, info.st_gid, follow_symlinks=False)


def _show_own(root: Root) -> None:
    syscalls.mount("/", root.target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.make_read_only(root.target)
    held = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in root.kept]
    for path in EMPTIED:
        place = root.target + path
        if os.path.isdir(place) and not os.path.islink(place):
            mode = "1777" if path.endswith("tmp") else "755"
            syscalls.mount(
                "tmpfs", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"mode={mode}"
            )
    for path, fd in held:
        place = root.target + path
        if not os.path.isdir(place):
            os.makedirs(place)
            syscalls.mount(f"/proc/self/fd/{fd}", place, flags=syscalls.MS_BIND | syscalls.MS_REC)
            syscalls.make_read_only(place)
        os.close(fd)


def _mount_proc(target: str) -> None:
    place = os.path.join(target, "proc")
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", place, "proc", safe)
    for name in PROC_READ_ONLY:
        path = os.path.join(place, name)
        if os.path.exists(path):
            syscalls.mount(path, path, flags=syscalls.MS_BIND | syscalls.MS_REC)
            _remount(path, syscalls.MS_RDONLY | safe)
    for name in PROC_HIDDEN:
        path = os.path.join(place, name)
        if os.path.exists(path):
            syscalls.mount("/dev/null", path, flags=syscalls.MS_BIND)


def _mount_devices(target: str) -> None:
    place = os.path.join(target, "dev")
    held = [
        (name, os.open(f"/dev/{name}", os.O_PATH))
        for name in DEVICES
        if os.path.exists(f"/dev/{name}")
    ]
    syscalls.mount("tmpfs", place, "tmpfs", syscalls.MS_NOSUID, "mode=755,size=64k")
    for name, fd in held:
        path = os.path.join(place, name)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        syscalls.mount(f"/proc/self/fd/{fd}", path, flags=syscalls.MS_BIND)
        os.close(fd)
    for name, link in LINKS.items():
        os.symlink(link, os.path.join(place, name))
    safe = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    for name, kind, flags, options in (
        ("pts", "devpts", safe, "newinstance,ptmxmode=0666,mode=0620"),
        ("shm", "tmpfs", safe | syscalls.MS_NODEV, f"mode=1777,size={SHM_SIZE}"),
    ):
        os.mkdir(os.path.join(place, name), 0o755)
        syscalls.mount(kind, os.path.join(place, name), kind, flags, options)


def _change(target: str) -> None:
    """Make it the root. The old one lies over it for a moment, so that a root which cannot be written needs no
    place for it."""
    old = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(target)
    syscalls.pivot_root(".", ".")
    os.fchdir(old)
    syscalls.detach(".")
    os.chdir("/")
    os.close(old)


def _remount(path: str, flags: int) -> None:
    syscalls.mount("none", path, flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | flags)


def _directory(target: str, name: str, mode: int) -> None:
    """Be sure that there is such a directory, and no link in its place, which could lead anywhere."""
    path = os.path.join(target, name)
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)
    if not os.path.isdir(path):
        os.mkdir(path)
        os.chmod(path, mode)


def _write(path: str, text: str) -> None:
    """In place of what is there: an image may hold a link or a device of that name."""
    if os.path.lexists(path):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def _escaped(path: str) -> str:
    """A path as a part of an overlay's options."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
