"""Why a pod cannot be a sandbox: one small function a reason, all pure.

A text says what is wrong and what to do, because kubectl shows it to whoever made the pod, and the
events of a ReplicaSet to whoever wonders where its pods are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sandman import names
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from webhook.podview import Container, Pod

TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
"""Where the API server mounts the account's token; it has done so before webhooks are asked."""

Faults = Iterator[str]


def check(pod: Pod, target: Container) -> None:
    """Refuse a pod that is unsafe as a sandbox or that the daemon could not work in.

    Raises:
        RefusedError: tells all the reasons at once, so that nobody mends them one by one.
    """
    reasons = [fault for rule in _RULES for fault in rule(pod, target)]
    if reasons:
        raise RefusedError("; ".join(reasons))


def check_namespace(namespace: str, control_plane: str) -> None:
    """Refuse sandboxes where the cluster's or Sandman's own parts run.

    Raises:
        RefusedError: the namespace is one of those.
    """
    if namespace == control_plane or namespace.startswith("kube-"):
        raise RefusedError(
            f"namespace {namespace} belongs to the control plane: make sandboxes in another one"
        )


def _host(pod: Pod, _target: Container) -> Faults:
    shared = {
        "hostNetwork": pod.spec.host_network,
        "hostPID": pod.spec.host_pid,
        "hostIPC": pod.spec.host_ipc,
    }
    for name, is_set in shared.items():
        if is_set:
            yield f"{name} opens the node to the sandbox: remove {name} from the pod"


def _process_namespace(pod: Pod, _target: Container) -> Faults:
    # The daemon reaps and kills by being process 1, and a container beside it could trace it.
    if pod.spec.share_process_namespace:
        yield "the daemon must be process 1 of its container: remove shareProcessNamespace"


def _privileged(pod: Pod, _target: Container) -> Faults:
    for container in pod.all_containers:
        if container.security_context and container.security_context.privileged:
            yield f"container {container.name} is privileged: set privileged to false"


def _windows(pod: Pod, _target: Container) -> Faults:
    contexts = [pod.spec.security_context, *(one.security_context for one in pod.all_containers)]
    asks_for = {
        pod.spec.os.name if pod.spec.os else "",
        (pod.spec.node_selector or {}).get("kubernetes.io/os", ""),
    }
    if "windows" in asks_for or any(one and one.windows_options for one in contexts):
        yield "the daemon runs on Linux only: do not label pods for Windows nodes for injection"


def _account_token(pod: Pod, _target: Container) -> Faults:
    sources = [
        source
        for volume in pod.spec.volumes or []
        for source in (volume.projected.sources or [] if volume.projected else [])
    ]
    mounts = [mount for one in pod.all_containers for mount in one.volume_mounts or []]
    if any(source.service_account_token for source in sources) or any(
        mount.path == TOKEN_MOUNT for mount in mounts
    ):
        yield (
            "the pod carries a ServiceAccount token, which the sandbox could read: set "
            "automountServiceAccountToken: false in the template and project no token"
        )


def _mounts(pod: Pod, target: Container) -> Faults:
    # Init containers too: one that writes there makes the daemon. The copier is looked at by `delivery`.
    for container in pod.all_containers:
        if container.name == names.INIT_CONTAINER:
            continue
        for mount in container.volume_mounts or []:
            ours = (mount.name, mount.path) == (names.VOLUME, names.MOUNT_PATH)
            is_whole = not (mount.sub_path or mount.sub_path_expr)
            if container is target and ours and is_whole and mount.read_only:
                continue
            inside = f"{mount.path}/".startswith(f"{names.MOUNT_PATH}/")
            if mount.name == names.VOLUME or (container is target and inside):
                yield (
                    f"container {container.name} mounts volume {mount.name} at {mount.mount_path}: "
                    f"{names.MOUNT_PATH} and volume {names.VOLUME} are the daemon's, remove the mount"
                )


def _ports(pod: Pod, target: Container) -> Faults:
    for container in pod.all_containers:
        for port in container.ports or []:
            if port.host_port and names.DAEMON_PORT in {port.host_port, port.container_port}:
                yield f"container {container.name} opens the daemon's port on the node: remove hostPort"
            elif port.container_port == names.DAEMON_PORT and container is not target:
                yield (
                    f"container {container.name} uses port {names.DAEMON_PORT}, which is the "
                    "daemon's: choose another containerPort"
                )


def _reserved_name(pod: Pod, _target: Container) -> Faults:
    if any(container.name == names.INIT_CONTAINER for container in pod.containers):
        yield f"container name {names.INIT_CONTAINER} is reserved: rename the container"


_RULES: tuple[Callable[[Pod, Container], Faults], ...] = (
    _host,
    _process_namespace,
    _privileged,
    _windows,
    _account_token,
    _mounts,
    _ports,
    _reserved_name,
)
