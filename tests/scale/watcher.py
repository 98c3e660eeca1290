"""What the bed's own programs cost: memory, processor, writes to the API server, pods that are left."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import names
from tests.cluster.audit import AuditLog
from tests.cluster.bed.kube import kubectl
from tests.cluster.bed.shell import wait_until
from tests.scale import model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.bed.model import Bed

_TICKS = os.sysconf("SC_CLK_TCK")
_GATEWAY = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"


def memory_mb(pid: int) -> float:
    """Resident memory now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def cpu_s(pid: int) -> float:
    """Processor seconds since its start."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Meter:
    """What each program used between its making and `read`."""

    def __init__(self, bed: Bed, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._log = AuditLog(bed.audit_log)
        self._before = {name: cpu_s(pid) for name, pid in self._pids.items()}

    def cpu(self) -> dict[str, float]:
        """Processor seconds by program."""
        return {name: round(cpu_s(pid) - self._before[name], 2) for name, pid in self._pids.items()}

    def memory(self) -> dict[str, float]:
        """Megabytes by program."""
        return {name: memory_mb(pid) for name, pid in self._pids.items()}

    def writes(self) -> dict[str, int]:
        """Of the gateways, by kind, and of all together; since the last call."""
        own: collections.Counter[str] = collections.Counter()
        total = 0
        for write in self._log.writes():
            total += 1
            if write.user == _GATEWAY:
                own[f"{write.verb} {write.resource}"] += 1
        return {**own, "all": total}


def held(bed: Bed) -> int:
    """Pods that are somebody's, and are not being deleted."""
    selector = f"{names.LABEL_STATE}={names.STATE_LEASED}"
    # The server's own table: whole pods by the thousand would take the processors from what is measured.
    query = ["get", "pods", "-l", selector, "--no-headers", "--ignore-not-found"]
    lines = kubectl(bed, "-n", names.SANDBOX_NAMESPACE, *query).splitlines()
    return sum(line.split()[2] != "Terminating" for line in lines)


def wait_none_held(bed: Bed, seconds: float) -> None:
    """Until nothing is leased.

    Raises:
        BedError: something stays.
    """
    wait_until("nothing is leased", lambda: held(bed) == 0, seconds, 0.5)


def pids(bed: Bed) -> dict[str, int]:
    """Of what is measured, as it runs now."""
    return {
        name: pid for name, pid in model.Target.read().pids.items() if Path(f"/proc/{pid}").exists()
    }
