"""RBAC and quotas: may the programs do what they must, and is there room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandman import names
from sandman.doctor.admission import labelled
from sandman.doctor.cluster import ClusterError
from sandman.doctor.findings import Finding, failure, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.doctor.cluster import Cluster

ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:"
NEARLY = 0.9
"""Of a quota: from there on a burst will not find room."""
_LEASES = "leases.coordination.k8s.io"
_IN_POOLS = (
    *(
        (what, verb)
        for what in ("pods", _LEASES)
        for verb in ("create", "delete", "get", "list", "patch", "watch")
    ),
    ("networkpolicies.networking.k8s.io", "list"),
)
_IN_SYSTEM = (
    (_LEASES, "create"),
    *((f"{_LEASES}/{names.ALLOCATOR_LEASE}", verb) for verb in ("get", "patch")),
    (f"secrets/{names.KEYS_SECRET}", "get"),
    (f"secrets/{names.API_KEYS_SECRET}", "get"),
    (f"configmaps/{names.CALLERS_CONFIG}", "get"),
)
_OF_WEBHOOK = (
    (f"secrets/{names.KEYS_SECRET}", "update"),
    (f"secrets/{names.WEBHOOK_TLS_SECRET}", "update"),
)


def accounts(cluster: Cluster) -> Iterator[Finding]:
    """What gateway and webhook may."""
    gateway, webhook = f"{ACCOUNT}sandman-gateway", f"{ACCOUNT}sandman-webhook"
    configuration = f"mutatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}"
    asked = [
        *((gateway, verb, what, names.SYSTEM_NAMESPACE) for what, verb in _IN_SYSTEM),
        *((webhook, verb, what, names.SYSTEM_NAMESPACE) for what, verb in _OF_WEBHOOK),
        (gateway, "create", "subjectaccessreviews.authorization.k8s.io", ""),
        (gateway, "create", "tokenreviews.authentication.k8s.io", ""),
        (gateway, "watch", "nodes", ""),
        (webhook, "patch", configuration, ""),
    ]
    for namespace, value in sorted(labelled(cluster).items()):
        if value == names.INJECT_NAMESPACE_ENABLED:
            asked += [(gateway, verb, what, namespace) for what, verb in _IN_POOLS]
    missing = []
    try:
        for account, verb, what, namespace in asked:
            options = ("-n", namespace) if namespace else ()
            if not cluster.may(account, verb, what, *options):
                missing.append(
                    f"{account.rpartition(':')[2]} may not {verb} {what} {namespace}".strip()
                )
    except ClusterError as error:
        yield skipped(
            "rights", f"cannot be asked: {error}", "run the doctor as who may impersonate"
        )
        return
    for text in missing:
        yield failure("rights", text, "apply the manifests again")
    if not missing:
        yield ok("rights", f"gateway and webhook may do all they must ({len(asked)} asked)")


def workloads(cluster: Cluster) -> Iterator[Finding]:
    """Whether the gateway can see the workloads that are to be attached to, and nobody else's secrets."""
    gateway = f"{ACCOUNT}sandman-gateway"
    spaces = [
        name
        for name, value in sorted(labelled(cluster).items())
        if value == names.INJECT_NAMESPACE_WORKLOADS
    ]
    for namespace in spaces:
        if cluster.may(gateway, "watch", "pods", "-n", namespace):
            yield ok("rights", f"the gateway sees the workloads of {namespace}")
        else:
            yield warning(
                "rights",
                f"the gateway may not watch pods in {namespace}: its workloads cannot be attached to",
                f"kubectl -n {namespace} create rolebinding sandman-workloads --clusterrole "
                f"sandman-workloads --serviceaccount {names.SYSTEM_NAMESPACE}:sandman-gateway",
            )
        yield from _without(cluster, namespace)


def _without(cluster: Cluster, namespace: str) -> Iterator[Finding]:
    """Labelled pods that run without the daemon."""
    selector = f"{names.LABEL_INJECT}={names.INJECT_WORKLOAD}"
    for pod in cluster.items("-n", namespace, "pods", "-l", selector):
        annotations = pod["metadata"].get("annotations") or {}
        if names.ANNOTATION_INJECTED not in annotations:
            why = annotations.get(names.ANNOTATION_NOT_INJECTED, "the webhook did not answer then")
            text = f"pod {namespace}/{pod['metadata']['name']} runs without the daemon: {why}"
            yield warning("workloads", text, "mend that and make the pod anew")
        elif any(names.DAEMON_COMMAND[0] in said for said in _complaints(pod)):
            text = (
                f"pod {namespace}/{pod['metadata']['name']} cannot start: its node mounts no images"
            )
            advice = f"set the annotation {names.ANNOTATION_DELIVERY}: {names.DELIVERY_INIT} on its template"
            yield failure("workloads", text, advice)


def _complaints(pod: dict[str, Any]) -> Iterator[str]:
    """What the kubelet says of containers that do not start."""
    for one in (pod.get("status") or {}).get("containerStatuses") or []:
        for state in (one.get("state") or {}, one.get("lastState") or {}):
            for why in (state.get("waiting"), state.get("terminated")):
                yield str((why or {}).get("message", ""))


def quotas(cluster: Cluster) -> Iterator[Finding]:
    """Whether there is room for more pods."""
    for namespace, value in sorted(labelled(cluster).items()):
        if value != names.INJECT_NAMESPACE_ENABLED:
            continue
        found = cluster.items("-n", namespace, "resourcequotas")
        if not found:
            text = f"{namespace} has no ResourceQuota: a bad image could flood the cluster"
            yield warning("quota", text, "apply manifests/base/quota.yaml")
        for quota in found:
            yield _quota(namespace, quota)


def _quota(namespace: str, quota: dict[str, Any]) -> Finding:
    name = quota["metadata"]["name"]
    status = quota.get("status") or {}
    full = []
    for what, most in (status.get("hard") or {}).items():
        used = (status.get("used") or {}).get(what, "0")
        # Pods are counted in whole numbers; of cpu and memory kubectl itself shows enough.
        if used.isdecimal() and most.isdecimal() and int(used) >= NEARLY * int(most):
            full.append(f"{used} of {most} {what}")
    if full:
        advice = "raise it, release sandboxes, or lower pools' replicas"
        return warning("quota", f"{namespace}/{name} is nearly used up: {', '.join(full)}", advice)
    return ok("quota", f"{namespace}/{name} has room")
