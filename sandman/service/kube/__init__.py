"""A client for the Kubernetes API on trio: typed reads, patches, watches. Use it as `kube.…`.

    async with kube.Kube(kube.load()) as api:
        pod = await api.get(kube.PODS, "name", namespace="x")
        await api.patch_json(kube.PODS, "name", [{"op": "test", …}, …], namespace="x")

Own code, because the official client is synchronous and slow to decode, and none of the
asynchronous ones runs on trio with sound watches. It must not know what Sandman is: no labels, no
pools.

    client      calls: what is sent, what is raised      reflector   list and watch, for ever
    transport   a bounded pool of connections            watch       what a watch means; pure
    connection  one HTTP/1.1 connection                  retry       when to try again; pure
    resources   where kinds live in the API              objects     typed subsets of the kinds
    config      kubeconfig, or the pod's own account     errors      the tree of all failures
"""

from __future__ import annotations

from sandman.service.kube.client import Deletion, Kube, Listing, Selection
from sandman.service.kube.config import Target, load
from sandman.service.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    RequestTimeoutError,
    ThrottledError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedStatusError,
)
from sandman.service.kube.objects import (
    Condition,
    Container,
    ContainerStatus,
    Deployment,
    Event,
    KubeObject,
    Lease,
    LeaseSpec,
    Node,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Secret,
    condition_is_true,
    micro_time,
)
from sandman.service.kube.reflector import Reflector
from sandman.service.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    VALIDATING_POLICIES,
    VALIDATING_WEBHOOKS,
    Resource,
    as_raw,
    raw,
)
from sandman.service.kube.texts import ConfigMap
from sandman.service.kube.watch import Added, Change, Deleted, Modified, Synced

__all__ = [
    "CONFIG_MAPS", "DEPLOYMENTS", "EVENTS", "JOBS", "LEASES", "MUTATING_WEBHOOKS", "NAMESPACES", "NETWORK_POLICIES",
    "NODES", "PODS", "SECRETS",
    "SUBJECT_ACCESS_REVIEWS", "TOKEN_REVIEWS", "VALIDATING_POLICIES", "VALIDATING_WEBHOOKS",
    "Added", "AlreadyExistsError", "BadRequestError", "Change", "Condition", "ConfigMap", "ConfigurationError",
    "ConflictError", "Container", "ContainerStatus", "Deleted", "Deletion", "Deployment", "Event",
    "ForbiddenError", "GoneError", "InvalidError", "Kube", "KubeError", "KubeObject", "Lease",
    "LeaseSpec", "Listing", "Modified", "Node", "NotFoundError", "ObjectMeta", "OwnerReference",
    "Pod", "PodSpec", "PodStatus", "Reflector", "RequestTimeoutError", "Resource", "Secret",
    "Selection", "Synced", "Target", "ThrottledError", "UnauthorizedError", "UnavailableError",
    "UnexpectedStatusError", "as_raw", "condition_is_true", "load", "micro_time", "raw",
]  # fmt: skip
