"""Brings the scale bed up and takes it down: a control plane, KWOK, and Sandman's own programs beside it."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman import names
from tests.cluster.bed import binaries, certificates, configs, kube, lifecycle, processes
from tests.cluster.bed.components import Component
from tests.cluster.bed.kube import kubectl
from tests.cluster.bed.model import BedError
from tests.cluster.bed.shell import say, wait_until
from tests.scale import faults, manifests, model, nodes, tenants
from tests.scale.nodes import PLAIN, Behaviour

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.bed.model import Bed

PATIENCE_S = 900.0
"""For 12,000 placeholders on two busy cores."""
RESTART_S = 60.0
END_S = 1.0
"""For a program to end by itself when all is taken down: nobody is served any more."""
DAEMON_IMAGE = "registry.example/sandman/daemon:1"
"""Never pulled."""
ACCOUNT_HOURS = 24
FRUGAL = {"GOGC": "400"}
"""For Go programs of the control plane: here memory is plenty and processor dear, of which their garbage takes a sixth."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be there.

    `pods`: placeholders that wait. `most`: pods at once, free and leased; None: no more than that, so that the pool is
    drained and not refilled. `gateways`: replicas.
    """

    pods: int
    most: int | None = None
    gateways: int = model.GATEWAYS
    behaviour: Behaviour = PLAIN

    @property
    def all_pods(self) -> int:
        """Pods at once, free and leased."""
        return self.pods if self.most is None else self.most


def up(bed: Bed, plan: Plan) -> model.Target:
    """Bring it up; returns when all placeholders are free and every gateway knows it.

    Raises:
        BedError: something did not come up; what it last said has been printed.
    """
    down(bed)
    binaries.build(bed, with_kwok=True)
    _raise_limits()
    try:
        return _up(bed, plan)
    except BaseException:
        say(lifecycle.last_words(bed))
        down(bed)
        raise


def down(bed: Bed) -> None:
    """Take it down and leave nothing; fine when there is none."""
    model.TARGET.unlink(missing_ok=True)
    if not bed.state.exists():
        return
    faults.restore_network()
    for name in [*_others(bed), *reversed(model.CONTROL_PLANE)]:
        stop(bed, name, END_S)
    shutil.rmtree(bed.state)


def stop(bed: Bed, name: str, patience: float) -> None:
    """End one program, if it runs; 0 seconds of patience: at once."""
    process = processes.load(lifecycle.record(bed, name))
    if process is not None:
        processes.stop(process, patience)


def pid(bed: Bed, name: str) -> int:
    """Of a program that runs.

    Raises:
        BedError: it does not.
    """
    process = processes.load(lifecycle.record(bed, name))
    if process is None:
        raise BedError(f"{name} does not run")
    return process.pid


def start_gateway(bed: Bed, number: int) -> None:
    """Start one replica, with the settings of the manifests but for where it listens."""
    port = str(model.GATEWAY_PORT + number)
    environment = {
        "KUBECONFIG": str(_account(bed, "sandman-gateway")),
        "SANDMAN_GATEWAY_NAMESPACE": names.SYSTEM_NAMESPACE,
        "SANDMAN_GATEWAY_SANDBOX_NAMESPACES": names.SANDBOX_NAMESPACE,
        "SANDMAN_GATEWAY_POD_NAME": f"gateway-{number}",
        "SANDMAN_GATEWAY_POD_IP": "127.0.0.1",
        "SANDMAN_GATEWAY_BIND": "127.0.0.1",
        "SANDMAN_GATEWAY_PORT": port,
        "SANDMAN_GATEWAY_METRICS_PORT": str(model.METRICS_PORT + number),
        "SANDMAN_GATEWAY_DAEMON_PORT": str(model.DAEMON_PORT),
        # There is no network of its own to be probed: all pods are on the loopback.
        "SANDMAN_GATEWAY_EVAL_NETWORK_WAIT": "false",
    }
    _launch(bed, f"gateway-{number}", [sys.executable, "-m", "gateway"], environment)


def restart_api_server(bed: Bed) -> None:
    """Kill the API server and start it again; returns when it serves."""
    stop(bed, "apiserver", 0.0)
    lifecycle.start(bed, "apiserver", settings=FRUGAL)
    lifecycle.wait(bed, "apiserver")


def is_ready(port: int) -> bool:
    """Whether a gateway or the webhook says that calls may be sent there."""
    return kube.is_healthy(model.bed(), Component("", [], f"https://127.0.0.1:{port}/readyz"))


def scale(bed: Bed, pods: int) -> None:
    """Have so many placeholders wait."""
    deployment = f"deployment/sandman-pool-{manifests.POOL}"
    kubectl(bed, "-n", names.SANDBOX_NAMESPACE, "scale", deployment, f"--replicas={pods}")


def _up(bed: Bed, plan: Plan) -> model.Target:
    _start_control_plane(bed)
    _apply(bed, plan)
    keys = tenants.make(bed)
    _start_programs(bed, plan)
    _make_nodes(bed, plan)
    scale(bed, plan.pods)
    target = _target(bed, plan, keys)
    wait_until("every placeholder is free", lambda: _all_free(target), PATIENCE_S, 0.5)
    target.write()
    return target


def _start_control_plane(bed: Bed) -> None:
    for directory in (bed.state, bed.logs, bed.run):
        directory.mkdir(parents=True, exist_ok=True)
    certificates.make(bed)
    for path, content in configs.files(bed).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name in model.CONTROL_PLANE:
        lifecycle.start(bed, name, settings=FRUGAL)
        if name in {"etcd", "apiserver"}:
            lifecycle.wait(bed, name)
    # Its programs need it alone; the others come up meanwhile.


def _apply(bed: Bed, plan: Plan) -> None:
    directory = bed.state / "manifests"
    directory.mkdir()
    text = manifests.kustomization(
        model.ROOT,
        directory,
        webhook_port=model.WEBHOOK_PORT,
        pods=plan.pods,
        most=plan.all_pods,
    )
    (directory / "kustomization.yaml").write_text(text)
    kubectl(bed, "apply", "-k", str(directory))


def _start_programs(bed: Bed, plan: Plan) -> None:
    _start_webhook(bed)
    _start_hollow(bed)
    _start_kwok(bed, plan.behaviour)
    for number in range(plan.gateways):
        start_gateway(bed, number)
    ports = [model.WEBHOOK_PORT, *(model.GATEWAY_PORT + n for n in range(plan.gateways))]
    for port in ports:
        wait_until(f"port {port} is ready", functools.partial(is_ready, port), RESTART_S)
    lifecycle.wait(bed, "controller-manager", "scheduler")


def _start_webhook(bed: Bed) -> None:
    environment = {
        "KUBECONFIG": str(_account(bed, "sandman-webhook")),
        "SANDMAN_WEBHOOK_NAMESPACE": names.SYSTEM_NAMESPACE,
        "SANDMAN_WEBHOOK_DAEMON_IMAGE": DAEMON_IMAGE,
        "SANDMAN_WEBHOOK_ADDRESSES": "127.0.0.1",
        "SANDMAN_WEBHOOK_HOST": "127.0.0.1",
        "SANDMAN_WEBHOOK_PORT": str(model.WEBHOOK_PORT),
        "SANDMAN_WEBHOOK_DAEMON_PORT": str(model.DAEMON_PORT),
    }
    _launch(bed, "webhook", [sys.executable, "-m", "webhook"], environment)


def _start_hollow(bed: Bed) -> None:
    command = [sys.executable, "-m", "tests.scale.hollow", "--kubeconfig", str(bed.kubeconfig)]
    command += ["--namespace", names.SANDBOX_NAMESPACE, "--port", str(model.DAEMON_PORT)]
    _launch(bed, "hollow", command, {})


def _start_kwok(bed: Bed, behaviour: Behaviour) -> None:
    stages = bed.config / "stages.yml"
    stages.write_text(nodes.stages(binaries.kwok_stages(bed), behaviour))
    command = [str(bed.bin / "kwok"), "--kubeconfig", str(bed.kubeconfig), "-c", str(stages)]
    # No leases: a node lives by what its stage says, and is lost when that says nothing.
    command += ["--manage-all-nodes=true", "--node-lease-duration-seconds=0"]
    _launch(bed, "kwok", command, {})


def _make_nodes(bed: Bed, plan: Plan) -> None:
    items = [nodes.node(number) for number in range(nodes.count(plan.all_pods))]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    kubectl(bed, "create", "--validate=false", "-f", "-", input=json.dumps(listed))


def _launch(bed: Bed, name: str, command: list[str], environment: dict[str, str]) -> None:
    """From the repository, with nothing of this shell's settings of ours."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SANDMAN_")}
    whole = inherited | {"PYTHONPATH": str(model.ROOT)} | environment
    processes.start(lifecycle.record(bed, name), bed.logs / f"{name}.log", command, whole)


def _others(bed: Bed) -> list[str]:
    """What runs beside the control plane."""
    found = {path.stem for path in bed.run.glob("*.json")}
    return sorted(found - set(model.CONTROL_PLANE))


def _account(bed: Bed, account: str) -> Path:
    """A kubeconfig with the rights that the manifests give to this account, and no others."""
    path = bed.state / f"{account}.kubeconfig"
    if path.exists():
        return path
    duration = f"--duration={ACCOUNT_HOURS}h"
    token = kubectl(bed, "-n", names.SYSTEM_NAMESPACE, "create", "token", account, duration)
    cluster = {"server": bed.api_url, "certificate-authority": str(bed.ca)}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "scale", "cluster": cluster}],
        "users": [{"name": account, "user": {"token": token.strip()}}],
        "contexts": [{"name": "scale", "context": {"cluster": "scale", "user": account}}],
        "current-context": "scale",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(value))
    return path


def _target(bed: Bed, plan: Plan, keys: dict[str, str]) -> model.Target:
    others = [f"gateway-{number}" for number in range(plan.gateways)]
    return model.Target(
        base_urls=[
            f"https://127.0.0.1:{model.GATEWAY_PORT + number}" for number in range(plan.gateways)
        ],
        metrics=[
            f"https://127.0.0.1:{model.METRICS_PORT + number}/metrics"
            for number in range(plan.gateways)
        ],
        ca=str(tenants.write_ca(bed)),
        tenants={name: {"key": key, "weight": model.WEIGHTS[name]} for name, key in keys.items()},
        pool=manifests.POOL,
        pods=plan.pods,
        pids={name: pid(bed, name) for name in [*others, *_others(bed), *model.CONTROL_PLANE]},
        api_server={
            "url": bed.api_url,
            "ca": str(bed.ca),
            "certificate": str(bed.certs / "admin.crt"),
            "key": str(bed.certs / "admin.key"),
        },
        kubeconfig=str(bed.kubeconfig),
        state=str(bed.state),
    )


def _all_free(target: model.Target) -> bool:
    return all(tenants.free(target, url) >= target.pods for url in target.metrics)


def _raise_limits() -> None:
    """A gateway has a connection to each sandbox that was called lately; a container's limit is far higher."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def behave(bed: Bed, behaviour: Behaviour) -> None:
    """Have pods start otherwise from now on."""
    stop(bed, "kwok", END_S)
    _start_kwok(bed, behaviour)
