"""How the daemon gets into the pod: an image volume, or an init container that copies itself.

Pure. An image volume costs no container and one copy a node, but a cluster that does not know it
drops it in silence, and some runtimes cannot mount it; the copy works everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandman import names
from webhook import patch
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from webhook.patch import Operation
    from webhook.podview import Container, Pod, Volume

SIZE_LIMIT = "128Mi"
"""Of the emptyDir. The daemon takes some 30 MiB; the kubelet evicts a pod that is over the limit,
so there is room for a larger daemon, and none for a disk full."""
DAEMON_UID = 65532
"""The user of the daemon's image ("nonroot" by custom): the copy needs no right over anything."""
COPY_COMMAND = ("/bin/python3", "-I", "-S", "/app", "copy", names.MOUNT_PATH)

_COPIED = ("cpu", "memory", "ephemeral-storage")
"""Resources that an init container asks for as the container that it is for; devices it has no use for."""
_SMALL = {"cpu": "50m", "memory": "64Mi"}
_BURST = {"cpu": "500m", "memory": "64Mi"}
"""The copy is 50 ms of work. The request is small, since a pod reserves the larger of init and main
containers for all its life; the limit lets it finish at once. No limit of ephemeral storage: where the
main container has none, the kubelet would take ours for the whole pod's."""


def choose(pod: Pod, default: str) -> str:
    """The pod's own wish by annotation, else the default.

    Raises:
        RefusedError: the annotation asks for something that is not there.
    """
    wish = pod.annotations.get(names.ANNOTATION_DELIVERY, default)
    if wish not in {names.DELIVERY_IMAGE, names.DELIVERY_INIT}:
        raise RefusedError(
            f"annotation {names.ANNOTATION_DELIVERY} is {wish!r}: write {names.DELIVERY_IMAGE} or "
            f"{names.DELIVERY_INIT}, or leave it out"
        )
    return wish


def by_image(pod: Pod, daemon_image: str) -> list[Operation]:
    """The daemon's image as a read-only volume.

    Raises:
        RefusedError: the volume's or the init container's name is taken by something else.
    """
    if _copier(pod) is not None:
        raise _reserved(f"init container {names.INIT_CONTAINER}")
    source = {"reference": daemon_image, "pullPolicy": "IfNotPresent"}
    return _volume(pod, "image", source)


def by_copy(
    pod: Pod, spec: dict[str, Any], daemon_image: str, *, for_container: Container | None = None
) -> list[Operation]:
    """An empty directory, and before all others an init container that copies the daemon there.

    Args:
        pod: the view of the pod.
        spec: the pod's raw specification, to compare an init container of ours with what it must be.
        daemon_image: the image that holds the daemon.
        for_container: the container of a workload that it is for; None: the pod is a pool's.

    Raises:
        RefusedError: the volume's or the init container's name is taken by something else.
    """
    operations = _volume(pod, "emptyDir", {"sizeLimit": SIZE_LIMIT})
    wanted = copier(daemon_image)
    resources = _for_pool(pod) if for_container is None else _as_of(for_container)
    if resources:
        wanted["resources"] = resources
    index = _copier(pod)
    if index is None:
        return operations + patch.prepend(
            pod.spec.init_containers, wanted, "spec", "initContainers"
        )
    present = spec["initContainers"][index]
    if present.get("command") != wanted["command"]:
        raise _reserved(f"init container {names.INIT_CONTAINER}")
    return operations + [
        patch.put(value, "spec", "initContainers", index, key)
        for key, value in wanted.items()
        if not _covers(present.get(key), value)
    ]


def copier(daemon_image: str) -> dict[str, Any]:
    """The init container: restricted in full, whatever the pod's own security context says."""
    return {
        "name": names.INIT_CONTAINER,
        "image": daemon_image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(COPY_COMMAND),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": DAEMON_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": names.VOLUME, "mountPath": names.MOUNT_PATH}],
    }


def is_guaranteed(pod: Pod) -> bool:
    """Whether the pod without our container has the quality-of-service class Guaranteed."""
    others = [one for one in pod.all_containers if one.name != names.INIT_CONTAINER]
    return bool(others) and all(_is_guaranteed(one) for one in others)


def _for_pool(pod: Pod) -> dict[str, Any]:
    # Requests below limits would take the class Guaranteed from a pod that has it.
    requests = _BURST if is_guaranteed(pod) else _SMALL
    return {"requests": dict(requests), "limits": dict(_BURST)}


def _as_of(container: Container) -> dict[str, Any]:
    """What that container asks for.

    It runs after the copy, and a pod's sum is the larger of both: so the pod costs what it did, keeps its
    class, and no LimitRange or quota of the namespace refuses the one that does not refuse the other. The
    copy takes 50 ms of a whole core, and has done in 8 MiB what it does in 64.
    """
    found = container.resources
    given = {"requests": found.requests, "limits": found.limits} if found is not None else {}
    kept = {
        kind: {name: values[name] for name in _COPIED if name in values}
        for kind, values in given.items()
        if values
    }
    return {kind: values for kind, values in kept.items() if values}


def _is_guaranteed(container: Container) -> bool:
    if container.resources is None or not container.resources.limits:
        return False
    limits = container.resources.limits
    # The API server fills in requests that are left out, and writes equal quantities alike.
    asked = container.resources.requests or {}
    return all(name in limits and asked.get(name) == limits[name] for name in ("cpu", "memory"))


def _copier(pod: Pod) -> int | None:
    found = pod.spec.init_containers or []
    return next((i for i, one in enumerate(found) if one.name == names.INIT_CONTAINER), None)


def _volume(pod: Pod, kind: str, source: dict[str, Any]) -> list[Operation]:
    volumes = pod.spec.volumes
    found = [(i, one) for i, one in enumerate(volumes or []) if one.name == names.VOLUME]
    if not found:
        return patch.append(volumes, [{"name": names.VOLUME, kind: source}], "spec", "volumes")
    index, volume = found[0]
    present = _source(volume, kind)
    if present is None:
        raise _reserved(f"volume {names.VOLUME}")
    return [] if present == source else [patch.put(source, "spec", "volumes", index, kind)]


def _source(volume: Volume, kind: str) -> dict[str, Any] | None:
    return volume.image if kind == "image" else volume.empty_dir


def _reserved(what: str) -> RefusedError:
    return RefusedError(
        f"{what} is in the pod already and is not the one that injection makes: the name is "
        "reserved, rename yours or remove it"
    )


def _covers(present: Any, wanted: Any) -> bool:  # noqa: ANN401 - JSON values
    """Whether everything wanted is there; defaults that the API server added do not disturb."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(
            key in present and _covers(present[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(present, list)
            and len(present) == len(wanted)
            and all(_covers(one, other) for one, other in zip(present, wanted, strict=True))
        )
    return bool(present == wanted)
