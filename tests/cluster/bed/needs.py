"""What the machine must have: found out here, judged here, and installed from Debian where that is possible."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.shell import attempt, run, say

# Program that shows a package is there -> package.
PACKAGES = {
    "/bin/busybox": "busybox-static",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "buildah": "buildah",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
    "gcc": "gcc",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "nfacct": "nfacct",
    "openssl": "openssl",
    "pkg-config": "pkgconf",
    "runc": "runc",
    "skopeo": "skopeo",
}
# Static linking of the pause program.
_LIBC = "libc6-dev"
# The build of runc.
_SECCOMP = "libseccomp-dev"
GO_VERSION = (1, 26)


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found; one field for each thing that may be lacking."""

    is_linux: bool
    is_root: bool
    has_apt: bool
    go: tuple[int, int] | None
    absent: tuple[str, ...]  # Packages that are not installed.
    kernel_lacks: tuple[str, ...]
    foreign_kubelet: bool


def missing() -> list[str]:
    """What this machine lacks to run the cluster, one sentence each; empty when `up` can work."""
    return complaints(look())


def complaints(machine: Machine) -> list[str]:
    """Judge a machine. Pure."""
    if not machine.is_linux:
        return ["The test cluster needs Linux."]
    found = []
    if not machine.is_root:
        found.append("Root is needed: containers, network namespaces and iptables are made.")
    if machine.go is None or machine.go < GO_VERSION:
        wanted = ".".join(map(str, GO_VERSION))
        found.append(f"Go {wanted} or newer is needed on PATH: Kubernetes is built from source.")
    if machine.absent and not machine.has_apt:
        packages = ", ".join(machine.absent)
        found.append(
            f"These programs are not installed and there is no apt-get to install them: {packages}."
        )
    found += [f"The kernel lacks {feature}." for feature in machine.kernel_lacks]
    if machine.foreign_kubelet:
        found.append(
            "Another kubelet runs on this machine: its pods and ours would share cgroups and iptables."
        )
    return found


def look() -> Machine:
    """Find out about this machine; changes nothing."""
    return Machine(
        is_linux=sys.platform == "linux",
        is_root=os.geteuid() == 0,
        has_apt=shutil.which("apt-get") is not None,
        go=parse_go(attempt(["go", "env", "GOVERSION"])),
        absent=tuple(absent_packages()),
        kernel_lacks=tuple(_kernel_lacks()),
        foreign_kubelet=_foreign_kubelet(),
    )


def parse_go(text: str) -> tuple[int, int] | None:
    """`go1.26.8` -> (1, 26)."""
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def absent_packages() -> list[str]:
    """Debian packages whose program is not there."""
    absent = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    # busybox-static and busybox share a path; only the static one runs in an image without libc.
    if "busybox-static" not in absent and not _is_static("/bin/busybox"):
        absent.append("busybox-static")
    if not any(Path("/usr").glob("lib*/**/libc.a")):
        absent.append(_LIBC)
    if not Path("/usr/include/seccomp.h").exists():
        absent.append(_SECCOMP)
    return sorted(absent)


def install() -> None:
    """Install what is absent; waits for another apt that may be running."""
    packages = absent_packages()
    if not packages:
        return
    say(f"installing {' '.join(packages)}")
    environment = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    run([*apt, "update"], env=environment)
    run([*apt, "install", "--yes", "--no-install-recommends", *packages], env=environment)


def _is_static(program: str) -> bool:
    # A dynamic program names its loader with the full path; a static one may still hold the bare name.
    return b"/ld-linux" not in Path(program).read_bytes()


def _kernel_lacks() -> list[str]:
    lacking = []
    if "overlay" not in Path("/proc/filesystems").read_text():
        lacking.append("overlayfs (CONFIG_OVERLAY_FS)")
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        lacking.append("bridge netfilter (CONFIG_BRIDGE_NETFILTER), which NetworkPolicy needs")
    if not Path("/sys/fs/cgroup").is_dir():
        lacking.append("cgroups")
    return lacking


def _foreign_kubelet() -> bool:
    """A kubelet with the default root keeps this file; ours keeps its own elsewhere."""
    return Path("/var/lib/kubelet/config.yaml").exists()
