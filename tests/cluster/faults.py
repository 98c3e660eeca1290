"""What tests do to sandboxes from the node, and to the gateways: each undone at the end of its block."""

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
from tests.cluster.bed import kubectl, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.deployed import Deployed

GATEWAY = "deployment/sandman-gateway"


def pod_of(sandbox: str) -> str:
    """The name of a sandbox's pod."""
    return sandbox.rpartition("-")[0]


def document(deployed: Deployed, pod: str) -> dict | None:
    """The pod as the API server has it; None when there is none."""
    text = deployed.kubectl("get", "pod", pod, "--ignore-not-found", "-o", "json")
    return json.loads(text) if text.strip() else None


def daemons() -> list[int]:
    """The host's pids of all daemons that are PID 1 of a sandbox."""
    command = ["pgrep", "-f", "^/.sandman/bin/python3 .*/.sandman/app"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


def daemons_beside(uids: set[str]) -> list[int]:
    """Those of no pod with such a uid, by their cgroups."""
    found = []
    for pid in daemons():
        with contextlib.suppress(OSError):
            cgroup = Path(f"/proc/{pid}/cgroup").read_text()
            found += [] if any(uid in cgroup for uid in uids) else [pid]
    return found


def first_process(deployed: Deployed, pod: str) -> int:
    """The host's pid of a sandbox's PID 1, found by its cgroup."""
    found = document(deployed, pod)
    assert found is not None
    uid = found["metadata"]["uid"]
    for pid in daemons():
        with contextlib.suppress(OSError):
            if uid in Path(f"/proc/{pid}/cgroup").read_text():
                return pid
    raise AssertionError(f"no first process of {pod}")


def wait(what: str, condition: Callable[[], object], seconds: float) -> float:
    """Wait until it holds; how long that took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.25)
    return time.monotonic() - begun


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def kubelet_stopped(deployed: Deployed) -> Iterator[None]:
    """The node is not heard of."""
    kubelet = processes.load(deployed.bed.run / "kubelet.json")
    assert kubelet is not None
    with frozen(kubelet.pid):
        yield


@contextlib.contextmanager
def network_cut(pid: int) -> Iterator[None]:
    """No packet comes into the network of this process or leaves it, its loopback apart."""
    rules = [("INPUT", "-i"), ("OUTPUT", "-o")]
    enter = ["nsenter", "-t", str(pid), "-n", "iptables", "-w"]
    for chain, way in rules:
        subprocess.run([*enter, "-I", chain, "!", way, "lo", "-j", "DROP"], check=True)
    try:
        yield
    finally:
        for chain, way in rules:
            # The pod may be gone, and its network with it.
            command = [*enter, "-D", chain, "!", way, "lo", "-j", "DROP"]
            subprocess.run(command, check=False, capture_output=True)


def system(deployed: Deployed, *arguments: str) -> str:
    """Run kubectl in Sandman's namespace."""
    return kubectl(deployed.bed, "-n", names.SYSTEM_NAMESPACE, *arguments)


def gateway_addresses(deployed: Deployed) -> list[str]:
    """Addresses of the replicas: a node that is not heard of is taken out of Services."""
    return system(
        deployed, "get", "pods", "-l", "app.kubernetes.io/name=sandman-gateway",
        "-o", 'jsonpath={range .items[*]}{.status.podIP}{"\\n"}{end}',
    ).split()  # fmt: skip


@contextlib.contextmanager
def gateways_stopped(deployed: Deployed) -> Iterator[None]:
    """There is none; afterwards there are two again, which serve."""
    system(deployed, "scale", GATEWAY, "--replicas=0")
    wait("no gateway is left", lambda: not gateway_addresses(deployed), 90)
    try:
        yield
    finally:
        system(deployed, "scale", GATEWAY, "--replicas=2")
        system(deployed, "rollout", "status", GATEWAY, "--timeout=120s")


@contextlib.contextmanager
def setting(deployed: Deployed, name: str, value: object) -> Iterator[None]:
    """The gateways run with another setting."""
    with set_once(deployed, name, value):
        yield
    rolled_out(deployed)


@contextlib.contextmanager
def set_once(deployed: Deployed, name: str, value: object) -> Iterator[None]:
    """The same, and at the end nobody waits until they run without it."""
    system(deployed, "set", "env", GATEWAY, f"SANDMAN_GATEWAY_{name}={value}")
    try:
        rolled_out(deployed)
        yield
    finally:
        unset(deployed, name)


def unset(deployed: Deployed, name: str) -> None:
    """Gateways that start from now on have the default of a setting."""
    system(deployed, "set", "env", GATEWAY, f"SANDMAN_GATEWAY_{name}-")


def rolled_out(deployed: Deployed) -> None:
    """There are new gateways and no old ones: one that stops serves on for a while, as allocator, too."""
    system(deployed, "rollout", "status", GATEWAY, "--timeout=180s")
    wait("the old gateways are gone", lambda: len(gateway_addresses(deployed)) == 2, 90)
