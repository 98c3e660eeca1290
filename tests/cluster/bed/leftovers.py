"""Proves that `down` left nothing: compares what the machine shows before `up` and after `down`.

Reads only. What other programs change meanwhile in the same places would be reported too, except where noted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import network, teardown
from tests.cluster.bed.shell import attempt

if TYPE_CHECKING:
    from tests.cluster.bed.model import Bed

_PERSONAL = ("bash", "kubectl", "python", "python3", "sh")

Snapshot = dict[str, list[str]]


def take(bed: Bed) -> Snapshot:
    """What the machine shows now, by kind."""
    links = json.loads(attempt(["ip", "-json", "address"]) or "[]")
    addresses = [
        f"{link['ifname']} {info['local']}" for link in links for info in link["addr_info"]
    ]
    return {
        "processes": _processes(bed),
        "mounts": [mount for mount in teardown.mounts_below(Path("/")) if not _is_foreign(mount)],
        "network namespaces": attempt(["ip", "netns", "list"]).splitlines(),
        "links": [link["ifname"] for link in links],
        "addresses": addresses,
        "routes": attempt(["ip", "route", "show", "table", "all"]).splitlines(),
        "rules": attempt(["ip", "rule", "list"]).splitlines(),
        "iptables": _rules("iptables-save") + _rules("ip6tables-save"),
        "ipsets": attempt(["ipset", "list", "-name"]).split(),
        "counters": [line.split()[-1] for line in attempt(["nfacct", "list"]).splitlines()],
        "cgroups": _cgroups(),
        "sysctls": [f"{name} = {value}" for name, value in network.read_sysctls().items()],
        "files": sorted(teardown.strays()) + ([str(bed.state)] if bed.state.exists() else []),
    }


def difference(before: Snapshot, after: Snapshot) -> list[str]:
    """What is there now and was not before, one line each; a changed setting counts as new. Pure."""
    found = []
    for kind, lines in after.items():
        known = set(before.get(kind, []))
        found += [f"{kind}: {line}" for line in lines if line not in known]
    return found


def record(bed: Bed) -> Snapshot:
    """Take a snapshot and keep it for later."""
    snapshot = take(bed)
    bed.snapshot.parent.mkdir(parents=True, exist_ok=True)
    bed.snapshot.write_text(json.dumps(snapshot, indent=1))
    return snapshot


def recorded(bed: Bed) -> Snapshot | None:
    """The snapshot of the last `up`."""
    return json.loads(bed.snapshot.read_text()) if bed.snapshot.exists() else None


def _is_foreign(mount: str) -> bool:
    """The default store of podman and buildah: the cluster has its own, and others build meanwhile."""
    return Path(mount).is_relative_to("/var/lib/containers")


def _processes(bed: Bed) -> list[str]:
    """Programs that were started with a path in our cache or state, whoever started them."""
    marks = (str(bed.bin).encode(), str(bed.state).encode())
    found = []
    for directory in Path("/proc").iterdir():
        command = _read(directory / "cmdline") if directory.name.isdigit() else b""
        # A person's shell or kubectl may name the cluster too: those are not the cluster's to end.
        program = Path(command.split(b"\0")[0].decode(errors="replace")).name
        if any(mark in command for mark in marks) and program not in _PERSONAL:
            found.append(
                f"{directory.name} {command.replace(bytes(1), b' ').decode(errors='replace')}"
            )
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _rules(tool: str) -> list[str]:
    """Rules and chains of users; built-in chains appear by themselves as soon as anybody looks."""
    lines = attempt([tool]).splitlines()
    chains = [line.split()[0] for line in lines if line.startswith(":") and line.split()[1] == "-"]
    return chains + [line for line in lines if line.startswith("-A")]


def _cgroups() -> list[str]:
    """Only the upper level of each hierarchy: below it others come and go."""
    root = teardown.CGROUP_ROOT
    upper = [path for path in root.iterdir() if path.is_dir()]
    inner = [path for place in upper for path in place.iterdir() if path.is_dir()]
    return sorted(map(str, upper + inner))
