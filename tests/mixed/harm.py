"""The faults, done to the cluster. Blocking: for threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import names
from tests.cluster import faults
from tests.cluster.bed import BedError, components, kube, processes
from tests.mixed.plan import Fault, Mishap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.deployed import Deployed

GATEWAYS = "app.kubernetes.io/name=sandman-gateway"
API_SERVICE = "10.96.0.1"
"""Where pods reach the API server."""
PATIENCE_S = 90.0
"""Seconds for the API server, or a gateway, to be there again on a busy machine."""
STARTS = 20
"""Tries to start the API server."""
WATCHES_S = 15.0
"""Seconds after the API server is back until every watch has been asked for again."""


class Harm:
    """Does what the plan says.

    Args:
        deployed: to what.
    """

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self.gone = 0
        """Watches that were told that their version is too old."""

    def target(self, mishap: Mishap, held: list[str]) -> str | None:
        """The pod that a fault is to hit; None: none of its own, or there is none to hit.

        Args:
            mishap: of the plan.
            held: the pods of sandboxes that callers hold.
        """
        if mishap.fault in (Fault.DELETE_SANDBOX, Fault.KILL_SANDBOX):
            return held[int(mishap.pick * len(held))] if held else None
        if mishap.fault is Fault.DELETE_PLACEHOLDER:
            free = sorted(self._pods(names.LABEL_STATE, names.STATE_FREE))
            return free[int(mishap.pick * len(free))] if free else None
        return None

    def do(self, mishap: Mishap, target: str | None) -> None:
        """Do it.

        Raises:
            BedError, AssertionError: it could not be done.
        """
        fault, pick = mishap.fault, mishap.pick
        if fault in (Fault.KILL_GATEWAY, Fault.KILL_ALLOCATOR):
            pods = self._gateways()
            name = self._allocator(pods) if fault is Fault.KILL_ALLOCATOR else _one(pods, pick)
            _kill(_first_process(pods[name]))
        elif fault is Fault.DELETE_GATEWAY:
            how = ["--grace-period=0", "--force"] if pick < 0.5 else []
            name = _one(self._gateways(), pick)
            faults.system(self._deployed, "delete", "pod", name, "--wait=false", *how)
        elif fault is Fault.DROP_WATCHES:
            pods = self._gateways()
            _drop(_first_process(pods[_one(pods, pick)]))
        elif fault is Fault.RESTART_API:
            self._restart_api()
        elif target is not None and fault is Fault.KILL_SANDBOX:
            _kill(faults.first_process(self._deployed, target))
        elif target is not None:
            self._deployed.kubectl("delete", "pod", target, "--wait=false", "--ignore-not-found")

    def wait_over(self, mishap: Mishap) -> None:
        """Return when what was hit is there again, as far as it comes again.

        Raises:
            AssertionError: it does not come.
        """
        if mishap.fault in (Fault.KILL_GATEWAY, Fault.KILL_ALLOCATOR, Fault.DELETE_GATEWAY):
            self._wait_for_gateways()
        elif mishap.fault is Fault.RESTART_API:
            self._wait_for_watches()

    def restore(self) -> None:
        """Wait until gateways and API server are there."""
        self.wait_for_api()
        self._wait_for_gateways()

    def wait_for_api(self) -> None:
        """Wait until the API server answers."""
        _again(lambda: self._deployed.kubectl("get", "pods", "-o", "name"))

    # --- gateways ---

    def _gateways(self) -> dict[str, str]:
        """Uids of the gateways' pods that are not being deleted, by name."""
        text = faults.system(self._deployed, "get", "pods", "-l", GATEWAYS, "-o", "json")
        found = [one["metadata"] for one in json.loads(text)["items"]]
        return {one["name"]: one["uid"] for one in found if "deletionTimestamp" not in one}

    def _allocator(self, pods: dict[str, str]) -> str:
        query = "jsonpath={.spec.holderIdentity}"
        lease = ("get", "lease", names.ALLOCATOR_LEASE, "-o", query)
        holder = faults.system(self._deployed, *lease).partition("_")[0]
        return holder if holder in pods else _one(pods, 0.0)

    def _wait_for_gateways(self) -> None:
        query = "jsonpath={.status.readyReplicas} {.status.replicas}"

        def is_whole() -> bool:
            return faults.system(self._deployed, "get", faults.GATEWAY, "-o", query) == "2 2"

        # What was just killed is counted as ready until its kubelet has looked.
        time.sleep(2)
        faults.wait("two gateways serve", lambda: _try(is_whole), 6 * PATIENCE_S)

    def _pods(self, label: str, value: str) -> list[str]:
        query = 'jsonpath={range .items[*]}{.metadata.name}{"\\n"}{end}'
        return self._deployed.kubectl("get", "pods", "-l", f"{label}={value}", "-o", query).split()

    # --- the API server ---

    def _restart_api(self) -> None:
        bed = self._deployed.bed
        record = bed.run / "apiserver.json"
        old = processes.load(record)
        assert old is not None, "the API server does not run"
        processes.end_all([old], signal.SIGKILL, 10.0)
        command = components.component(bed, "apiserver").command
        for _ in range(STARTS):
            begun = processes.start(record, bed.logs / "apiserver.log", command)
            # The threads of the one before may have its port for a moment longer than it is there.
            time.sleep(1.0)
            if begun.is_alive():
                return
        raise BedError("the API server does not start again")

    def _wait_for_watches(self) -> None:
        """Its versions of before are too old for what it remembers: that is told to every watch."""
        bed, began = self._deployed.bed, time.time()
        component = components.component(bed, "apiserver")
        faults.wait("the API server is back", lambda: kube.is_healthy(bed, component), PATIENCE_S)
        time.sleep(WATCHES_S)
        _again(lambda: self._count_gone(began))

    def _count_gone(self, since: float) -> None:
        seconds = f"--since={int(time.time() - since) + 1}s"
        text = faults.system(
            self._deployed, "logs", "-l", GATEWAYS, seconds, "--tail=-1", "--max-log-requests=10"
        )
        self.gone += sum("reflector_failed" in line and "old" in line for line in text.splitlines())


def _one(pods: dict[str, str], pick: float) -> str:
    listed = sorted(pods)
    assert listed, "there is no gateway"
    return listed[int(pick * len(listed))]


def _first_process(uid: str) -> int:
    """The host's pid of process 1 of a gateway's container."""
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not directory.name.isdigit() or uid not in (directory / "cgroup").read_text():
                continue
            words = (directory / "cmdline").read_bytes().split(b"\0")
            status = (directory / "status").read_text()
            [inner] = [line.split()[-1] for line in status.splitlines() if line[:6] == "NSpid:"]
            if inner == "1" and b"gateway" in words:
                return int(directory.name)
    raise AssertionError(f"no process 1 of the gateway {uid}")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _drop(pid: int) -> None:
    """The kernel ends every connection of this pod to the API server."""
    command = ["nsenter", "-t", str(pid), "-n", "ss", "-K", "dst", API_SERVICE]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "ESTAB" in done.stdout, f"no connection was there to be dropped: {done}"


def _try(look: Callable[[], bool]) -> bool:
    with contextlib.suppress(BedError):
        return look()
    return False


def _again(act: Callable[[], object]) -> None:
    """Do it once the API server answers."""

    def done() -> bool:
        act()
        return True

    faults.wait("the API server answers", lambda: _try(done), PATIENCE_S)
