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


@pytest.mark.parametrize("one", POLICIES, ids=str)
def test_policies_are_bound_and_fail_closed(one: Manifest) -> None:
    name = one.value["metadata"]["name"]
    spec = one.value["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert spec["matchConstraints"]["namespaceSelector"] == {
        "matchLabels": {names.LABEL_INJECT: names.INJECT_NAMESPACE_ENABLED}
    }
    # Subresources are left alone: a kubelet's status must never wait for us.
    assert [rule["resources"] for rule in spec["matchConstraints"]["resourceRules"]] == [["pods"]]
    binding = get("ValidatingAdmissionPolicyBinding", name)
    assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
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
