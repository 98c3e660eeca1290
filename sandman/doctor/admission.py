"""API server → webhook, by a dry run; and whether what is injected can get to the nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sandman import names
from sandman.doctor.cluster import ClusterError
from sandman.doctor.findings import Finding, failure, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.doctor.cluster import Cluster

NAME = "sandman-doctor"
IMAGE = "registry.invalid/sandman-doctor:1"
"""Of pods that are never made."""
LEAST_CONTAINERD = (2, 1)
"""The first that mounts images as volumes."""
LEAST_CRIO = (1, 33)

_LABELS = {
    names.INJECT_NAMESPACE_ENABLED: names.INJECT_POOL,
    names.INJECT_NAMESPACE_WORKLOADS: names.INJECT_WORKLOAD,
}
"""What a pod asks for, by what its namespace opted in to."""
_ADVICE = (
    (
        r"x509|certificate",
        "the webhook's certificate is not trusted: see `certificate` above and its logs",
    ),
    (r"no endpoints available", "no replica of the webhook is ready: see `programs` above"),
    (
        r"deadline exceeded|timeout|timed out|i/o timeout",
        "the API server does not reach the webhook's pods on port 10250: a firewall or network policy between "
        "control plane and nodes, or a CNI whose pods the control plane cannot reach",
    ),
    (r"connection refused", "the webhook's pods do not listen: see their logs"),
    (
        r"no such host|not found.*service|service .*not found",
        "the Service sandman-webhook is missing",
    ),
)
_OWN_LIMITS = re.compile(r"exceeded quota|failed quota|per (?:Container|Pod) is ")
"""How the API server tells that a quota or a LimitRange of the namespace refuses a pod."""


def pod(namespace: str, label: str, **annotations: str) -> dict[str, Any]:
    """A pod that asks for injection, fit for every pod security standard."""
    marks = {f"{names.DOMAIN}/{key}": value for key, value in annotations.items()}
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": {names.LABEL_INJECT: label},
            "annotations": marks,
        },
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "command": ["/none"],
                    "securityContext": security,
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "32Mi"},
                        "limits": {"cpu": "100m", "memory": "64Mi"},
                    },
                }
            ],
        },
    }


def labelled(cluster: Cluster) -> dict[str, str]:
    """The namespaces that opted in, and for what.

    Raises:
        ClusterError: they could not be listed.
    """
    found = cluster.items("namespaces", "-l", names.LABEL_INJECT)
    return {
        one["metadata"]["name"]: one["metadata"]["labels"][names.LABEL_INJECT]
        for one in found
        if "deletionTimestamp" not in one["metadata"]  # which takes no pods any more
    }


def injection(cluster: Cluster) -> Iterator[Finding]:
    """A pod by dry run in each namespace that opted in."""
    namespaces = labelled(cluster)
    if names.INJECT_NAMESPACE_ENABLED not in namespaces.values():
        text = f"no namespace has the label {names.LABEL_INJECT}={names.INJECT_NAMESPACE_ENABLED}"
        yield failure("injection", text, "apply the manifests again")
    for namespace, value in sorted(namespaces.items()):
        if value in _LABELS:
            yield _injected(cluster, namespace, _LABELS[value])
        else:
            known = " or ".join(_LABELS)
            text = f"namespace {namespace} has {names.LABEL_INJECT}={value}, which means nothing"
            yield warning("injection", text, f"write {known}")


def _injected(cluster: Cluster, namespace: str, label: str) -> Finding:
    try:
        made = cluster.dry_run(pod(namespace, label))
    except ClusterError as error:
        if _OWN_LIMITS.search(str(error)):
            text = f"in {namespace} it was not tried, by limits of the namespace: {error}"
            return warning(
                "injection", text, "they are for your pods; this one is the doctor's own"
            )
        return failure("injection", f"in {namespace}: {error}", advice(str(error)))
    annotations = made["metadata"].get("annotations") or {}
    if names.ANNOTATION_INJECTED in annotations:
        version = annotations[names.ANNOTATION_INJECTED]
        return ok("injection", f"in {namespace} the webhook injects (version {version})")
    why = annotations.get(names.ANNOTATION_NOT_INJECTED)
    if why:
        return failure("injection", f"in {namespace} it does not inject: {why}", "as it says")
    text = f"in {namespace} pods are made without the daemon: the webhook does not answer, or is not asked"
    return failure("injection", text, "see `webhook`, `programs` and `certificate` above")


def advice(message: str) -> str:
    """What to do about a failed call of the webhook, by the API server's words."""
    for pattern, text in _ADVICE:
        if re.search(pattern, message, re.IGNORECASE):
            return text
    return "the message says what refused it"


def delivery(cluster: Cluster) -> Iterator[Finding]:
    """Whether an image volume would survive the API server and the nodes' runtimes."""
    spaces = [
        (name, _LABELS[value]) for name, value in labelled(cluster).items() if value in _LABELS
    ]
    if not spaces:
        yield skipped("delivery", "no namespace opted in")
        return
    document = pod(*spaces[0], delivery=names.DELIVERY_IMAGE)
    try:
        made = cluster.dry_run(document)
    except ClusterError as error:
        is_webhook = "failed calling webhook" in str(error)
        what = advice(str(error)) if is_webhook else _by_copy()
        yield failure("delivery", f"by image volume: {error}", what)
        return
    survives = any(
        one.get("name") == names.VOLUME and one.get("image")
        for one in made["spec"].get("volumes") or []
    )
    if not survives:
        yield warning("delivery", "the API server drops image volumes", _by_copy())
        return
    old = [name for name, runtime in _runtimes(cluster) if not mounts_images(runtime)]
    if old:
        text = f"{len(old)} nodes cannot mount images as volumes: {', '.join(old[:5])}"
        yield warning("delivery", text, _by_copy())
    else:
        yield ok(
            "delivery", "the API server keeps image volumes, and all runtimes should mount them"
        )


def _by_copy() -> str:
    return (
        "deliver by copy: SANDMAN_WEBHOOK_DEFAULT_DELIVERY=init at the webhook, or the annotation "
        f"{names.ANNOTATION_DELIVERY}: {names.DELIVERY_INIT}"
    )


def _runtimes(cluster: Cluster) -> list[tuple[str, str]]:
    return [
        (one["metadata"]["name"], one["status"]["nodeInfo"].get("containerRuntimeVersion", ""))
        for one in cluster.items("nodes")
    ]


def mounts_images(runtime: str) -> bool:
    """Whether a runtime (`containerd://2.1.0`) is new enough. Of others nothing is known: no."""
    found = re.fullmatch(r"([a-z-]+)://v?(\d+)\.(\d+).*", runtime)
    if found is None:
        return False
    least = {"containerd": LEAST_CONTAINERD, "cri-o": LEAST_CRIO}.get(found[1])
    return least is not None and (int(found[2]), int(found[3])) >= least


def architectures(cluster: Cluster) -> Iterator[Finding]:
    """Whether pods could land where the daemon does not run."""
    told = cluster.get("-n", names.SYSTEM_NAMESPACE, "deployment", "sandman-webhook")
    variables = told["spec"]["template"]["spec"]["containers"][0].get("env") or []
    wanted = next(
        (v.get("value") for v in variables if v["name"] == "SANDMAN_WEBHOOK_ARCHITECTURE"), "amd64"
    )
    found = {one["status"]["nodeInfo"].get("architecture", "?") for one in cluster.items("nodes")}
    if found <= {wanted}:
        yield ok("nodes", f"all are {wanted}, as the daemon")
    else:
        other = ", ".join(sorted(found - {wanted}))
        advice = f"ask for kubernetes.io/arch: {wanted} in pools and labelled workloads"
        yield warning(
            "nodes", f"some are {other}, where the daemon ({wanted}) does not run", advice
        )
