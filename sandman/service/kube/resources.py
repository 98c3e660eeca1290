"""Where each kind of object lives in the API, and as what type it is read."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from sandman.service.kube import objects, texts

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind of object.

    Args:
        group: API group, "" for the core.
        version: `v1` …
        plural: its name in paths.
        kind: its name in objects.
        type: what answers are decoded to: a `KubeObject`, or `dict[str, Any]` for raw JSON.
        namespaced: whether its objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apps/v1`, `v1` …"""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self,
        name: str | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """The path of one object, of a collection, or of all namespaces' collection.

        Raises:
            ValueError: a namespace for what has none, or a name without its namespace.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace")
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"one of {self.plural} is named with its namespace")
        if name is not None and not name:
            raise ValueError("an empty name would address the collection")
        parts = ["apis" if self.group else "api", *self.api_version.split("/")]
        parts += ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def with_kind(self, body: object) -> dict[str, Any]:
        """The body as JSON values with `apiVersion` and `kind`, which typed objects leave out."""
        values = dict(msgspec.to_builtins(body))
        return {"apiVersion": self.api_version, "kind": self.kind, **values}


def raw(
    group: str, version: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource[dict[str, Any]]:
    """A resource whose objects are plain JSON values, whole: safe to change and write back."""
    return Resource(group, version, plural, kind, dict[str, Any], namespaced)


def as_raw(resource: Resource[Any]) -> Resource[dict[str, Any]]:
    """The same resource read as plain JSON values."""
    return dataclasses.replace(resource, type=dict[str, Any])


PODS = Resource("", "v1", "pods", "Pod", objects.Pod)
NODES = Resource("", "v1", "nodes", "Node", objects.Node, namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret", objects.Secret)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", texts.ConfigMap)
EVENTS = Resource("", "v1", "events", "Event", objects.Event)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", objects.Deployment)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", objects.Lease)
JOBS = Resource("batch", "v1", "jobs", "Job", objects.KubeObject)
NETWORK_POLICIES = raw("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
NAMESPACES = raw("", "v1", "namespaces", "Namespace", namespaced=False)
MUTATING_WEBHOOKS = raw(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration", namespaced=False,
)  # fmt: skip
VALIDATING_WEBHOOKS = raw(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration", namespaced=False,
)  # fmt: skip
VALIDATING_POLICIES = raw(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy", namespaced=False,
)  # fmt: skip
TOKEN_REVIEWS = raw("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = raw(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
