"""Kubernetes objects → the gateway's values. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import structlog

from gateway import changed, leases, sizing, steps
from gateway.model import (
    NO_BOUNDS,
    WAITING_STATES,
    Bounds,
    Broken,
    Instance,
    PoolSpec,
    Purpose,
    Terms,
)
from gateway.provider import endings
from sandman import names
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gateway.changed import Changes
    from gateway.steps import Steps
    from sandman.service.kube.objects import (
        ContainerStatus,
        Deployment,
        Node,
        ObjectMeta,
        Pod,
        ResourceRequirements,
    )


log = structlog.get_logger()

RESIZE_CONDITIONS = {"PodResizePending", "PodResizeInProgress"}
EVERYBODY = "*"
"""In the annotation with a pool's tenants."""
MAX_DIGITS = 9
"""Of a pool's maximum; a cluster has fewer pods by far."""


def instance(pod: Pod) -> Instance:
    """A pod of a pool, as the gateway sees it."""
    meta = pod.metadata
    main = main_status(pod)
    claim = load_object(meta.annotation(names.ANNOTATION_CLAIM))
    lease = load_object(meta.annotation(names.ANNOTATION_LEASE))
    is_swapping = bool(claim.get("previous_boot_id")) and (main is None or not main.restart_count)
    started_at = None if is_swapping else _started_at(main)
    expires_at = leases.ends_at(lease, started_at)
    prepared = load_object(meta.annotation(names.ANNOTATION_PREPARED))
    told = endings.of_record(load_object(meta.annotation(names.ANNOTATION_ENDED)))
    return Instance(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        pool=meta.label(names.LABEL_POOL),
        state=meta.label(names.LABEL_STATE),
        tenant=meta.label(names.LABEL_TENANT) or None,
        run=meta.label(names.LABEL_RUN) or None,
        key=meta.label(names.LABEL_KEY) or None,
        tier=meta.label(names.LABEL_TIER) or None,
        image=pod.spec.containers[0].image if pod.spec.containers else "",
        image_digest=_digest(main, swapped=bool(claim.get("previous_boot_id"))),
        node=pod.spec.node_name or None,
        address=pod.status.pod_ip or None,
        nonce=meta.annotation(names.ANNOTATION_NONCE),
        key_id=meta.annotation(names.ANNOTATION_KEY_ID),
        claim_id=_text(claim.get("id")),
        previous_boot_id=_text(claim.get("previous_boot_id")),
        swapped=claim.get("swapped") is True,
        network=meta.label(names.LABEL_NETWORK) or names.NETWORK_NONE,
        network_changes=network_changes(meta),
        reservation=meta.label(names.LABEL_RESERVATION) or None,
        prepared=_text(prepared.get("hash")),
        prepared_boot_id=_text(prepared.get("boot_id")),
        created_at=_seconds(meta.creation_timestamp) or 0.0,
        started_at=_seconds(pod.status.start_time),
        expires_at=expires_at,
        terms=terms_of(lease),
        renewed=meta.annotation(names.ANNOTATION_RENEWED),
        request=load_object(meta.annotation(names.ANNOTATION_REQUEST)),
        bounds=_bounds(pod.spec.containers[0].resources if pod.spec.containers else None),
        actual=_actual(main),
        resize=_resize(pod),
        hold=_hold(pod),
        qos=pod.status.qos_class,
        running=main is not None and main.state is not None and main.state.running is not None,
        deleting=meta.deletion_timestamp is not None,
        waiting=_waiting(pod, main),
        ending=told or endings.of_pod(pod, expires_at) or endings.of_doomed(pod),
    )


def network_changes(meta: ObjectMeta) -> Changes | None:
    """Which egress profiles a pod's sandbox had before; None: no other than it has."""
    text = meta.annotation(names.ANNOTATION_NETWORK_CHANGED)
    return changed.of_record(load_object(text) if text else None)


def pool(deployment: Deployment) -> PoolSpec | None:
    """A pool's Deployment; None when its template has no container, which the server never admits."""
    meta = deployment.metadata
    template = deployment.spec.template or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    image = containers[0].get("image")
    if not image:
        return None
    broken = _broken(load_object(meta.annotation(names.ANNOTATION_BROKEN)))
    return PoolSpec(
        namespace=meta.namespace,
        name=meta.label(names.LABEL_POOL),
        image=image,
        swap=meta.annotation(names.ANNOTATION_POOL_SWAP, "true") == "true",
        wanted=deployment.spec.replicas if deployment.spec.replicas is not None else 1,
        most=_pods(meta.annotation(names.ANNOTATION_POOL_MAX)),
        template=template,
        least=_pods(meta.annotation(names.ANNOTATION_POOL_MIN)),
        network=meta.annotation(names.ANNOTATION_POOL_NETWORK) or names.NETWORK_NONE,
        networks=_texts(meta.annotation(names.ANNOTATION_POOL_NETWORKS)),
        prepare=_steps(meta.annotation(names.ANNOTATION_POOL_PREPARE)),
        bounds=sizing.of_template(template),
        resize=meta.annotation(names.ANNOTATION_POOL_RESIZE) == "true",
        node_class=_node_class(deployment),
        choose=meta.annotation(names.ANNOTATION_POOL_CHOOSE) == "true",
        evaluates=meta.annotation(names.ANNOTATION_POOL_PURPOSE) == Purpose.EVAL,
        deployment=meta.name,
        uid=meta.uid,
        broken=broken,
        stopped=broken is not None and broken.template == fingerprint(template),
        tenants=_tenants(meta, template),
        keeps_images=containers[0].get("imagePullPolicy") in {"IfNotPresent", "Never"},
    )


def _pods(text: str) -> int | None:
    """A number of pods in an annotation."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def _steps(text: str) -> Steps:
    """The steps in an annotation; none when they cannot be read, which is told in the log."""
    if not text:
        return steps.NO_STEPS
    try:
        return steps.parse(json.loads(text), names.ANNOTATION_POOL_PREPARE)
    except (ValueError, RecursionError, SandmanError) as error:
        log.warning("a pool's steps cannot be read", error=str(error))
        return steps.NO_STEPS


def fingerprint(template: Mapping[str, object]) -> str:
    """What a pool's template is known by."""
    whole = json.dumps(template, sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _tenants(meta: ObjectMeta, template: Mapping[str, Any]) -> frozenset[str] | None:
    """Whose pool it is. One with pull secrets is nobody's until somebody says whose: a placeholder takes any
    image, so that whoever may use it may use what its secrets open."""
    told = meta.annotation(names.ANNOTATION_POOL_TENANTS, "-")
    if told == "-":
        has_secrets = (template.get("spec") or {}).get("imagePullSecrets")
        return frozenset() if has_secrets else None
    if told.strip() == EVERYBODY:
        return None
    return _texts(told)


def _texts(text: str) -> frozenset[str]:
    """The parts of an annotation that is separated by commas."""
    return frozenset(one.strip() for one in text.split(",") if one.strip())


def _broken(told: Mapping[str, object]) -> Broken | None:
    """What stopped the pool; None when the annotation is absent or was broken by somebody."""
    reason, replicas, template = (told.get(key) for key in ("reason", "replicas", "template"))
    is_number = type(replicas) is int and 0 <= replicas < 10**MAX_DIGITS
    if not isinstance(reason, str) or not isinstance(template, str) or not is_number:
        return None
    return Broken(reason, leases.number(told.get("at")) or 0.0, replicas, template)  # type: ignore[arg-type]


def is_closed(node: Node) -> bool:
    """Whether a node takes no new claims: cordoned, or its kubelet is not heard of."""
    return node.spec.unschedulable or not node.is_ready


def images(node: Node) -> tuple[str, ...]:
    """Names of the images that a node says it holds: 50 of them with the kubelet's own settings, the largest
    first."""
    return tuple(name for image in node.status.images or () for name in image.names or ())


def is_lost(node: Node) -> bool:
    """Whether its kubelet is not heard of, as the node controller says after 40 to 50 s."""
    return any(
        one.type == "Ready" and one.status == "Unknown" for one in node.status.conditions or ()
    )


def main_status(pod: Pod) -> ContainerStatus | None:
    """Status of the container that the daemon runs in: the first of the specification."""
    name = pod.spec.containers[0].name if pod.spec.containers else ""
    return next((s for s in pod.status.container_statuses or () if s.name == name), None)


def load_object(text: str) -> Mapping[str, object]:
    """The JSON object in an annotation; empty when it is absent or was broken by somebody."""
    try:
        value = json.loads(text, parse_constant=_refuse) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _refuse(constant: str) -> object:
    """NaN and Infinity, which Python reads and no other JSON reader does."""
    raise ValueError(constant)


def _node_class(deployment: Deployment) -> str | None:
    """The annotation's, else the label by which the template selects nodes."""
    selector = ((deployment.spec.template or {}).get("spec") or {}).get("nodeSelector") or {}
    given = deployment.metadata.annotation(names.LABEL_NODE_CLASS)
    return given or _text(selector.get(names.LABEL_NODE_CLASS)) or None


def _bounds(resources: ResourceRequirements | None) -> Bounds:
    if resources is None:
        return NO_BOUNDS
    return sizing.of_resources(resources.requests, resources.limits)


def _actual(main: ContainerStatus | None) -> Bounds | None:
    return None if main is None or main.resources is None else _bounds(main.resources)


def _resize(pod: Pod) -> str:
    """What the kubelet says of a resize: the reason of a condition, or `InProgress`."""
    for condition in pod.status.conditions or ():
        if condition.status == "True" and condition.type in RESIZE_CONDITIONS:
            return condition.reason or "InProgress"
    return ""


def _hold(pod: Pod) -> int | None:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    return gates.index(names.GATE_REFILL) if names.GATE_REFILL in gates else None


def _waiting(pod: Pod, main: ContainerStatus | None) -> tuple[str, str] | None:
    """Why the container does not run; while it waits for others of its pod (the daemon's copy) that cannot
    start, why they do not."""
    own = _state_of(main)
    if own is None or own[0] not in WAITING_STATES:
        for status in pod.status.init_container_statuses or ():
            other = _state_of(status)
            if other is not None and other[0] in WAITING_STATES:
                return other
    return own


def _state_of(status: ContainerStatus | None) -> tuple[str, str] | None:
    if status is None or status.state is None or status.state.waiting is None:
        return None
    return status.state.waiting.reason, status.state.waiting.message


def _digest(main: ContainerStatus | None, *, swapped: bool) -> str | None:
    """The image's digest. After a swap the status tells of the old container until the restart has
    been counted."""
    if main is None or not main.image_id or (swapped and main.restart_count == 0):
        return None
    return main.image_id


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _started_at(main: ContainerStatus | None) -> float | None:
    running = main.state.running if main is not None and main.state is not None else None
    return None if running is None else _seconds(running.started_at)


def terms_of(lease: Mapping[str, object]) -> Terms:
    """What was agreed on, as the claim wrote it."""
    return Terms(
        ttl_s=leases.number(lease.get("ttl_s")),
        idle_s=leases.number(lease.get("idle_s")),
        max_s=leases.number(lease.get("max_s")),
        of_run=lease.get("run") is True,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
