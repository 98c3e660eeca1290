"""A user's own pod in, patch out: the daemon gets in beside a workload that runs as before.

Nothing of the pod but what the daemon needs is touched: its restart policy, probes, hooks, grace,
account and resources are its owner's, and so is whatever other injectors have put there. As `inject`,
it may be asked twice in one admission, and the nonce is made anew each time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sandman import grants, names
from webhook import checks, commands, delivery, fitness, inject, patch, podview
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.entrypoints import Entrypoint
    from sandman.service.keyring import Keyring
    from webhook.inject import Settings
    from webhook.patch import Operation
    from webhook.podview import Container, Pod

_WRITTEN = (
    names.ANNOTATION_NONCE,
    names.ANNOTATION_KEY_ID,
    names.ANNOTATION_INJECTED,
    names.ANNOTATION_CONTAINERS,
)


def attach(
    document: Mapping[str, Any], namespace: str, keyring: Keyring, nonce: str, settings: Settings
) -> tuple[Operation, ...]:
    """The patch that puts the daemon into a workload's pod.

    Args:
        document: the pod's JSON values.
        namespace: of the request.
        keyring: the keys now.
        nonce: new for this call.
        settings: what the installation says.

    Raises:
        RefusedError: it cannot be done; the pod shall run as it is.
    """
    pod = podview.parse(document)
    checks.check_namespace(namespace, settings.control_plane)
    chosen = fitness.targets(pod)
    if not chosen:
        raise RefusedError("the pod has no containers")
    fitness.check(pod, chosen, settings)
    ports = fitness.ports(pod, chosen, settings.daemon_port)
    operations = _metadata(pod, keyring, nonce, ports, settings)
    operations += _delivery(pod, document, chosen[0], settings)
    found = commands.told(pod.annotations)
    for index, container in enumerate(pod.containers):
        if container in chosen:
            given = inject.credential(
                keyring, namespace, grants.container_nonce(nonce, container.name)
            )
            path = ("spec", "containers", index)
            operations += inject.environment(container, given.digest, ports[container.name], *path)
            operations += inject.mount(container, *path)
            operations += _command(container, found, *path)
    return tuple(operations)


def left(document: Mapping[str, Any], why: str) -> tuple[Operation, ...]:
    """The patch that says on the pod why it runs without the daemon.

    What only an injected pod bears is taken away: whoever finds it there believes it.
    """
    annotations = podview.parse(document).metadata.annotations
    gone = [
        patch.remove("metadata", "annotations", name)
        for name in _WRITTEN
        if name in (annotations or {})
    ]
    wanted = {names.ANNOTATION_NOT_INJECTED: why}
    return (*patch.merge(annotations, wanted, "metadata", "annotations"), *gone)


def _metadata(
    pod: Pod, keyring: Keyring, nonce: str, ports: Mapping[str, int], settings: Settings
) -> list[Operation]:
    annotations = {
        names.ANNOTATION_NONCE: nonce,
        names.ANNOTATION_KEY_ID: keyring.current,
        names.ANNOTATION_INJECTED: settings.version,
        names.ANNOTATION_CONTAINERS: json.dumps(ports, separators=(",", ":")),
    }
    operations = patch.merge(pod.metadata.annotations, annotations, "metadata", "annotations")
    if names.ANNOTATION_NOT_INJECTED in pod.annotations:
        operations.append(patch.remove("metadata", "annotations", names.ANNOTATION_NOT_INJECTED))
    return operations


def _delivery(
    pod: Pod, document: Mapping[str, Any], first: Container, settings: Settings
) -> list[Operation]:
    if delivery.choose(pod, settings.workload_delivery) == names.DELIVERY_IMAGE:
        return delivery.by_image(pod, settings.daemon_image)
    return delivery.by_copy(pod, document["spec"], settings.daemon_image, for_container=first)


def _command(
    container: Container, found: Mapping[str, Entrypoint], *path: str | int
) -> list[Operation]:
    if commands.is_wrapped(container):
        return []
    wrapped = commands.wrap(container, found)
    operations = [patch.put(list(wrapped.command), *path, "command")]
    if wrapped.args is not None:
        operations.append(patch.put(list(wrapped.args), *path, "args"))
    return operations
