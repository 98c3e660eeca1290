"""What only a trial can tell: that the daemon starts on a node, that the gateway reaches it, and that the
network's policies hold. Makes a pod and a sandbox, and takes both away again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from sandman import names
from sandman.doctor import admission
from sandman.doctor.cluster import ClusterError
from sandman.doctor.findings import Finding, failure, ok, skipped, warning
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandman.doctor.cluster import Cluster
    from sandman.sync import Client, Sandbox

START_S = 90.0
"""Seconds for a pod to start, its images' pulls included."""
LOOK_S = 1.0
CONNECT_S = 3
"""Seconds to wait for a connection that should not come."""
_CONNECT = (
    "import socket,sys\n"
    "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()\n"
    "except OSError: sys.exit(3)\n"
)


def delivered(cluster: Cluster, sleep: Callable[[float], None]) -> Iterator[Finding]:
    """A pod by each way of delivery, in a namespace of pools."""
    spaces = [
        name
        for name, value in sorted(admission.labelled(cluster).items())
        if value == names.INJECT_NAMESPACE_ENABLED
    ]
    image = _image(cluster, spaces[0]) if spaces else None
    if image is None:
        yield skipped("delivery", "there is no pool whose image could be tried")
        return
    for way in (names.DELIVERY_INIT, names.DELIVERY_IMAGE):
        yield _try(cluster, spaces[0], way, image, sleep)


def _image(cluster: Cluster, namespace: str) -> str | None:
    for one in cluster.items("-n", namespace, "deployments", "-l", names.LABEL_POOL):
        containers = one["spec"]["template"]["spec"]["containers"]
        return str(containers[0]["image"])
    return None


def _try(
    cluster: Cluster, namespace: str, way: str, image: str, sleep: Callable[[float], None]
) -> Finding:
    document = admission.pod(namespace, names.INJECT_POOL, delivery=way)
    name = document["metadata"]["name"] = f"{admission.NAME}-{way}"
    document["spec"]["containers"][0]["image"] = image
    try:
        cluster.run("create", "-f", "-", stdin=json.dumps(document))
        try:
            return _judge(way, _settled(cluster, namespace, name, sleep))
        finally:
            cluster.run("-n", namespace, "delete", "pod", name, "--wait=false", "--grace-period=1")
    except ClusterError as error:
        return failure("delivery", f"by {way}: {error}", admission.advice(str(error)))


def _settled(
    cluster: Cluster, namespace: str, name: str, sleep: Callable[[float], None]
) -> dict[str, Any]:
    until = time.monotonic() + START_S
    while True:
        pod = cluster.get("-n", namespace, "pod", name)
        status = pod.get("status") or {}
        if status.get("phase") not in {None, "Pending"} or _why(pod) or time.monotonic() > until:
            return pod
        sleep(LOOK_S)


def _judge(way: str, pod: dict[str, Any]) -> Finding:
    if (pod.get("status") or {}).get("phase") == "Running":
        return ok("delivery", f"by {way}: the daemon runs")
    why = _why(pod) or "it did not start in time"
    level = warning if way == names.DELIVERY_IMAGE else failure
    advice = "use the other way" if way == names.DELIVERY_IMAGE else "see the pod's events"
    return level("delivery", f"by {way}: {why}", advice)


def _why(pod: dict[str, Any]) -> str:
    """Why a container of the pod does not run; empty while it may come."""
    status = pod.get("status") or {}
    for one in [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]:
        state = one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {waiting.get('message', '')}"
        if ended.get("exitCode"):
            return f"container {one['name']} ended with {ended['exitCode']}: {ended.get('message', '')}"
    return ""


def reached(client: Client, cluster: Cluster) -> Iterator[Finding]:
    """A sandbox: whether the gateway reaches it, and whether it reaches another one."""
    try:
        with client.sandbox(wait_s=START_S, max_s=600) as box:
            result = box.exec([names.DAEMON_COMMAND[0], "-I", "-S", "-c", "print(6 * 7)"])
            if result.stdout_text.strip() == "42":
                yield ok("gateway → pod", f"a sandbox ({box.info.tier}) ran a command")
            else:
                text = f"a command in a sandbox ended with {result.exit_code}: {result.stderr_text}"
                yield failure("gateway → pod", text, "see the daemon's log in the pod")
            yield from _isolated(box, cluster)
    except SandmanError as error:
        advice = (
            "do the network policies let the gateways in to port 21763, and is a placeholder free?"
        )
        yield failure("gateway → pod", f"{error.reason}: {error.detail}", advice)


def _isolated(box: Sandbox, cluster: Cluster) -> Iterator[Finding]:
    own = box.id.rpartition("-")[0]
    others = [
        one["status"]["podIP"]
        for one in cluster.items("-A", "pods", "-l", names.LABEL_POOL)
        if one["metadata"]["name"] != own and (one.get("status") or {}).get("podIP")
    ]
    if not others:
        yield skipped("network", "there is no other sandbox to try to reach")
        return
    command = [names.DAEMON_COMMAND[0], "-I", "-S", "-c", _CONNECT, others[0]]
    result = box.exec([*command, str(names.DAEMON_PORT), str(CONNECT_S)], timeout_s=30)
    if result.exit_code == 0:
        advice = "use a CNI that enforces network policies; nothing else keeps sandboxes apart"
        yield failure("network", "a sandbox can connect to another one's daemon", advice)
    elif result.exit_code == 3:
        yield ok("network", "a sandbox cannot connect to another one: policies are enforced")
    else:
        yield skipped("network", f"the trial ended with {result.exit_code}: {result.stderr_text}")
