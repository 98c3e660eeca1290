"""The manifests on a real API server: rights, pod security, quota, applying again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster import install
from tests.cluster.bed import BedError, kubectl
from tests.cluster.judged import (
    DRY,
    GATEWAY,
    SANDBOXES,
    SYSTEM,
    WEBHOOK,
    create_refused,
    pod,
)

if TYPE_CHECKING:
    from tests.cluster.bed import Bed
    from tests.cluster.deployed import Deployed

pytestmark = pytest.mark.usefixtures("sandman")

# --- rights -------------------------------------------------------------------------------------

Right = tuple[str, str, str, str]
"""Verb, resource (with group and subresource), namespace, name."""

GATEWAY_MAY: list[Right] = [
    *[(verb, "pods", SANDBOXES, "") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    ("patch", "pods/resize", SANDBOXES, ""),
    *[(verb, "events", SANDBOXES, "") for verb in ("get", "list", "watch")],
    # Patched by the breaker, which writes replicas and its reason at once.
    *[(verb, "deployments.apps", SANDBOXES, "") for verb in ("get", "list", "watch", "patch")],
    *[
        (verb, "leases.coordination.k8s.io", SANDBOXES, "")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ],
    ("patch", "deployments.apps/scale", SANDBOXES, ""),
    *[(verb, "nodes", "", "") for verb in ("get", "list", "watch")],
    *[(verb, "leases.coordination.k8s.io", SYSTEM, names.ALLOCATOR_LEASE) for verb in ("get", "patch")],
    ("create", "leases.coordination.k8s.io", SYSTEM, ""),
    *[
        (verb, "secrets", SYSTEM, name)
        for verb in ("get", "list", "watch")
        for name in (names.KEYS_SECRET, names.API_KEYS_SECRET, names.GATEWAY_TLS_SECRET)
    ],
    ("update", "secrets", SYSTEM, names.GATEWAY_TLS_SECRET),
    *[(verb, "configmaps", SYSTEM, names.CALLERS_CONFIG) for verb in ("get", "list", "watch")],
    # Whose a ServiceAccount's token is: asked for callers who come with one.
    ("create", "tokenreviews.authentication.k8s.io", "", ""),
]  # fmt: skip
GATEWAY_MAY_NOT: list[Right] = [
    ("create", "pods/exec", SANDBOXES, ""),
    ("get", "pods/log", SANDBOXES, ""),
    ("update", "pods/resize", SANDBOXES, ""),
    ("patch", "pods/resize", SYSTEM, ""),
    ("update", "pods", SANDBOXES, ""),
    ("deletecollection", "pods", SANDBOXES, ""),
    ("patch", "deployments.apps", SYSTEM, ""),
    ("create", "deployments.apps", SANDBOXES, ""),
    ("delete", "deployments.apps", SANDBOXES, ""),
    ("get", "secrets", SANDBOXES, ""),
    *[(verb, "pods", "default", "") for verb in ("get", "list", "create", "delete")],
    *[(verb, "pods", SYSTEM, "") for verb in ("get", "list", "create", "delete")],
    ("list", "secrets", SYSTEM, ""),
    ("get", "secrets", SYSTEM, names.WEBHOOK_TLS_SECRET),
    ("update", "secrets", SYSTEM, names.KEYS_SECRET),
    ("update", "secrets", SYSTEM, names.API_KEYS_SECRET),
    ("create", "secrets", SYSTEM, ""),
    *[(verb, "leases.coordination.k8s.io", SYSTEM, names.ALLOCATOR_LEASE) for verb in ("update", "delete")],
    *[(verb, "leases.coordination.k8s.io", SYSTEM, "another") for verb in ("get", "patch", "delete")],
    *[(verb, "leases.coordination.k8s.io", SYSTEM, "") for verb in ("list", "watch", "deletecollection")],
    *[(verb, "leases.coordination.k8s.io", SANDBOXES, "") for verb in ("update", "deletecollection")],
    ("patch", "leases.coordination.k8s.io", "kube-system", "another"),
    ("patch", "nodes", "", ""),
    ("create", "serviceaccounts/token", SYSTEM, ""),
    ("update", "configmaps", SYSTEM, names.CALLERS_CONFIG),
    ("patch", "configmaps", SYSTEM, names.CALLERS_CONFIG),
    ("list", "configmaps", SYSTEM, ""),
    ("get", "configmaps", SYSTEM, "kube-root-ca.crt"),
    ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "", names.WEBHOOK_CONFIGURATION),
]  # fmt: skip
CONFIGURATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
WEBHOOK_MAY: list[Right] = [
    *[
        (verb, "secrets", SYSTEM, name)
        for verb in ("get", "update")
        for name in (names.KEYS_SECRET, names.WEBHOOK_TLS_SECRET)
    ],
    *[(verb, CONFIGURATIONS, "", names.WEBHOOK_CONFIGURATION) for verb in ("get", "patch")],
]
WEBHOOK_MAY_NOT: list[Right] = [
    *[(verb, "pods", SANDBOXES, "") for verb in ("get", "list", "create", "patch", "delete")],
    *[(verb, "pods", SYSTEM, "") for verb in ("get", "list", "create", "delete")],
    ("get", "secrets", SYSTEM, names.API_KEYS_SECRET),
    ("get", "secrets", SYSTEM, names.GATEWAY_TLS_SECRET),
    ("list", "secrets", SYSTEM, ""),
    ("delete", "secrets", SYSTEM, names.KEYS_SECRET),
    ("get", CONFIGURATIONS, "", "another"),
    ("patch", CONFIGURATIONS, "", "another"),
    ("delete", CONFIGURATIONS, "", names.WEBHOOK_CONFIGURATION),
    ("create", CONFIGURATIONS, "", ""),
    ("get", "nodes", "", ""),
]
POOL_ACCOUNT = f"system:serviceaccount:{SANDBOXES}:default"
POOL_MAY_NOT: list[Right] = [
    (verb, resource, SANDBOXES, "")
    for resource in ("pods", "secrets", "events", "deployments.apps", "pods/exec")
    for verb in ("get", "list", "create", "patch", "delete")
]


def review(user: str, right: Right) -> dict[str, Any]:
    verb, resource, namespace, name = right
    resource, _, subresource = resource.partition("/")
    resource, _, group = resource.partition(".")
    asked = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
    asked |= {"namespace": namespace, "name": name}
    account = user.split(":")
    groups = [
        "system:authenticated",
        "system:serviceaccounts",
        f"system:serviceaccounts:{account[2]}",
    ]
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": asked},
    }


@pytest.mark.parametrize(
    ("user", "may", "may_not"),
    [
        (GATEWAY, GATEWAY_MAY, GATEWAY_MAY_NOT),
        (WEBHOOK, WEBHOOK_MAY, WEBHOOK_MAY_NOT),
        (POOL_ACCOUNT, [], POOL_MAY_NOT),
    ],
)
def test_rights(bed: Bed, user: str, may: list[Right], may_not: list[Right]) -> None:
    rights = [*may, *may_not]
    reviews = [review(user, right) for right in rights]
    asked = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    verdict = 'jsonpath={.status.allowed}{"\\n"}'
    granted = kubectl(bed, "create", "-f", "-", "-o", verdict, input=asked).split()
    assert [right for right, yes in zip(rights, granted, strict=True) if yes == "true"] == may


# --- pod security, quota, applying again --------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "because"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"hostPID": True}, "host namespaces"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "hostPath"),
    ],
)
def test_nobody_gets_the_host(bed: Bed, part: dict[str, Any], because: str) -> None:
    value = pod(bare=True)
    value["spec"] |= part
    create_refused(bed, GATEWAY, value, because=because)
    with pytest.raises(BedError, match=because):
        kubectl(bed, "create", "-f", "-", DRY, input=json.dumps(value))


def test_no_privileged_container_and_nothing_unrestricted_beside_the_gateway(bed: Bed) -> None:
    value = pod(bare=True)
    value["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    create_refused(bed, GATEWAY, value, because="privileged")
    value = pod(bare=True)
    value["metadata"]["namespace"] = SYSTEM
    with pytest.raises(BedError, match='violates PodSecurity "restricted'):
        kubectl(bed, "create", "-f", "-", DRY, input=json.dumps(value))


def test_quota_stops_a_flood(bed: Bed) -> None:
    quota = ["resourcequota", "sandman-pods", "-n", SANDBOXES]
    usual = json.loads(kubectl(bed, "get", *quota, "-o", "json"))["spec"]["hard"]
    assert set(usual) == {"count/pods"}
    try:
        kubectl(bed, "patch", *quota, "--type=merge", "-p", '{"spec":{"hard":{"count/pods":"1"}}}')
        create_refused(bed, GATEWAY, pod(bare=True), because="exceeded quota: sandman-pods")
    finally:
        patch = json.dumps({"spec": {"hard": usual}})
        kubectl(bed, "patch", *quota, "--type=merge", "-p", patch)


def test_applying_again_changes_nothing(sandman: Deployed) -> None:
    bed, manifests = sandman.bed, str(sandman.installation.manifests)
    before = secrets(bed)
    assert all(before.values()), "a program has not filled its Secret"
    assert kubectl(bed, "diff", "-k", manifests) == ""
    kubectl(bed, "apply", "-k", manifests)
    assert kubectl(bed, "diff", "-k", manifests) == ""
    assert secrets(bed) == before
    assert install.read_environment(bed) == sandman.installation.environment()


def secrets(bed: Bed) -> dict[str, Any]:
    text = kubectl(bed, "get", "secrets", "-n", SYSTEM, "-o", "json")
    return {item["metadata"]["name"]: item.get("data") for item in json.loads(text)["items"]}


def test_policies_have_no_type_errors(bed: Bed) -> None:
    """The controller manager reads the expressions with the types of what they are about."""
    items = json.loads(kubectl(bed, "get", "validatingadmissionpolicies", "-o", "json"))["items"]
    ours = [item for item in items if item["metadata"]["name"].startswith("sandman-")]
    assert len(ours) == 12
    for item in ours:
        checked = item.get("status", {}).get("typeChecking")
        assert checked is not None
        assert checked.get("expressionWarnings") is None
