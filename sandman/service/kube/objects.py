"""Typed subsets of the Kubernetes objects that Sandman reads.

Only the fields named here are decoded; everything else is skipped, which makes a list of 12,000 pods cheap. So
an object read this way must never be written back whole: write with a patch, or read it as raw JSON (`resources.raw`).
All are frozen, since caches share them, and most are kept out of the garbage collector: they cannot form cycles.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_UPPER = {"ip": "IP", "id": "ID", "ips": "IPs"}


def _wire_name(name: str) -> str:
    """`pod_ip` → `podIP`, `image_id` → `imageID`, `node_name` → `nodeName`."""
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(_UPPER.get(part, part.capitalize()) for part in rest)


class Object(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    gc=False,
    rename=_wire_name,
):
    """Base of all: camelCase on the wire, absent means default."""


# --- metadata ------------------------------------------------------------------------------------


class OwnerReference(Object, frozen=True):
    """Who made it, and whose deletion takes it along."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Object, frozen=True):
    """Name, identity, version, labels. `resource_version` is opaque: compare for equality only."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None

    def label(self, key: str, default: str = "") -> str:
        """The label's value, or `default`."""
        return (self.labels or {}).get(key, default)

    def annotation(self, key: str, default: str = "") -> str:
        """The annotation's value, or `default`."""
        return (self.annotations or {}).get(key, default)


class ListMeta(Object, frozen=True):
    """Version of a list, and the token of its next page."""

    resource_version: str = ""
    continue_: str = ""
    remaining_item_count: int | None = None


class KubeObject(Object, frozen=True):
    """An object with metadata."""

    metadata: ObjectMeta = ObjectMeta()


class ListOf(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list as the server sends it (`items` may be null)."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class StatusCause(Object, frozen=True):
    """One field at fault."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Object, frozen=True):
    """What a Status is about."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class Status(Object, frozen=True):
    """The server's word on a failed call, also inside of a watch stream."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class Condition(Object, frozen=True):
    """One condition of a pod, node or deployment."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


def condition_is_true(conditions: list[Condition] | None, kind: str) -> bool:
    """Whether the condition of that type stands at `True`."""
    return any(item.type == kind and item.status == "True" for item in conditions or ())


# --- pods ----------------------------------------------------------------------------------------


class ResourceRequirements(Object, frozen=True):
    """Requests and limits as the quantities' own spelling."""

    requests: Mapping[str, str | int] | None = None
    limits: Mapping[str, str | int] | None = None


class Container(Object, frozen=True):
    """A container of a pod's specification."""

    name: str = ""
    image: str = ""
    working_dir: str = ""
    image_pull_policy: str = ""
    resources: ResourceRequirements | None = None


class SchedulingGate(Object, frozen=True):
    """What keeps a pod from being scheduled."""

    name: str = ""


class PodSpec(Object, frozen=True):
    """What the pod was asked to be."""

    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    restart_policy: str = ""
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    runtime_class_name: str | None = None
    service_account_name: str = ""
    host_network: bool = False
    scheduling_gates: list[SchedulingGate] | None = None


class StateWaiting(Object, frozen=True):
    """Why a container has not started (`ErrImagePull` …)."""

    reason: str = ""
    message: str = ""


class StateRunning(Object, frozen=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class StateTerminated(Object, frozen=True):
    """How a container ended (`OOMKilled` …)."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Object, frozen=True):
    """At most one of the three is set."""

    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(Object, frozen=True):
    """What the kubelet reports of one container."""

    name: str = ""
    image: str = ""
    image_id: str = ""
    container_id: str = ""
    ready: bool = False
    restart_count: int = 0
    resources: ResourceRequirements | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(Object, frozen=True):
    """What became of the pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = ""
    host_ip: str = ""
    qos_class: str = ""
    start_time: datetime | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(KubeObject, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet says so."""
        return condition_is_true(self.status.conditions, "Ready")


# --- nodes ---------------------------------------------------------------------------------------


class NodeSpec(Object, frozen=True):
    """Whether the node takes pods."""

    unschedulable: bool = False


class NodeImage(Object, frozen=True):
    """An image that the node holds, under all its names. The kubelet reports 50 of them by default."""

    names: list[str] | None = None
    size_bytes: int = 0


class NodeAddress(Object, frozen=True):
    """One address of a node."""

    type: str = ""
    address: str = ""


class NodeInfo(Object, frozen=True):
    """Versions of what runs on the node."""

    container_runtime_version: str = ""
    kubelet_version: str = ""
    kernel_version: str = ""
    os_image: str = ""
    architecture: str = ""


class NodeStatus(Object, frozen=True):
    """State of the node."""

    images: list[NodeImage] | None = None
    conditions: list[Condition] | None = None
    addresses: list[NodeAddress] | None = None
    allocatable: Mapping[str, str | int] | None = None
    node_info: NodeInfo = NodeInfo()


class Node(KubeObject, frozen=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet is heard of."""
        return condition_is_true(self.status.conditions, "Ready")


# --- the rest ------------------------------------------------------------------------------------


class DeploymentSpec(Object, frozen=True, gc=True):
    """`template` and `selector` are raw JSON: Sandman copies them, the server judges them."""

    replicas: int | None = None
    paused: bool = False
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None


class DeploymentStatus(Object, frozen=True):
    """How far the Deployment's controller got."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: list[Condition] | None = None


class Deployment(KubeObject, frozen=True, gc=True):
    """A Deployment: a pool."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class LeaseSpec(Object, frozen=True):
    """Who holds it. The times are MicroTime strings (`micro_time`): others' clocks mean nothing."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True):
    """A lock or a heartbeat."""

    spec: LeaseSpec = LeaseSpec()


class Secret(KubeObject, frozen=True):
    """A Secret; `data` comes and goes as base64, here it is bytes."""

    type: str = ""
    immutable: bool | None = None
    data: Mapping[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data or {})})"


class ObjectReference(Object, frozen=True):
    """What an event is about."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class Event(KubeObject, frozen=True):
    """An event. `event_time` alone is set by newer reporters, `last_timestamp` by older ones."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


def micro_time(moment: datetime) -> str:
    """A time as the API's MicroTime: always six digits, or the server refuses it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
