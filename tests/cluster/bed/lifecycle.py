"""Brings the cluster up and takes it down: the order of things, and nothing of how each is done."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
from typing import TYPE_CHECKING

from tests.cluster.bed import (
    binaries,
    certificates,
    components,
    configs,
    images,
    kube,
    leftovers,
    model,
    needs,
    network,
    processes,
    teardown,
)
from tests.cluster.bed.model import BedError
from tests.cluster.bed.shell import attempt, run, say, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.cluster.bed.model import Bed


def up(bed: Bed) -> None:
    """Bring the cluster up; at once if it is up and healthy, anew if it is there but not well."""
    with _lock(bed):
        if is_up(bed):
            say("the test cluster is already up")
            return
        _check_machine()
        _down(bed)
        _check_alone()
        needs.install()
        binaries.build(bed)
        leftovers.record(bed)
        try:
            _start_all(bed)
        except BaseException:
            say(last_words(bed))
            _down(bed)
            raise


def down(bed: Bed) -> None:
    """Take the cluster down and leave nothing; fine when there is none."""
    with _lock(bed):
        _down(bed)


def restart(bed: Bed, name: str) -> None:
    """Stop one component and start it again; returns when it and all others are well."""
    with _lock(bed):
        process = processes.load(record(bed, name))
        if process is not None:
            processes.stop(process, components.component(bed, name).patience)
        start(bed, name)
        wait(bed, name)
        wait_until("all are well again", functools.partial(_is_well, bed))


def is_up(bed: Bed, patience: float = 60.0) -> bool:
    """True when every component runs and is healthy, and the node is Ready.

    One that does not run is final; one that does not answer gets `patience` seconds, for on a
    busy machine a late answer must not make somebody restart the cluster under all others.
    """
    if not bed.state.exists() or not all(_is_running(bed, name) for name in components.ORDER):
        return False
    try:
        wait_until("all answer", lambda: _is_well(bed), patience, interval=1.0)
    except BedError:
        return False
    return True


def status(bed: Bed) -> dict[str, bool]:
    """Each component, and whether it runs and answers."""
    return {name: _answers(bed, name) for name in components.ORDER}


def _check_machine() -> None:
    lacking = needs.missing()
    if lacking:
        raise BedError("this machine cannot run the test cluster:\n" + "\n".join(lacking))


def _check_alone() -> None:
    """Addresses and ports are fixed: a second cluster would take the first one's with it when it fails."""
    if attempt(["ip", "link", "show", model.NODE_LINK]):
        raise BedError(
            f"another test cluster is up on this machine, or was not taken down whole: "
            f"the link {model.NODE_LINK} exists. Take it down with its own SANDMAN_CLUSTER_DIR."
        )


def _start_all(bed: Bed) -> None:
    _prepare(bed)
    # What needs nobody starts together; what follows waits for what it needs.
    start(bed, "registry", "etcd", "containerd")
    wait(bed, "etcd")
    start(bed, "apiserver")
    wait(bed, "registry", "containerd")
    images.publish(bed)
    _import_pause(bed)
    wait(bed, "apiserver")
    start(bed, "controller-manager", "scheduler", "kubelet")
    kube.give_pod_range(bed)
    start(bed, "kube-proxy", "kube-router")
    wait(bed, *components.ORDER)
    wait_until("the node is Ready", lambda: kube.is_node_ready(bed))
    wait_until("the default ServiceAccount exists", lambda: kube.has_default_account(bed))


def _prepare(bed: Bed) -> None:
    for directory in (bed.state, bed.logs, bed.run):
        directory.mkdir(parents=True, exist_ok=True)
    # Root of a pod's user namespace is nobody on the machine, and must get to the pod's root file system.
    (bed.state / "containerd").mkdir(mode=0o711, exist_ok=True)
    (bed.state / "strays.json").write_text(json.dumps(sorted(teardown.strays())))
    certificates.make(bed)
    for path, content in configs.files(bed).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    network.prepare(bed)


def start(bed: Bed, *names: str, settings: Mapping[str, str] | None = None) -> None:
    """Start these components, with these variables of the environment, and return at once."""
    # containerd finds its shim and runc by PATH, the network parts iptables and ipset.
    path = f"{bed.bin}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    environment = dict(os.environ) | {"PATH": path} | dict(settings or {})
    for name in names:
        component = components.component(bed, name)
        processes.start(record(bed, name), bed.logs / f"{name}.log", component.command, environment)


def wait(bed: Bed, *names: str) -> None:
    """Wait until these components are healthy.

    Raises:
        BedError: one of them ended, or none of it in time.
    """
    for name in names:
        wait_until(f"{name} is healthy", functools.partial(_is_serving, bed, name))


def _is_serving(bed: Bed, name: str) -> bool:
    if not _is_running(bed, name):
        raise BedError(f"{name} ended; its log is {bed.logs / name}.log")
    return kube.is_healthy(bed, components.component(bed, name))


def _is_running(bed: Bed, name: str) -> bool:
    return processes.load(record(bed, name)) is not None


def _answers(bed: Bed, name: str) -> bool:
    return _is_running(bed, name) and kube.is_healthy(bed, components.component(bed, name))


def _is_well(bed: Bed) -> bool:
    return all(status(bed).values()) and kube.is_node_ready(bed)


def _import_pause(bed: Bed) -> None:
    ctr = [
        bed.bin / "ctr",
        "--address",
        bed.containerd_socket,
        "--namespace",
        "k8s.io",
    ]
    run([*ctr, "images", "import", images.pause_archive(bed)])


def _down(bed: Bed) -> None:
    if not bed.state.exists():
        return
    for name in reversed(components.ORDER):
        process = processes.load(record(bed, name))
        if process is not None:
            processes.stop(process, components.component(bed, name).patience)
    teardown.clear_node(bed)
    network.restore(bed)
    strays = bed.state / "strays.json"
    teardown.remove_strays(set(json.loads(strays.read_text())) if strays.exists() else set())
    shutil.rmtree(bed.state)


def record(bed: Bed, name: str) -> Path:
    """Where it is written which process a component is."""
    return bed.run / f"{name}.json"


def last_words(bed: Bed) -> str:
    """The end of every log, for the person who sees only this output (in CI)."""
    texts = [
        f"==> {log.name}\n{attempt(['tail', '-n', '15', log])}"
        for log in sorted(bed.logs.glob("*.log"))
    ]
    return "\n".join(texts)


@contextlib.contextmanager
def _lock(bed: Bed) -> Iterator[None]:
    """One `up` or `down` at a time: a person and a test run may ask together."""
    bed.cache.mkdir(parents=True, exist_ok=True)
    with (bed.cache / "bed.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
