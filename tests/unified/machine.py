"""A virtual machine without KVM, network or disk: a Debian kernel, and a root directory of ours in its memory."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import re
import shutil
import stat
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.unified import inside

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path.home() / ".cache" / "sandman" / "unified"
EMULATOR = "qemu-system-x86"
KERNEL = "linux-image-cloud-amd64"
LIBRARIES = "usr/lib/x86_64-linux-gnu:lib/x86_64-linux-gnu"
SECONDS = 240.0
"""For all that runs in it: some 20 on an idle machine."""
MEMORY_MB = 512
INIT = f"""#!/bin/busybox sh
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts
mount -t devpts none /dev/pts
mount -t cgroup2 none {inside.GROUPS}
ifconfig lo up 127.0.0.1
{inside.PYTHON} -I -S /inside.py {hashlib.sha256(inside.TOKEN.encode()).hexdigest()}
poweroff -f
"""
APPLETS = ("ifconfig", "mkdir", "mount", "poweroff", "sh", "true", "umount")


class Tools(NamedTuple):
    """Where kernel and emulator are."""

    home: Path
    kernel: Path


def missing() -> str:
    """What this machine lacks; empty: nothing."""
    if os.uname().machine != "x86_64":
        return "The kernel is one for x86-64."
    absent = [name for name in ("apt-get", "dpkg", "/bin/busybox") if shutil.which(name) is None]
    return f"These are needed: {', '.join(absent)}." if absent else ""


def tools() -> Tools:
    """Debian's packages, unpacked in the cache: nothing is installed on this machine."""
    home = CACHE / "tools"
    with one_at_a_time():
        if not home.exists():
            part = home.with_name("part")
            shutil.rmtree(part, ignore_errors=True)
            (part / "packages").mkdir(parents=True)
            _fetch(part / "packages")
            for package in sorted((part / "packages").iterdir()):
                subprocess.run(["dpkg", "-x", package, part], check=True)
            shutil.rmtree(part / "packages")
            part.rename(home)
    return Tools(home, next((home / "boot").glob("vmlinuz-*")))


def _fetch(to: Path) -> None:
    """What the emulator needs and is not on this machine, and the kernel without what it would install."""
    wanted = ["apt-get", "install", "--simulate", "--no-install-recommends", EMULATOR]
    packages = re.findall(r"^Inst (\S+)", _said(wanted), re.MULTILINE)
    kernel = re.search(r"Depends: (linux-image-\S+)", _said(["apt-cache", "depends", KERNEL]))
    assert kernel is not None, f"apt knows no {KERNEL}"
    names = {*packages, EMULATOR, kernel[1]}
    # As root apt would look for a user who may write here.
    options = ["-o", "APT::Sandbox::User=root"]
    subprocess.run(["apt-get", *options, "download", "--quiet", *sorted(names)], cwd=to, check=True)


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Sessions that run side by side fetch nothing twice."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def root(runtime: Path, scratch: Path) -> Path:
    """The machine's root directory, packed as kernels take it."""
    home = scratch / "root"
    for name in ("bin", "proc", "sys", "tmp"):
        (home / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", home / "bin" / "busybox")
    for name in APPLETS:
        (home / "bin" / name).symlink_to("busybox")
    shutil.copytree(runtime, home / inside.HOME.strip("/"), symlinks=True)
    shutil.copy(inside.__file__, home / "inside.py")
    (home / "init").write_text(INIT)
    (home / "init").chmod(0o755)
    packed = scratch / "root.cpio.gz"
    with gzip.open(packed, "wb", 1) as file:
        file.write(_cpio(home))
    return packed


def _cpio(home: Path) -> bytes:
    """All of the directory in the format `newc`, with the devices that must be there before `init` runs."""
    entries = [("dev", 0o40755, b""), ("dev/console", stat.S_IFCHR | 0o600, b"")]
    for path in sorted(home.rglob("*")):
        mode = path.lstat().st_mode
        content = b""
        if stat.S_ISLNK(mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        entries.append((str(path.relative_to(home)), mode, content))
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    device = (5, 1) if stat.S_ISCHR(mode) else (0, 0)
    text = name.encode() + b"\0"
    numbers = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(text), 0)
    head = b"070701" + b"".join(b"%08X" % one for one in numbers) + text
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def boot(found: Tools, packed: Path) -> str:
    """All that the machine said until it went off."""
    command = [
        found.home / "usr/bin/qemu-system-x86_64", "-L", found.home / "usr/share/qemu",
        "-L", found.home / "usr/share/seabios", "-accel", "tcg", "-m", str(MEMORY_MB), "-nographic",
        "-no-reboot", "-net", "none", "-kernel", found.kernel, "-initrd", packed,
        "-append", "console=ttyS0 loglevel=0 panic=1 psi=1",
    ]  # fmt: skip
    libraries = ":".join(str(found.home / part) for part in LIBRARIES.split(":"))
    return subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        timeout=SECONDS,
    ).stdout.decode("utf-8", "replace")
