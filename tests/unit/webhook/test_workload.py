"""Users' own pods: exactly what is done to each of a table, that twice is once, and that whatever is
wrong the pod is made."""

from __future__ import annotations

import base64
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman import entrypoints, grants, names
from tests.unit.webhook import pods, rfc6902, workload_pods
from tests.unit.webhook.workload_pods import APP, CASES, DAEMON, SLEEP, c, pod
from webhook import admission, metrics, workload
from webhook.errors import RefusedError


def patch_of(document, nonce="n1"):
    steps = workload.attach(document, pods.NAMESPACE, pods.KEYRING, nonce, pods.SETTINGS)
    return json.loads(json.dumps([step.to_json() for step in steps]))


def injected(document, nonce="n1"):
    return rfc6902.apply(document, patch_of(document, nonce))


def admit(document, keyring=pods.KEYRING, namespace=pods.NAMESPACE):
    request = {
        "uid": "u1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": namespace, "object": document,
    }  # fmt: skip
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = admission.admit(json.dumps(review).encode(), keyring, pods.SETTINGS, lambda: "n1")
    response = json.loads(answer.body)["response"]
    assert response["allowed"] is True
    steps = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return answer.outcome, rfc6902.apply(document, steps), response.get("warnings", [])


def test_the_table_is_large():
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "case", [one for one in CASES if one.patch is not None], ids=lambda one: one.name
)
def test_exactly_this_is_done_to_it(case):
    assert patch_of(case.pod) == case.patch


@pytest.mark.parametrize(
    "case", [one for one in CASES if one.patch is None], ids=lambda one: one.name
)
def test_it_is_admitted_as_it_is_and_told_why(case):
    outcome, after, warnings = admit(case.pod)
    assert outcome == metrics.LEFT
    assert after["spec"] == case.pod["spec"]
    assert after["metadata"]["annotations"][names.ANNOTATION_NOT_INJECTED] == case.left
    text = f"sandman: runs without the daemon: {case.left}"
    assert warnings == [text if len(text) <= 256 else f"{text[:255]}…"]


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_twice_is_once(case):
    _, once, _ = admit(case.pod)
    _, twice, _ = admit(once)
    assert twice == once


class TestBesideOtherInjectors:
    def test_a_container_that_is_put_first_afterwards_is_not_taken_for_ours(self):
        once = injected(pod(APP))
        once["spec"]["containers"].insert(0, c("istio-proxy"))
        twice = injected(once)
        assert twice["spec"]["containers"][0] == c("istio-proxy")
        assert twice["spec"]["containers"][1]["command"] == [*DAEMON, *SLEEP]
        assert twice["metadata"]["annotations"][names.ANNOTATION_CONTAINERS] == '{"app":21763}'

    def test_a_program_that_is_put_before_the_daemon_stays_there(self):
        once = injected(pod(APP))
        wrapper = ["/vault/vault-env", *once["spec"]["containers"][0]["command"]]
        once["spec"]["containers"][0] |= {"command": wrapper[:1], "args": wrapper[1:]}
        main = injected(once)["spec"]["containers"][0]
        assert (main["command"], main["args"]) == (wrapper[:1], wrapper[1:])

    def test_the_copy_stays_where_others_were_put_before_it(self):
        once = injected(pod(APP))
        once["spec"]["initContainers"].insert(0, c("foreign"))
        assert injected(once) == once

    def test_containers_that_come_later_get_the_daemon_where_all_are_meant(self):
        once = injected(pod(APP, annotations={names.ANNOTATION_CONTAINER: "*"}))
        once["spec"]["containers"].append(c("late", command=["late"]))
        late = injected(once)["spec"]["containers"][1]
        assert late["command"] == [*DAEMON, "late"]
        assert {"name": names.ENV_PORT, "value": "21764"} in late["env"]

    def test_a_reason_that_is_gone_is_not_told_any_more(self):
        _, first, _ = admit(pod(c()))
        first["spec"]["containers"][0]["command"] = ["run"]
        outcome, after, warnings = admit(first)
        assert (outcome, warnings) == (metrics.INJECTED, [])
        assert names.ANNOTATION_NOT_INJECTED not in after["metadata"]["annotations"]


class TestTrust:
    def test_each_container_has_a_token_of_its_own(self):
        after = injected(
            pod(APP, c("b", command=["b"]), annotations={names.ANNOTATION_CONTAINER: "*"})
        )
        for container in after["spec"]["containers"]:
            nonce = grants.container_nonce("n1", container["name"])
            token = grants.daemon_token(pods.KEYRING.daemon["k1"], pods.NAMESPACE, nonce)
            wanted = {"name": names.ENV_TOKEN_SHA256, "value": grants.token_digest(token)}
            assert wanted in container["env"]

    def test_a_nonce_that_came_in_is_replaced(self):
        forged = pod(
            APP, annotations={names.ANNOTATION_NONCE: "theirs", names.ANNOTATION_KEY_ID: "k9"}
        )
        annotations = injected(forged)["metadata"]["annotations"]
        assert (annotations[names.ANNOTATION_NONCE], annotations[names.ANNOTATION_KEY_ID]) == (
            "n1",
            "k1",
        )

    def test_a_pod_that_is_left_bears_nothing_of_an_injected_one(self):
        forged = pod(
            APP, hostNetwork=True, annotations=workload_pods.notes({"app": 1}) | {"mine": "1"}
        )
        _, after, _ = admit(forged)
        assert set(after["metadata"]["annotations"]) == {"mine", names.ANNOTATION_NOT_INJECTED}

    def test_neither_token_nor_key_is_in_the_patch(self):
        text = repr(patch_of(pod(APP)))
        token = grants.daemon_token(pods.KEYRING.daemon["k1"], pods.NAMESPACE, "n1/app")
        assert token not in text
        assert "dddd" not in text


class TestWhateverIsWrong:
    def test_without_keys_the_pod_is_made_and_says_so(self):
        outcome, after, (warning,) = admit(pod(APP), keyring=None)
        assert outcome == metrics.LEFT
        assert after["spec"] == pod(APP)["spec"]
        assert "signing keys" in warning

    @pytest.mark.parametrize("namespace", ["kube-system", names.SYSTEM_NAMESPACE])
    def test_the_clusters_own_parts_are_left_alone(self, namespace):
        outcome, _, (warning,) = admit(pod(APP), namespace=namespace)
        assert outcome == metrics.LEFT
        assert "control plane" in warning

    def test_what_cannot_be_read_is_the_api_servers_business(self):
        strange = pod(APP)
        strange["spec"]["containers"] = "many"
        outcome, after, _ = admit(strange)
        assert (outcome, after) == (metrics.LEFT, strange)

    def test_a_pod_without_containers(self):
        outcome, _, (warning,) = admit(pod())
        assert outcome == metrics.LEFT
        assert "no containers" in warning

    def test_pods_that_ask_for_nothing_are_not_touched(self):
        plain = pod(APP)
        del plain["metadata"]["labels"]
        outcome, after, warnings = admit(plain)
        assert (outcome, after, warnings) == (metrics.PASSED, plain, [])


def _stripped(document):
    """The pod without what injection adds."""
    result = copy.deepcopy(document)
    result["metadata"].pop("annotations", None)
    spec = result["spec"]
    for key in ("volumes", "initContainers"):
        spec[key] = [
            one for one in spec.get(key) or [] if one["name"] not in {"sandman", "sandman-copy"}
        ]
    for one in spec["containers"]:
        command = one.get("command") or []
        if command[: len(DAEMON)] == DAEMON:
            one["command"] = command[len(DAEMON) :]
        for key, ours in (
            ("env", {"SANDMAN_TOKEN_SHA256", "SANDMAN_PORT"}),
            ("volumeMounts", {"sandman"}),
        ):
            one[key] = [item for item in one.get(key) or [] if item["name"] not in ours]
    return result


@st.composite
def workloads(draw):
    """Any pod of any form, most of which can be injected."""
    document = draw(pods.acceptable())
    document["metadata"]["labels"] = {names.LABEL_INJECT: names.INJECT_WORKLOAD}
    if draw(st.booleans()):
        document["metadata"].setdefault("annotations", None)
        wish = draw(st.sampled_from(["*", "main0", "main1,main0", "none"]))
        document["metadata"]["annotations"] = {names.ANNOTATION_CONTAINER: wish}
    for one in document["spec"]["containers"]:
        one["env"] = [v for v in one.get("env") or [] if not v["name"].startswith("SANDMAN_")]
    return document


@given(workloads())
@settings(max_examples=150, deadline=None)
def test_any_pod_twice_is_once_and_nothing_of_it_is_lost(document):
    before = copy.deepcopy(document)
    try:
        once = injected(document)
    except RefusedError:
        once = None
    assert document == before
    if once is not None:
        again = injected(once, "n2")
        assert _stripped(once) == _stripped(document)
        assert _stripped(again) == _stripped(document)
        # All but the nonce, and the digests that come of it.
        swapped = json.loads(json.dumps(again).replace('"n2"', '"n1"'))
        for one, other in zip(
            swapped["spec"]["containers"], once["spec"]["containers"], strict=True
        ):
            for mine, theirs in zip(one.get("env") or [], other.get("env") or [], strict=True):
                if mine["name"] == names.ENV_TOKEN_SHA256:
                    assert mine["value"] != theirs["value"]
                    mine["value"] = theirs["value"]
        assert swapped == once


class TestEntrypoints:
    def test_what_is_written_is_read(self):
        found = {
            "a": entrypoints.Entrypoint("i:1", "sha256:1", ("x", "ä"), ("y",)),
            "b": entrypoints.Entrypoint("j", ""),
        }
        assert entrypoints.load(entrypoints.dump(found)) == found

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", '{"a":1}', '{"a":{}}', '{"a":{"image":1}}', '{"a":{"image":"i","digest":2}}',
         '{"a":{"image":"i","cmd":"x"}}', '{"a":{"image":"i","entrypoint":[1]}}', "[" * 100_000],
    )  # fmt: skip
    def test_what_somebody_broke_is_refused(self, text):
        with pytest.raises(ValueError):
            entrypoints.load(text)
