"""The admission policies say what the programs say: the same accounts, labels and paths."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandman import names
from tests.unit.test_manifests import GATEWAY_ACCOUNT, Manifest, get, of_kind

POLICIES = of_kind("ValidatingAdmissionPolicy")


def expressions(policy: dict[str, Any]) -> str:
    spec = policy["spec"]
    parts = [*spec.get("variables", ()), *spec.get("matchConditions", ()), *spec["validations"]]
    return "\n".join(part["expression"] for part in parts)


# Users' production must start whatever becomes of these; all others fail closed and deny.
OPEN = {"sandman-whole-workloads": ["Deny"], "sandman-tell-workloads": ["Warn", "Audit"]}
JUDGED = {
    "sandman-webhook-secrets": [["secrets"]],
    "sandman-guard-pools": [
        ["deployments", "replicasets", "statefulsets", "daemonsets"],
        ["jobs"],
        ["replicationcontrollers"],
    ],
    "sandman-guard-insides": [
        ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy"],
        ["pods/ephemeralcontainers"],
    ],
    "sandman-guard-leases": [["leases"]],
    "sandman-guard-subresources": [["pods/status"], ["pods/binding", "bindings"]],
    "sandman-guard-networks": [["networkpolicies"]],
}
"""What policies look at, where it is not pods alone."""


@pytest.mark.parametrize("one", POLICIES, ids=str)
def test_policies_are_bound_and_fail_closed(one: Manifest) -> None:
    name = one.value["metadata"]["name"]
    spec = one.value["spec"]
    selector = {names.LABEL_INJECT: names.INJECT_NAMESPACE_ENABLED}
    if name.endswith("-workloads"):
        selector = {names.LABEL_INJECT: names.INJECT_NAMESPACE_WORKLOADS}
    if name == "sandman-webhook-secrets":
        selector = {"kubernetes.io/metadata.name": names.SYSTEM_NAMESPACE}
    assert spec["failurePolicy"] == ("Ignore" if name in OPEN else "Fail")
    assert spec["matchConstraints"]["namespaceSelector"] == {"matchLabels": selector}
    # A kubelet's status must never wait for us: but for one policy, which lets kubelets through, they look at none.
    rules = spec["matchConstraints"]["resourceRules"]
    assert [rule["resources"] for rule in rules] == JUDGED.get(name, [["pods"]])
    binding = get("ValidatingAdmissionPolicyBinding", name)
    assert binding["spec"] == {
        "policyName": name,
        "validationActions": OPEN.get(name, ["Deny"]),
    }
    for validation in spec["validations"]:
        assert validation["message"]


def test_who_looks_at_a_status_lets_kubelets_through() -> None:
    conditions = get("ValidatingAdmissionPolicy", "sandman-guard-subresources")["spec"]
    expected = "!('system:nodes' in request.userInfo.?groups.orValue([]))"
    assert conditions["matchConditions"][0]["expression"] == expected


def test_leased_pods_are_kept() -> None:
    policy = get("ValidatingAdmissionPolicy", "sandman-keep-leased")
    assert policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"] == [
        {
            "key": names.LABEL_STATE,
            "operator": "In",
            "values": [names.STATE_LEASED, names.STATE_RESERVED],
        }
    ]

    (rule, _) = policy["spec"]["validations"]
    assert rule["expression"] == "!variables.isController"
    text = expressions(policy)
    # Each adopts whatever its selector finds without an owner, and deletes what is too many.
    for one in ("replicaset", "replication", "statefulset", "daemon-set", "job"):
        assert f"'system:serviceaccount:kube-system:{one}-controller'" in text


GUARDS = [f"sandman-guard-{what}" for what in ("pools", "insides", "leases", "networks")]


@pytest.mark.parametrize("name", GUARDS)
def test_what_makes_pools_and_leads_into_sandboxes_is_for_who_was_given_that_right(
    name: str,
) -> None:
    """A right of our own, which no role of Kubernetes' has but the administrator's, who may all."""
    text = expressions(get("ValidatingAdmissionPolicy", name))
    right = ("sandboxes", "enter") if name.endswith("insides") else ("pools", "manage")
    assert (
        f"authorizer.group('{names.DOMAIN}').resource('{right[0]}').namespace(request.namespace)"
        f".check('{right[1]}').allowed()"
    ) in text
    if name in {"sandman-guard-pools", "sandman-guard-leases"}:
        assert f"'{names.DOMAIN}/'" in text
        assert f"'{GATEWAY_ACCOUNT}'" in text


def test_images_and_owners_are_guarded_too() -> None:
    text = expressions(get("ValidatingAdmissionPolicy", "sandman-guard-state"))
    assert "oldObject.spec.containers.map(c, c.?image.orValue(''))" in text
    assert "oldObject.metadata.?ownerReferences.orValue([]).map(o, o.uid)" in text


def test_state_is_guarded_by_the_names_in_use() -> None:
    text = expressions(get("ValidatingAdmissionPolicy", "sandman-guard-state"))
    quoted = set(re.findall(r"'(sandman\.dev/[a-z-]+)'", text))
    assert quoted == {
        names.LABEL_POOL,
        names.LABEL_STATE,
        names.LABEL_TENANT,
        names.LABEL_RUN,
        names.LABEL_KEY,
        names.LABEL_TIER,
        names.LABEL_RESERVATION,
        names.LABEL_NETWORK,
        names.ANNOTATION_LEASE,
        names.ANNOTATION_RENEWED,
        names.ANNOTATION_REQUEST,
        names.ANNOTATION_CLAIM,
        names.ANNOTATION_PREPARED,
        names.ANNOTATION_ENDED,
        names.ANNOTATION_NETWORK_CHANGED,
    }
    assert f"'{names.DOMAIN}/'" in text
    assert f"'{GATEWAY_ACCOUNT}'" in text
    assert f"== '{names.STATE_FREE}'" in text
    assert f"== '{names.NETWORK_NONE}'" in text


def test_injection_is_checked_by_the_names_in_use() -> None:
    policy = get("ValidatingAdmissionPolicy", "sandman-require-injection")
    assert policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"] == [
        {"key": names.LABEL_POOL, "operator": "Exists"}
    ]
    text = expressions(policy)
    for quoted in (
        names.VOLUME,
        names.MOUNT_PATH,
        *names.DAEMON_COMMAND,
        names.ENV_TOKEN_SHA256,
        names.ANNOTATION_NONCE,
        names.ANNOTATION_KEY_ID,
    ):
        assert f"'{quoted}'" in text


def test_workloads_are_judged_by_the_names_in_use() -> None:
    guard = expressions(get("ValidatingAdmissionPolicy", "sandman-guard-workloads"))
    written = set(re.findall(r"'(sandman\.dev/[a-z-]+)'", guard))
    assert written == {
        names.LABEL_INJECT,
        names.ANNOTATION_NONCE,
        names.ANNOTATION_KEY_ID,
        names.ANNOTATION_INJECTED,
        names.ANNOTATION_CONTAINERS,
    }
    assert f"== '{names.INJECT_WORKLOAD}'" in guard
    whole = expressions(get("ValidatingAdmissionPolicy", "sandman-whole-workloads"))
    for quoted in (
        names.ANNOTATION_INJECTED,
        names.VOLUME,
        names.MOUNT_PATH,
        names.DAEMON_COMMAND[3],
    ):
        assert f"'{quoted}'" in whole
    told = expressions(get("ValidatingAdmissionPolicy", "sandman-tell-workloads"))
    assert set(re.findall(r"'(sandman\.dev/[a-z-]+)'", told)) == {
        names.ANNOTATION_INJECTED,
        names.ANNOTATION_NOT_INJECTED,
    }
    for name in OPEN:
        policy = get("ValidatingAdmissionPolicy", name)
        assert policy["spec"]["matchConstraints"]["objectSelector"] == {
            "matchLabels": {names.LABEL_INJECT: names.INJECT_WORKLOAD}
        }


def test_the_webhook_makes_its_two_secrets_and_no_other() -> None:
    policy = get("ValidatingAdmissionPolicy", "sandman-webhook-secrets")
    (condition,) = policy["spec"]["matchConditions"]
    account = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-webhook"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    (rule,) = policy["spec"]["validations"]
    assert f"in ['{names.KEYS_SECRET}', '{names.WEBHOOK_TLS_SECRET}']" in rule["expression"]
    assert "== 'Opaque'" in rule["expression"]
