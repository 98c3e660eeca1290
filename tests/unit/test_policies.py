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
    # Subresources are left alone: a kubelet's status must never wait for us.
    assert [rule["resources"] for rule in spec["matchConstraints"]["resourceRules"]] == [
        ["secrets" if name == "sandman-webhook-secrets" else "pods"]
    ]
    binding = get("ValidatingAdmissionPolicyBinding", name)
    assert binding["spec"] == {
        "policyName": name,
        "validationActions": OPEN.get(name, ["Deny"]),
    }
    for validation in spec["validations"]:
        assert validation["message"]


def test_leased_pods_are_kept() -> None:
    policy = get("ValidatingAdmissionPolicy", "sandman-keep-leased")
    assert policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"] == [
        {
            "key": names.LABEL_STATE,
            "operator": "In",
            "values": [names.STATE_LEASED, names.STATE_RESERVED],
        }
    ]


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
