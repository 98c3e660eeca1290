"""A pod and its node as the API server has them at this moment: what a certificate says of the outside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gateway import quantities
from gateway.facts import UNKNOWN, Facts, NodeFacts
from gateway.model import Amounts
from gateway.provider import pods
from gateway.provider.kubernetes import translate
from sandman import names
from sandman.service import kube

if TYPE_CHECKING:
    from gateway.model import Instance


class Witness:
    """Asks the API server, each time anew: a watch may be behind."""

    def __init__(self, api: kube.Kube) -> None:
        self._api = api

    async def facts(self, instance: Instance) -> Facts:
        """What is known of exactly this pod; nothing of one that is gone.

        Raises:
            SandmanError: the API server does not tell.
        """
        try:
            return await self._facts(instance)
        except kube.KubeError as error:
            raise translate(error) from error

    async def _facts(self, instance: Instance) -> Facts:
        place = instance.place
        name = instance.name if place is None else place.pod
        try:
            pod = await self._api.get(kube.PODS, name, namespace=instance.namespace)
        except kube.NotFoundError:
            return UNKNOWN
        if place is None and pod.metadata.uid != instance.uid:
            return UNKNOWN
        node: kube.Node | None = None
        if pod.spec.node_name:
            with contextlib.suppress(kube.NotFoundError):
                node = await self._api.get(kube.NODES, pod.spec.node_name)
        return of_objects(pod, node, None if place is None else place.container)


def of_objects(pod: kube.Pod, node: kube.Node | None, container: str | None = None) -> Facts:
    """What these say of a container of the pod; None: the one that the daemon runs in."""
    found = [one for one in pod.status.container_statuses or () if one.name == container]
    main = pods.main_status(pod) if container is None else next(iter(found), None)
    state = main.state if main is not None else None
    started = state.running.started_at if state is not None and state.running is not None else None
    return Facts(
        image_digest=(main.image_id if main is not None else "") or None,
        qos=pod.status.qos_class or None,
        runtime_class=pod.spec.runtime_class_name,
        restarts=None if main is None else main.restart_count,
        network_changes=pods.network_changes(pod.metadata) if container is None else None,
        container_started_at=None if started is None else started.timestamp(),
        node=None if node is None else of_node(node),
    )


def of_node(node: kube.Node) -> NodeFacts:
    """What its kubelet says of it."""
    info, allocatable = node.status.node_info, node.status.allocatable or {}
    return NodeFacts(
        name=node.metadata.name,
        node_class=node.metadata.label(names.LABEL_NODE_CLASS) or None,
        kernel=info.kernel_version,
        os=info.os_image,
        architecture=info.architecture,
        runtime=info.container_runtime_version,
        kubelet=info.kubelet_version,
        allocatable=Amounts(
            quantities.millicores(allocatable.get("cpu")),
            quantities.bytes_of(allocatable.get("memory")),
        ),
    )
