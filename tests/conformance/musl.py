"""A root file system as Alpine's: every program is busybox, dynamically linked to musl; no glibc, no bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from daemon.runtime import cpython, shell, sources
from tests.cluster.bed import roots

RECIPE = "busybox on musl 1"

_LOADER = Path("/lib/ld-musl-x86_64.so.1")
# Its rules are those of a kernel from before 2024 and no longer compile with newer headers.
_LEFT_OUT = ("TC",)


def make(root: Path) -> None:
    """Build busybox of Debian's source against the musl of Debian, and lay both out."""
    cpython.install_compiler()
    roots.make_users(root)
    with tempfile.TemporaryDirectory(prefix="sandman-musl-") as scratch:
        binary, links = _build(Path(scratch))
        _place(root, "/bin/busybox", binary)
        for link in links:
            path = root / link.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.symlink_to("/bin/busybox")
    _place(root, str(_LOADER), _LOADER.resolve())
    _require_dynamic(root / "bin/busybox")


def _build(scratch: Path) -> tuple[Path, list[str]]:
    """The binary, and where its applets belong."""
    shop = cpython.open_workshop(scratch / "shop")
    (shop.root / "kernel-headers" / "mtd").symlink_to("/usr/include/mtd")
    apt = sources.PrivateApt(scratch / "apt", sources.machine_mirrors(), shop.log)
    apt.update()
    source = sources.fetch(apt, "busybox", scratch / "source", shop.log).directory
    shop.run(["make", "defconfig"], source)
    config = source / ".config"
    lines = config.read_text()
    for name in _LEFT_OUT:
        lines = lines.replace(f"CONFIG_{name}=y", f"# CONFIG_{name} is not set")
    config.write_text(lines)
    shop.run(
        ["make", f"-j{os.cpu_count()}", f"CC={shop.compiler}", "busybox", "busybox.links"], source
    )
    return source / "busybox", (source / "busybox.links").read_text().split()


def _place(root: Path, path: str, file: Path) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)
    target.chmod(0o755)


def _require_dynamic(binary: Path) -> None:
    """A static program would run without a libc and show nothing."""
    headers = shell.read(["readelf", "--program-headers", "--wide", binary])
    assert str(_LOADER) in headers, headers
    subprocess.run([_LOADER, binary, "true"], check=True)
