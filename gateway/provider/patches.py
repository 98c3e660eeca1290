"""What is written to the API server. Pure.

The claim is one JSON patch whose `test` operations make it atomic on the server: of two that want
the same placeholder one gets 422. It touches nothing that the kubelet writes, so a status update in
between does no harm, as it would with resourceVersion.
"""

from __future__ import annotations

import copy
import json
import math
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway import changed, sizing
from gateway.leases import renewal as renewal_text
from gateway.model import NO_AMOUNTS
from gateway.provider import affinity
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Assignment, Broken, Ending, Instance, Owner, PoolSpec

CLOCK_SLACK_S = 60.0
"""Added to the kubelet's deadline, so that a node whose clock is up to a minute ahead ends no sandbox
early. New calls are refused from its end on (`routes.forward`); only calls in flight go on into the slack.
A pod that is there after it is deleted by the `sweeper`."""

EVENT_MAX = 1024
"""Characters of an event's message; the API server takes no more."""

Operation = dict[str, Any]

UNTRACKED: Operation = {"op": "add", "path": "/metadata/managedFields", "value": [{}]}
"""No record of who wrote which field (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields):
nobody applies to a placeholder, and to keep the record up took a ninth of the API server's processor while sandboxes came and
went (docs/benchmarks.md). Once it is cleared, no write but an apply begins it anew."""


def claim(instance: Instance, assignment: Assignment, now: float) -> list[Operation]:
    """The patch that takes a free placeholder, or one that was prepared for this.

    Args:
        instance: the placeholder.
        assignment: what to write on it.
        now: seconds since the epoch.
    """
    age = max(0.0, now - (instance.started_at or now))
    operations = [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("test", _label(names.LABEL_STATE), instance.state),
        _operation("test", "/metadata/deletionTimestamp", None),
    ]
    is_free = instance.state == names.STATE_FREE
    if is_free:
        # Out of the selector and its own no more, the ReplicaSet lets go of it and makes another.
        operations.append(_owned(assignment))
    elif assignment.owner is not None:
        operations.append({**_owned(assignment), "op": "add"})
    operations.append(_operation("replace", _label(names.LABEL_STATE), assignment.state))
    if is_free and instance.image != assignment.image:
        operations.append(_operation("replace", "/spec/containers/0/image", assignment.image))
    if not is_free and instance.run is not None and assignment.run is None:
        operations.append({"op": "remove", "path": _label(names.LABEL_RUN)})
    if assignment.reservation is None:
        # It can only be lowered afterwards: of a reserved one nobody knows yet how long it may live.
        deadline = _deadline(assignment, age)
        operations.append(_operation("add", "/spec/activeDeadlineSeconds", deadline))
    operations += [_operation("add", _label(k), v) for k, v in lease_labels(assignment).items()]
    operations += [
        _operation("add", _annotation(k), v) for k, v in lease_annotations(assignment).items()
    ]
    operations.append(UNTRACKED)
    return operations


def renewal(instance: Instance, age: float, now: float) -> list[Operation]:
    """The patch that writes that there was word of a sandbox's caller; not on one that ends.

    Args:
        instance: the sandbox.
        age: seconds since then.
        now: seconds since the epoch.
    """
    return [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("test", "/metadata/deletionTimestamp", None),
        _operation("test", _annotation(names.ANNOTATION_ENDED), None),
        _operation("add", _annotation(names.ANNOTATION_RENEWED), renewal_text(now, age)),
    ]


def network(instance: Instance, profile: str, now: float) -> list[Operation]:
    """The patch that gives a sandbox another egress profile, and keeps which it had; not one that ends.

    Whose watch is behind may forget one that another replica wrote a moment ago, and never that there was a change:
    the first is seen from the claim on, and nothing takes the annotation off.

    Args:
        instance: the sandbox.
        profile: the one that it is to have.
        now: seconds since the epoch.
    """
    changes = changed.changed(instance.network_changes, instance.network, profile, now)
    kept = (
        []
        if changes is None
        else [
            _operation(
                "add",
                _annotation(names.ANNOTATION_NETWORK_CHANGED),
                _json(changed.record(changes)),
            )
        ]
    )
    return [
        *_living(instance),
        _operation("add", _label(names.LABEL_NETWORK), profile),
        *kept,
    ]


def agreed(instance: Instance, request: Mapping[str, object]) -> list[Operation]:
    """The patch that writes another record of its request on a sandbox; not on one that ends."""
    return [
        *_living(instance),
        _operation("add", _annotation(names.ANNOTATION_REQUEST), _json(request)),
    ]


def _living(instance: Instance) -> list[Operation]:
    return [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("test", _label(names.LABEL_STATE), names.STATE_LEASED),
        _operation("test", "/metadata/deletionTimestamp", None),
        _operation("test", _annotation(names.ANNOTATION_ENDED), None),
    ]


def reclaim(instance: Instance, ending: Ending) -> list[Operation]:
    """The patch that ends a sandbox for a reason, if it is as it was seen: a renewal in between is more than
    anybody knew who decided."""
    version = _operation("test", "/metadata/resourceVersion", instance.version)
    return [version, *ended(instance, ending)]


def start(instance: Instance) -> list[Operation]:
    """The patch that lets a held placeholder start. Our gate alone goes: others have their owners."""
    gate = f"/spec/schedulingGates/{instance.hold}"
    return [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("test", f"{gate}/name", names.GATE_REFILL),
        {"op": "remove", "path": gate},
        UNTRACKED,
    ]


def prepared(instance: Instance, what: str, boot_id: str) -> list[Operation]:
    """The patch that says of a reserved pod that it is prepared.

    Args:
        instance: the pod.
        what: it is good for, as `steps.prepared_hash` has it.
        boot_id: the daemon start that it was done in.
    """
    told = _json({"hash": what, "boot_id": boot_id})
    return [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("test", _label(names.LABEL_STATE), names.STATE_RESERVED),
        _operation("test", "/metadata/deletionTimestamp", None),
        _operation("add", _annotation(names.ANNOTATION_PREPARED), told),
    ]


def ended(instance: Instance, ending: Ending) -> list[Operation]:
    """The patch that writes why a sandbox ends."""
    told: dict[str, object] = {"reason": ending.reason, "detail": ending.detail}
    if ending.at is not None:
        told["at"] = round(ending.at, 3)
    return [
        _operation("test", "/metadata/uid", instance.uid),
        _operation("add", _annotation(names.ANNOTATION_ENDED), _json(told)),
    ]


def stopped(broken: Broken) -> dict[str, Any]:
    """The merge patch that stops a pool."""
    told = {
        "reason": broken.reason,
        "at": round(broken.at, 3),
        "replicas": broken.replicas,
        "template": broken.template,
    }
    return {
        "metadata": {"annotations": {names.ANNOTATION_BROKEN: _json(told)}},
        "spec": {"replicas": 0},
    }


def restarted(spec: PoolSpec) -> dict[str, Any]:
    """The merge patch that starts a stopped pool again."""
    patch: dict[str, Any] = {"metadata": {"annotations": {names.ANNOTATION_BROKEN: None}}}
    if spec.broken is not None and not spec.wanted:
        patch["spec"] = {"replicas": spec.broken.replicas}
    return patch


def stop_event(spec: PoolSpec, broken: Broken) -> dict[str, Any]:
    """The event that tells of a pool's stop, and what a person does about it."""
    where = f"kubectl -n {spec.namespace}"
    close = (
        f"change its template, or: {where} annotate deployment {spec.deployment} "
        f"{names.ANNOTATION_BROKEN}- && {where} scale deployment {spec.deployment} "
        f"--replicas={broken.replicas}"
    )
    room = EVENT_MAX - len(close) - len(". To start it again ")
    moment = datetime.fromtimestamp(broken.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {
            "name": f"{spec.deployment}.{secrets.token_hex(8)}",
            "namespace": spec.namespace,
        },
        "involvedObject": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "namespace": spec.namespace,
            "name": spec.deployment,
            "uid": spec.uid,
        },
        "type": "Warning",
        "reason": "PoolStopped",
        "message": f"{broken.reason[:room]}. To start it again {close}",
        "source": {"component": "sandman-gateway"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def cold_pod(spec: PoolSpec, name: str, assignment: Assignment) -> dict[str, Any]:
    """A pod from the pool's template that is leased from the start."""
    template: dict[str, Any] = copy.deepcopy(dict(spec.template))
    metadata: dict[str, Any] = template.get("metadata") or {}
    body: dict[str, Any] = template["spec"]
    body["containers"][0]["image"] = assignment.image
    if assignment.resources != NO_AMOUNTS:
        bounds = sizing.as_json(sizing.scaled(spec.bounds, assignment.resources))
        resources = body["containers"][0].get("resources") or {}
        for kind, values in bounds.items():
            resources[kind] = {**(resources.get(kind) or {}), **values}
        body["containers"][0]["resources"] = resources
    if assignment.avoid_nodes:
        body["affinity"] = affinity.away_from(body.get("affinity"), assignment.avoid_nodes)
    if assignment.reservation is None:
        body["activeDeadlineSeconds"] = _deadline(assignment, 0.0)
    owners = {} if assignment.owner is None else {"ownerReferences": [_reference(assignment.owner)]}
    gates = body.pop("schedulingGates", None) or ()
    # Somebody waits for this one.
    body["schedulingGates"] = [one for one in gates if one["name"] != names.GATE_REFILL]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": {
                **(metadata.get("labels") or {}),
                names.LABEL_STATE: assignment.state,
                **lease_labels(assignment),
            },
            "annotations": {**(metadata.get("annotations") or {}), **lease_annotations(assignment)},
            **owners,
        },
        "spec": body,
    }


def lease_labels(assignment: Assignment) -> dict[str, str]:
    """Labels that a lease sets beside the state."""
    values = {
        names.LABEL_TENANT: assignment.tenant,
        names.LABEL_TIER: None if assignment.reservation else assignment.tier.value,
        names.LABEL_RUN: assignment.run,
        names.LABEL_KEY: assignment.key,
        names.LABEL_RESERVATION: assignment.reservation,
        names.LABEL_NETWORK: assignment.network,
    }
    return {key: value for key, value in values.items() if value is not None}


def lease_annotations(assignment: Assignment) -> dict[str, str]:
    """Annotations that a lease sets."""
    claim_of: dict[str, object] = {"id": assignment.claim_id}
    if assignment.previous_boot_id is not None:
        claim_of["previous_boot_id"] = assignment.previous_boot_id
    if assignment.swapped:
        claim_of["swapped"] = True
    return {
        names.ANNOTATION_CLAIM: _json(claim_of),
        names.ANNOTATION_LEASE: _json(_lease(assignment)),
        names.ANNOTATION_REQUEST: _json(assignment.request),
        names.ANNOTATION_SAFE_TO_EVICT: "false",
    }


def _lease(assignment: Assignment) -> dict[str, object]:
    """What `leases.ends_at` and `pods` read again."""
    terms = assignment.terms
    told: dict[str, object] = {
        "expires_at": round(assignment.expires_at, 3),
        "max_s": assignment.max_s,
        "start_s": assignment.start_s,
    }
    told |= {
        name: value
        for name, value in (("ttl_s", terms.ttl_s), ("idle_s", terms.idle_s))
        if value is not None
    }
    return {**told, "run": True} if terms.of_run else told


def _owned(assignment: Assignment) -> Operation:
    """The pod is its ReplicaSet's no more: nobody's, or with the caller's Job it lives and dies."""
    path = "/metadata/ownerReferences"
    if assignment.owner is None:
        return {"op": "remove", "path": path}
    return _operation("replace", path, [_reference(assignment.owner)])


def _reference(owner: Owner) -> dict[str, object]:
    """Neither its controller, which would adopt it, nor a reason to hold up the Job's deletion."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": owner.uid}


def _deadline(assignment: Assignment, age: float) -> int:
    """The kubelet counts from the pod's start, so a placeholder's age is added to the longest life. It can
    only be lowered later, so that the time that a start may take is in it."""
    return math.ceil(assignment.max_s + assignment.start_s + age + CLOCK_SLACK_S)


def _operation(kind: str, path: str, value: object) -> Operation:
    return {"op": kind, "path": path, "value": value}


def _label(key: str) -> str:
    return "/metadata/labels/" + _escape(key)


def _annotation(key: str) -> str:
    return "/metadata/annotations/" + _escape(key)


def _escape(key: str) -> str:
    """A key as part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
