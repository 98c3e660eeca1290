"""Root file systems of the base images, each made by one function into an empty directory."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from tests.cluster.bed.model import BedError
from tests.cluster.bed.shell import run

DEBIAN_PACKAGES = ("ca-certificates", "git", "procps", "python3", "python3-venv", "tmux")
USER_ID = 1000

_PAUSE_SOURCE = Path(__file__).parent / "pause.c"
# What an image does not need: package caches, documents, translations.
_DEBIAN_WASTE = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


def make_debian(root: Path) -> None:
    """A minimal Debian of this machine's release with Python and git, from the mirror that apt uses here."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    packages = f"--include={','.join(DEBIAN_PACKAGES)}"
    run(
        ["debootstrap", "--variant=minbase", packages, suite, root, _mirror(suite)], env=_unsynced()
    )
    for name in _DEBIAN_WASTE:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir()
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / "etc/resolv.conf").write_text("")  # debootstrap copies the machine's own.
    (root / "etc/hostname").write_text("sandbox\n")


def make_busybox(root: Path) -> None:
    """One static program under all its names: a shell and tools, but no libc, no package, no Python."""
    binaries = root / "bin"
    binaries.mkdir()
    shutil.copy("/bin/busybox", binaries / "busybox")
    for name in run(["/bin/busybox", "--list"]).split():
        if name != "busybox":
            (binaries / name).symlink_to("busybox")
    make_users(root)


def make_agent_user(root: Path) -> None:
    """A layer over Debian: one user who is not root, with a home. Written out whole, for a layer cannot append."""
    (root / "etc").mkdir()
    user = f"agent:x:{USER_ID}:{USER_ID}:agent:/home/agent:/bin/bash\n"
    (root / "etc" / "passwd").write_text(_PASSWD.replace("/bin/sh", "/bin/bash") + user)
    (root / "etc" / "group").write_text(f"{_GROUP}agent:x:{USER_ID}:\n")
    home = root / "home" / "agent"
    home.mkdir(parents=True)
    os.chown(home, USER_ID, USER_ID)


def make_empty(root: Path) -> None:
    """Nothing at all: no shell, no /tmp, no /etc/passwd."""
    root.chmod(0o755)


def make_pause(root: Path) -> None:
    """The process that holds a pod's namespaces, as one static program."""
    run(["gcc", "-static", "-Os", "-s", "-o", root / "pause", _PAUSE_SOURCE])


def make_users(root: Path) -> None:
    """What every image has, however small: users, a home, a place for scratch."""
    for name in ("etc", "root", "tmp"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text(_PASSWD)
    (root / "etc" / "group").write_text(_GROUP)


def _mirror(suite: str) -> str:
    """The address that apt fetches this release from: no mirror is named in this repository."""
    lines = run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(CODENAME) $(COMPONENT)",
            "Created-By: Packages",
        ]
    )
    for line in lines.splitlines():
        address, codename, component = line.split()
        if (codename, component) == (suite, "main"):
            return address
    message = f"apt's configuration has no source for {suite} main, which debootstrap needs"
    raise BedError(message)


def _unsynced() -> dict[str, str]:
    """dpkg syncs each package to disk unless told not to; this root is thrown away after packing."""
    return dict(os.environ) | {
        "DPKG_FORCE": "unsafe-io",
        "LC_ALL": "C",
        "DEBIAN_FRONTEND": "noninteractive",
    }
