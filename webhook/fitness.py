"""Why a workload's pod is left without the daemon: one small function a reason, all pure.

The texts go into an admission warning, of which kubectl shows 256 characters, and an annotation. What
is said of a pod here keeps it from the daemon, never from running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sandman import names
from webhook.commands import is_wrapped
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from webhook.inject import Settings
    from webhook.podview import Container, Pod

Reasons = Iterator[str]

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Which container `kubectl exec` means. Injectors of sidecars set it, since theirs may come first."""


def check(pod: Pod, targets: list[Container], settings: Settings) -> None:
    """See that the daemon can be put into these containers.

    Raises:
        RefusedError: tells all the reasons at once.
    """
    reasons = [reason for rule in _RULES for reason in rule(pod, targets, settings)]
    if reasons:
        raise RefusedError("; ".join(reasons))


def targets(pod: Pod) -> list[Container]:
    """The containers that are meant, in the pod's order.

    Raises:
        RefusedError: the annotation names one that is not there.
    """
    wish = pod.annotations.get(names.ANNOTATION_CONTAINER, "").strip()
    if wish == names.ALL_CONTAINERS:
        return pod.containers
    if not wish:
        return _unnamed(pod)
    asked = {name.strip() for name in wish.split(",") if name.strip()}
    absent = asked - {one.name for one in pod.containers}
    if absent or not asked:
        there = ", ".join(one.name for one in pod.containers)
        raise RefusedError(
            f"annotation {names.ANNOTATION_CONTAINER} names {', '.join(sorted(absent)) or 'nothing'}: "
            f"the pod's containers are {there}"
        )
    return [one for one in pod.containers if one.name in asked]


def _unnamed(pod: Pod) -> list[Container]:
    # Asked again after another injector put its own container first, ours stays where it is.
    if wrapped := [one for one in pod.containers if is_wrapped(one)]:
        return wrapped
    default = pod.annotations.get(_DEFAULT_CONTAINER)
    return [one for one in pod.containers if one.name == default] or pod.containers[:1]


def ports(pod: Pod, chosen: list[Container], first: int) -> dict[str, int]:
    """Where each daemon listens: containers of a pod share its network."""
    used = {
        number
        for one in pod.all_containers
        for port in one.ports or ()
        for number in (port.container_port, port.host_port)
    }
    free = (number for number in range(first, 65536) if number not in used)
    return {one.name: next(free) for one in chosen}


def _host(pod: Pod, _targets: list[Container], _settings: Settings) -> Reasons:
    for name, is_set in (
        ("hostNetwork", pod.spec.host_network),
        ("hostPID", pod.spec.host_pid),
        ("hostIPC", pod.spec.host_ipc),
    ):
        if is_set:
            yield f"{name}: pods that share the node's namespaces get no daemon; remove {name} or the label"


def _privileged(pod: Pod, _targets: list[Container], _settings: Settings) -> Reasons:
    for one in pod.all_containers:
        if one.security_context and one.security_context.privileged:
            yield f"container {one.name} is privileged: such pods get no daemon; remove privileged or the label"


def _windows(pod: Pod, _targets: list[Container], _settings: Settings) -> Reasons:
    contexts = [pod.spec.security_context, *(one.security_context for one in pod.all_containers)]
    if (
        (pod.spec.os is not None and pod.spec.os.name == "windows")
        or any(one and one.windows_options for one in contexts)
        or "windows" in (_asked(pod, "kubernetes.io/os") or ())
    ):
        yield "the daemon runs on Linux only: remove the label from pods for Windows nodes"


def _architecture(pod: Pod, _targets: list[Container], settings: Settings) -> Reasons:
    asked = _asked(pod, "kubernetes.io/arch")
    if asked is not None and asked != {settings.architecture}:
        yield (
            f"the daemon is built for {settings.architecture} and the pod may run on "
            f"{', '.join(sorted(asked - {settings.architecture}))}: remove the label, or ask for "
            f"{settings.architecture} nodes"
        )


def _asked(pod: Pod, label: str) -> set[str] | None:
    """The values of a node's label that the pod can run with; None: it says nothing of it."""
    selected = (pod.spec.node_selector or {}).get(label)
    if selected is not None:
        return {selected}
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = (affinity.required.node_selector_terms or []) if affinity and affinity.required else []
    found: set[str] = set()
    for term in terms:
        values = [
            set(one.values or ())
            for one in term.match_expressions or ()
            if (one.key, one.operator) == (label, "In")
        ]
        if not values:
            return None
        found |= set.intersection(*values)
    return found or None


def _names_taken(pod: Pod, _targets: list[Container], _settings: Settings) -> Reasons:
    if any(one.name == names.INIT_CONTAINER for one in pod.containers):
        yield f"container name {names.INIT_CONTAINER} is the daemon's: rename the container"


def _mounts(pod: Pod, chosen: list[Container], _settings: Settings) -> Reasons:
    for one in pod.all_containers:
        if one.name == names.INIT_CONTAINER:
            continue
        for mount in one.volume_mounts or []:
            is_whole = not (mount.sub_path or mount.sub_path_expr)
            is_ours = (mount.name, mount.path) == (names.VOLUME, names.MOUNT_PATH) and is_whole
            if one in chosen and is_ours and mount.read_only and is_wrapped(one):
                continue
            inside = f"{mount.path}/".startswith(f"{names.MOUNT_PATH}/")
            if mount.name == names.VOLUME or (one in chosen and inside):
                yield (
                    f"container {one.name} mounts {mount.name} at {mount.mount_path}: volume "
                    f"{names.VOLUME} and {names.MOUNT_PATH} are the daemon's; use others"
                )


def _variables(_pod: Pod, chosen: list[Container], _settings: Settings) -> Reasons:
    for one in chosen:
        if is_wrapped(one):
            continue
        for variable in one.env or []:
            if variable.name in {names.ENV_TOKEN_SHA256, names.ENV_PORT}:
                yield f"container {one.name} sets {variable.name}, which is the daemon's: rename it"


_RULES: tuple[Callable[[Pod, list[Container], Settings], Reasons], ...] = (
    _host,
    _privileged,
    _windows,
    _architecture,
    _names_taken,
    _mounts,
    _variables,
)
