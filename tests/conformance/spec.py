"""The OCI description of one container, as containerd writes it for a pod. Pure but for one file read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping

# Docker's default profile, which containerd's is made after; it comes with what buildah depends on.
SECCOMP = Path("/usr/share/containers/seccomp.json")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What containerd gives to root by default. Another user has none: pools with one drop them all.
_ROOT_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
        "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    )
]  # fmt: skip
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
    "/sys/devices/virtual/powercap", "/sys/firmware",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one container."""

    memory_bytes: int = 1 << 30
    # A fork bomb must end here and not on the machine; the daemon's own threads count, too.
    processes: int = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is to be."""

    uid: int
    cgroup: str
    read_only: bool = False
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = names.DAEMON_COMMAND
    limits: Limits = Limits()
    # cgroup v2: the container has a view of its own then, and needs a namespace for it.
    is_unified: bool = False
    # Place in the container -> size, as tmpfs takes it.
    volumes: Mapping[str, str] = field(default_factory=dict)
    # Place in the container -> directory or file here.
    binds: Mapping[str, Path] = field(default_factory=dict)
    read_only_binds: Mapping[str, Path] = field(default_factory=dict)


def describe(plan: Plan) -> dict[str, object]:
    """The `config.json` of the bundle. The network is the machine's: tests reach it on loopback."""
    capabilities = _ROOT_CAPABILITIES if plan.uid == 0 else []
    sets = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "rootfs", "readonly": plan.read_only},
        "process": {
            "user": {"uid": plan.uid, "gid": plan.uid},
            "args": list(plan.command),
            "env": [PATH, "HOSTNAME=sandbox", *(f"{k}={v}" for k, v in plan.env.items())],
            "cwd": plan.workdir,
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(sets, capabilities),
        },
        "mounts": _mounts(plan),
        "linux": {
            "cgroupsPath": plan.cgroup,
            "namespaces": [{"type": kind} for kind in _namespaces(plan)],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
            "resources": {
                "memory": {"limit": plan.limits.memory_bytes},
                "pids": {"limit": plan.limits.processes},
                "devices": [{"allow": False, "access": "rwm"}],
            },
            "seccomp": _seccomp(json.loads(SECCOMP.read_text()), set(capabilities)),
        },
    }


def _namespaces(plan: Plan) -> list[str]:
    return ["pid", "ipc", "uts", "mount", *(["cgroup"] if plan.is_unified else [])]


def _mounts(plan: Plan) -> list[dict[str, object]]:
    strict = ["nosuid", "noexec", "nodev"]
    pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]
    return [
        _mount("/proc", "proc", strict),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", pts),
        _mount("/dev/shm", "tmpfs", [*strict, "mode=1777", "size=65536k"], "shm"),
        _mount("/dev/mqueue", "mqueue", strict),
        _mount("/sys", "sysfs", [*strict, "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", [*strict, "relatime", "ro"]),
        *(_mount(to, "tmpfs", ["mode=1777", f"size={size}"]) for to, size in plan.volumes.items()),
        *(_mount(to, "bind", ["rbind", "rw"], here) for to, here in plan.binds.items()),
        *(_mount(to, "bind", ["rbind", "ro"], here) for to, here in plan.read_only_binds.items()),
    ]


def _mount(to: str, kind: str, options: list[str], source: object = None) -> dict[str, object]:
    return {"destination": to, "type": kind, "source": str(source or kind), "options": options}


def _seccomp(profile: dict[str, list[dict]], capabilities: set[str]) -> dict[str, object]:
    """The profile in the form that a runtime takes, for these capabilities on this processor."""
    rules = []
    for rule in profile["syscalls"]:
        wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
        fits = "amd64" in wanted.get("arches", ["amd64"]) and capabilities.issuperset(
            wanted.get("caps", ())
        )
        if fits and not (unwanted.get("caps") and capabilities.issuperset(unwanted["caps"])):
            parts = {"names": rule["names"], "action": rule["action"]}
            if rule.get("args"):
                parts["args"] = rule["args"]
            if rule.get("errnoRet") is not None:
                parts["errnoRet"] = rule["errnoRet"]
            rules.append(parts)
    first = next(a for a in profile["archMap"] if a["architecture"] == "SCMP_ARCH_X86_64")
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [first["architecture"], *first["subArchitectures"]],
        "syscalls": rules,
    }
