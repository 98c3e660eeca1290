"""Pod in, patch out: the one decision of the webhook, pure but for the nonce that is handed in.

It may be asked twice in one admission (`reinvocationPolicy: IfNeeded`) and again for a pod that was
copied from an injected one, so it looks at what is there and adds what is missing. The nonce is made
anew each time, whatever came in: who copies another pod's nonce would have its token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandman import grants, names
from webhook import checks, delivery, patch, podview
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.service.keyring import Keyring
    from webhook.patch import Operation
    from webhook.podview import Container, Pod

DEFAULT_GRACE_S = 30
"""What the API server writes where the template says nothing."""
GRACE_S = 1
"""Seconds between TERM and KILL of a sandbox: the daemon ends at once, and a swap waits for it."""
MAX_GRACE_S = 5
"""The most that a template can ask for: each swap of an image could wait as long."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What injection needs to know of the installation.

    Args:
        daemon_image: reference of the image that holds the daemon, best by digest.
        version: written on the pod, to tell later what injected it.
        default_delivery: `image` or `init`, for pods that do not say.
        workload_delivery: the same for workloads.
        architecture: what the daemon is built for, in Kubernetes' words.
        daemon_port: where the daemon listens; in a pod with several of them, the first.
        control_plane: the namespace of Sandman itself.
    """

    daemon_image: str
    version: str
    default_delivery: str = names.DELIVERY_IMAGE
    workload_delivery: str = names.DELIVERY_INIT
    architecture: str = "amd64"
    daemon_port: int = names.DAEMON_PORT
    control_plane: str = names.SYSTEM_NAMESPACE


@dataclass(frozen=True, slots=True)
class Credential:
    """What the pod is given to know its caller by; the token itself is nowhere in it."""

    key_id: str
    nonce: str
    digest: str


def credential(keyring: Keyring, namespace: str, nonce: str) -> Credential:
    """The credential of a pod in this namespace, made with the current key."""
    token = grants.daemon_token(keyring.daemon[keyring.current], namespace, nonce)
    return Credential(keyring.current, nonce, grants.token_digest(token))


def wanted(document: object) -> str | None:
    """What the pod's label asks for: to be a pool's pod, a workload with a daemon, or nothing."""
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        return None
    labels = document["metadata"].get("labels")
    value = labels.get(names.LABEL_INJECT) if isinstance(labels, dict) else None
    return value if value in (names.INJECT_POOL, names.INJECT_WORKLOAD) else None


def inject(
    document: Mapping[str, Any], namespace: str, given: Credential, settings: Settings
) -> tuple[Operation, ...]:
    """The patch that makes a pool pod of the pod.

    Args:
        document: the pod's JSON values.
        namespace: of the request; the pod itself may not say.
        given: nonce and digest, new for this call.
        settings: what the installation says.

    Raises:
        RefusedError: the pod must not or cannot be a sandbox.
    """
    pod = podview.parse(document)
    checks.check_namespace(namespace, settings.control_plane)
    target = _target(pod)
    checks.check(pod, target)
    return (
        *_metadata(pod, given, settings),
        *_delivery(pod, document, settings),
        *_spec(pod),
        *_container(target, 0, given, settings),
    )


def _target(pod: Pod) -> Container:
    """The container that becomes the sandbox: the first, on which policies and claims rely as well."""
    if not pod.containers:
        raise RefusedError("the pod has no containers: a sandbox needs one")
    return pod.containers[0]


def _metadata(pod: Pod, given: Credential, settings: Settings) -> list[Operation]:
    annotations = {
        names.ANNOTATION_NONCE: given.nonce,
        names.ANNOTATION_KEY_ID: given.key_id,
        names.ANNOTATION_INJECTED: settings.version,
    }
    operations = patch.merge(pod.metadata.annotations, annotations, "metadata", "annotations")
    # A cold pod comes leased from the gateway: a state that is there is never changed.
    if names.LABEL_POOL in pod.labels and names.LABEL_STATE not in pod.labels:
        operations.append(patch.put(names.STATE_FREE, "metadata", "labels", names.LABEL_STATE))
    return operations


def _delivery(pod: Pod, document: Mapping[str, Any], settings: Settings) -> list[Operation]:
    if delivery.choose(pod, settings.default_delivery) == names.DELIVERY_IMAGE:
        return delivery.by_image(pod, settings.daemon_image)
    return delivery.by_copy(pod, document["spec"], settings.daemon_image)


def _spec(pod: Pod) -> list[Operation]:
    spec = pod.spec
    wanted: dict[str, tuple[object, object]] = {
        # A sandbox never comes back blank: when its first process ends, the pod has failed.
        "restartPolicy": (spec.restart_policy, "Never"),
        "automountServiceAccountToken": (spec.automount_service_account_token, False),
        # A variable for each Service of the namespace would leak names and cost start time.
        "enableServiceLinks": (spec.enable_service_links, False),
        "terminationGracePeriodSeconds": (
            spec.termination_grace_period_seconds,
            _grace(spec.termination_grace_period_seconds),
        ),
    }
    return [
        patch.put(value, "spec", name)
        for name, (present, value) in wanted.items()
        if present is None or present != value
    ]


def _grace(present: int | None) -> int:
    return GRACE_S if present in {None, DEFAULT_GRACE_S} else min(present or 0, MAX_GRACE_S)


def _container(
    container: Container, index: int, given: Credential, settings: Settings
) -> list[Operation]:
    path = ("spec", "containers", index)
    operations = environment(container, given.digest, settings.daemon_port, *path)
    if container.command != list(names.DAEMON_COMMAND):
        operations.append(patch.put(list(names.DAEMON_COMMAND), *path, "command"))
    operations += mount(container, *path)
    # A placeholder's own program is not run; a container's own restart policy would outdo the pod's.
    unwanted = {
        "args": container.args,
        "restartPolicyRules": container.restart_policy_rules,
        "restartPolicy": container.restart_policy,
    }
    return operations + [
        patch.remove(*path, name) for name, present in unwanted.items() if present is not None
    ]


def mount(container: Container, *path: str | int) -> list[Operation]:
    """The daemon's volume in this container."""
    if any(one.name == names.VOLUME for one in container.volume_mounts or []):
        return []
    wanted = {"name": names.VOLUME, "mountPath": names.MOUNT_PATH, "readOnly": True}
    return patch.append(container.volume_mounts, [wanted], *path, "volumeMounts")


def environment(container: Container, digest: str, port: int, *path: str | int) -> list[Operation]:
    """The daemon's settings in this container."""
    present = container.env or []
    # The port also where it is the default: an image's own ENV of that name would hide the daemon.
    wanted = {
        names.ENV_TOKEN_SHA256: digest,
        names.ENV_PORT: str(port),
    }
    # Every entry of a name is replaced: of two with one name the last would count.
    operations = [
        patch.put_item({"name": one.name, "value": wanted[one.name]}, *path, "env", i)
        for i, one in enumerate(present)
        if one.name in wanted and (one.value, one.value_from) != (wanted[one.name], None)
    ]
    there = {one.name for one in present}
    missing = [
        {"name": name, "value": value} for name, value in wanted.items() if name not in there
    ]
    return operations + patch.append(container.env, missing, *path, "env")
