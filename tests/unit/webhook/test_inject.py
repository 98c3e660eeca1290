"""Injection as a function: what it adds, what it leaves alone, and that twice is once."""

from __future__ import annotations

import copy
import dataclasses
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman import grants, names
from tests.unit.webhook import pods, rfc6902
from webhook import delivery, inject
from webhook.errors import RefusedError

INIT = dataclasses.replace(pods.SETTINGS, default_delivery=names.DELIVERY_INIT)


def injected(document, nonce="n1", settings=pods.SETTINGS):
    return rfc6902.apply(document, pods.patch_of(document, nonce, settings))


def environment(document, index=0):
    return {one["name"]: one.get("value") for one in document["spec"]["containers"][index]["env"]}


class TestAdded:
    def test_a_plain_pod_becomes_a_sandbox(self):
        result = injected(pods.pod())
        assert result["spec"] == {
            "containers": [
                {
                    "name": "sandbox",
                    "image": "registry.example/placeholder:1",
                    "command": list(names.DAEMON_COMMAND),
                    "env": [
                        {
                            "name": names.ENV_TOKEN_SHA256,
                            "value": environment(result)[names.ENV_TOKEN_SHA256],
                        },
                        {"name": names.ENV_PORT, "value": str(names.DAEMON_PORT)},
                    ],
                    "volumeMounts": [
                        {"name": "sandman", "mountPath": "/.sandman", "readOnly": True}
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "sandman",
                    "image": {
                        "reference": pods.SETTINGS.daemon_image,
                        "pullPolicy": "IfNotPresent",
                    },
                }
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
        }
        assert result["metadata"]["annotations"] == {
            names.ANNOTATION_NONCE: "n1",
            names.ANNOTATION_KEY_ID: "k1",
            names.ANNOTATION_INJECTED: "0.1.0",
        }
        assert result["metadata"]["labels"][names.LABEL_STATE] == names.STATE_FREE

    def test_the_digest_is_that_of_the_token_the_gateway_will_send(self):
        value = environment(injected(pods.pod()))[names.ENV_TOKEN_SHA256]
        token = grants.daemon_token(pods.KEYRING.daemon["k1"], pods.NAMESPACE, "n1")
        assert value == hashlib.sha256(token.encode()).hexdigest()

    def test_neither_token_nor_key_is_in_the_patch(self):
        text = repr(pods.patch_of(pods.pod()))
        token = grants.daemon_token(pods.KEYRING.daemon["k1"], pods.NAMESPACE, "n1")
        assert token not in text
        assert "dddd" not in text

    def test_the_first_container_is_meant(self):
        """Policies, claims and endings look there too; no annotation may name another."""
        two = pods.pod(containers=[{"name": "a", "image": "x"}, {"name": "b", "image": "y"}])
        for document in (two, pods.annotated(two, container="b")):
            first, other = injected(document)["spec"]["containers"]
            assert first["command"] == list(names.DAEMON_COMMAND)
            assert "command" not in other

    def test_the_placeholders_own_program_is_dropped(self):
        before = pods.container(pods.pod(), command=["sleep"], args=["infinity"])
        after = injected(before)["spec"]["containers"][0]
        assert after["command"] == list(names.DAEMON_COMMAND)
        assert "args" not in after

    def test_a_containers_own_restart_policy_cannot_bring_it_back_blank(self):
        before = pods.container(
            pods.pod(), restartPolicy="Always", restartPolicyRules=[{"action": "Restart"}]
        )
        after = injected(before)["spec"]["containers"][0]
        assert "restartPolicy" not in after
        assert "restartPolicyRules" not in after

    def test_a_cold_pod_stays_leased(self):
        document = pods.pod()
        document["metadata"]["labels"][names.LABEL_STATE] = names.STATE_LEASED
        assert injected(document)["metadata"]["labels"][names.LABEL_STATE] == names.STATE_LEASED

    def test_a_pod_of_no_pool_gets_no_state(self):
        document = pods.pod()
        del document["metadata"]["labels"][names.LABEL_POOL]
        assert names.LABEL_STATE not in injected(document)["metadata"]["labels"]

    @pytest.mark.parametrize(
        ("before", "after"), [(None, 1), (30, 1), (0, 0), (1, 1), (5, 5), (6, 5), (600, 5)]
    )
    def test_the_grace_period_is_short(self, before, after):
        document = pods.pod(terminationGracePeriodSeconds=before)
        assert injected(document)["spec"]["terminationGracePeriodSeconds"] == after


class TestToken:
    """The nonce is made anew whatever came in: who copies one would have the other pod's token."""

    def test_a_nonce_and_a_digest_that_came_in_are_overwritten(self):
        forged = pods.annotated(pods.pod(), nonce="copied")
        forged["metadata"]["annotations"][names.ANNOTATION_KEY_ID] = "k0"
        forged = pods.container(
            forged,
            env=[{"name": "A", "value": "1"}, {"name": names.ENV_TOKEN_SHA256, "value": "0" * 64}],
        )
        result = injected(forged, "fresh")
        assert result["metadata"]["annotations"][names.ANNOTATION_NONCE] == "fresh"
        assert result["metadata"]["annotations"][names.ANNOTATION_KEY_ID] == "k1"
        assert [one["name"] for one in result["spec"]["containers"][0]["env"]] == [
            "A",
            names.ENV_TOKEN_SHA256,
            names.ENV_PORT,
        ]
        assert environment(result)[names.ENV_TOKEN_SHA256] != "0" * 64

    def test_every_entry_of_the_name_is_overwritten_and_so_is_a_reference(self):
        reference = {
            "name": names.ENV_TOKEN_SHA256,
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
        }
        literal = {"name": names.ENV_TOKEN_SHA256, "value": "x"}
        result = injected(pods.container(pods.pod(), env=[literal, reference]))
        entries = result["spec"]["containers"][0]["env"][:2]
        assert {one["name"] for one in entries} == {names.ENV_TOKEN_SHA256}
        assert len({one["value"] for one in entries}) == 1
        assert all(set(one) == {"name", "value"} for one in entries)

    def test_a_second_call_gives_a_fresh_nonce_with_its_digest_and_nothing_else(self):
        once = injected(pods.pod(), "n1")
        second = pods.patch_of(once, "n2")
        assert {one["path"] for one in second} == {
            "/metadata/annotations/sandman.dev~1nonce",
            "/spec/containers/0/env/0",
        }
        assert rfc6902.apply(once, second) == injected(pods.pod(), "n2")


class TestPort:
    def test_the_default_port_is_written_too_for_an_image_may_set_another(self):
        assert environment(injected(pods.pod()))[names.ENV_PORT] == str(names.DAEMON_PORT)

    def test_another_port_is(self):
        settings = dataclasses.replace(pods.SETTINGS, daemon_port=4000)
        assert environment(injected(pods.pod(), settings=settings))[names.ENV_PORT] == "4000"

    def test_a_port_of_the_templates_own_would_hide_the_daemon(self):
        document = pods.container(pods.pod(), env=[{"name": names.ENV_PORT, "value": "1"}])
        assert environment(injected(document))[names.ENV_PORT] == str(names.DAEMON_PORT)


class TestInitDelivery:
    def test_the_copy_runs_before_the_pods_own_init_containers(self):
        result = injected(pods.pod(initContainers=[{"name": "theirs"}]), settings=INIT)["spec"]
        assert [one["name"] for one in result["initContainers"]] == ["sandman-copy", "theirs"]
        assert result["volumes"] == [
            {"name": "sandman", "emptyDir": {"sizeLimit": delivery.SIZE_LIMIT}}
        ]

    def test_the_copy_satisfies_the_restricted_standard(self):
        copier = injected(pods.pod(), settings=INIT)["spec"]["initContainers"][0]
        assert copier["command"] == ["/bin/python3", "-I", "-S", "/app", "copy", "/.sandman"]
        assert copier["image"] == pods.SETTINGS.daemon_image
        assert copier["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert copier["volumeMounts"] == [{"name": "sandman", "mountPath": "/.sandman"}]

    def test_the_annotation_outdoes_the_default(self):
        by_copy = injected(pods.annotated(pods.pod(), delivery="init"))
        assert "emptyDir" in by_copy["spec"]["volumes"][0]
        by_image = injected(pods.annotated(pods.pod(), delivery="image"), settings=INIT)
        assert "initContainers" not in by_image["spec"]

    def test_an_unknown_delivery_is_refused(self):
        with pytest.raises(
            RefusedError, match=r"sandman.dev/delivery is 'ftp': write image or init"
        ):
            injected(pods.annotated(pods.pod(), delivery="ftp"))

    def test_defaults_that_the_api_server_added_are_no_reason_to_patch_again(self):
        once = injected(pods.pod(), settings=INIT)
        once["spec"]["initContainers"][0] |= {
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }
        again = pods.patch_of(once, settings=INIT)
        assert again == []

    def test_what_somebody_changed_in_our_container_is_set_right(self):
        once = injected(pods.pod(), settings=INIT)
        spoilt = copy.deepcopy(once)
        spoilt["spec"]["initContainers"][0]["image"] = "evil"
        spoilt["spec"]["initContainers"][0]["securityContext"]["capabilities"] = {"drop": []}
        spoilt["spec"]["volumes"][0]["emptyDir"] = {"medium": "Memory"}
        assert injected(spoilt, settings=INIT) == once

    @pytest.mark.parametrize(
        ("resources", "requests"),
        [
            (
                {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
                "500m",
            ),
            (
                {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "2", "memory": "1Gi"},
                },
                "50m",
            ),
            ({"requests": {"cpu": "1"}}, "50m"),
            ({"limits": {"cpu": "1"}}, "50m"),
            (None, "50m"),
        ],
    )
    def test_the_pod_keeps_its_quality_of_service(self, resources, requests):
        document = pods.container(pods.pod(), resources=resources)
        copier = injected(document, settings=INIT)["spec"]["initContainers"][0]
        assert copier["resources"]["requests"]["cpu"] == requests
        assert copier["resources"]["limits"]["cpu"] == "500m"


class TestImageDelivery:
    def test_a_pod_copied_from_an_older_version_gets_this_versions_daemon(self):
        old = injected(pods.pod(), settings=dataclasses.replace(pods.SETTINGS, daemon_image="old"))
        volumes = injected(old)["spec"]["volumes"]
        assert volumes == injected(pods.pod())["spec"]["volumes"]

    @pytest.mark.parametrize("settings", [pods.SETTINGS, INIT])
    def test_a_volume_of_that_name_and_another_kind_is_refused(self, settings):
        document = pods.pod(volumes=[{"name": "sandman", "configMap": {"name": "x"}}])
        with pytest.raises(RefusedError, match="volume sandman is in the pod already"):
            injected(document, settings=settings)

    @pytest.mark.parametrize("settings", [pods.SETTINGS, INIT])
    def test_a_foreign_init_container_of_that_name_is_refused(self, settings):
        document = pods.pod(initContainers=[{"name": "sandman-copy", "command": ["sh"]}])
        with pytest.raises(RefusedError, match="init container sandman-copy is in the pod already"):
            injected(document, settings=settings)


ANY = settings(deadline=None, max_examples=60)
DELIVERIES = st.sampled_from([pods.SETTINGS, INIT])


class TestAnyPod:
    @ANY
    @given(pods.acceptable(), DELIVERIES)
    def test_the_patch_applies_and_the_pod_keeps_its_promises(self, document, settings):
        before = copy.deepcopy(document)
        result = injected(document, "n1", settings)
        assert document == before, "the input is a value"
        spec, first = result["spec"], result["spec"]["containers"][0]
        digest = inject.credential(pods.KEYRING, pods.NAMESPACE, "n1").digest
        digests = [one for one in first["env"] if one["name"] == names.ENV_TOKEN_SHA256]
        assert {"name": names.ENV_TOKEN_SHA256, "value": digest} in digests
        assert all(one["value"] == digest for one in digests)
        assert first["command"] == list(names.DAEMON_COMMAND)
        assert first.get("args") is None
        assert first.get("restartPolicy") is None
        assert spec["restartPolicy"] == "Never"
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert 0 <= spec["terminationGracePeriodSeconds"] <= 5
        assert [one["name"] for one in spec["volumes"]].count("sandman") == 1
        assert [one["name"] for one in first["volumeMounts"]].count("sandman") == 1
        assert result["metadata"]["annotations"][names.ANNOTATION_NONCE] == "n1"

    @ANY
    @given(pods.acceptable(), DELIVERIES)
    def test_twice_is_once_but_for_the_nonce(self, document, settings):
        once = injected(document, "n1", settings)
        assert pods.patch_of(once, "n1", settings) == []
        assert injected(once, "n2", settings) == injected(document, "n2", settings)

    @ANY
    @given(pods.acceptable(), DELIVERIES)
    def test_what_is_not_ours_stays_and_in_order(self, document, settings):
        result = injected(document, "n1", settings)
        old, new = document["spec"], result["spec"]
        assert new["containers"][1:] == old["containers"][1:]
        ours = names.INIT_CONTAINER
        inits = [one for one in new.get("initContainers") or [] if one["name"] != ours]
        assert inits == (old.get("initContainers") or [])
        assert [one for one in new["volumes"] if one["name"] != "sandman"] == (
            old.get("volumes") or []
        )
        touched = {"containers", "initContainers", "volumes", "restartPolicy", "enableServiceLinks"}
        touched |= {"automountServiceAccountToken", "terminationGracePeriodSeconds"}
        assert {k: v for k, v in new.items() if k not in touched} == {
            k: v for k, v in old.items() if k not in touched
        }
        self._same_container(old["containers"][0], new["containers"][0])
        self._same_metadata(document["metadata"], result["metadata"])

    def _same_container(self, old, new):
        assert [one for one in new["volumeMounts"] if one["name"] != "sandman"] == (
            old.get("volumeMounts") or []
        )
        own = {names.ENV_TOKEN_SHA256, names.ENV_PORT}
        assert [one for one in new["env"] if one["name"] not in own] == [
            one for one in old.get("env") or [] if one["name"] not in own
        ]
        touched = {"env", "volumeMounts", "command", "args", "restartPolicy"}
        assert {k: v for k, v in new.items() if k not in touched} == {
            k: v for k, v in old.items() if k not in touched
        }

    def _same_metadata(self, old, new):
        ours = {names.ANNOTATION_NONCE, names.ANNOTATION_KEY_ID, names.ANNOTATION_INJECTED}
        assert {k: v for k, v in new["annotations"].items() if k not in ours} == {
            k: v for k, v in (old.get("annotations") or {}).items() if k not in ours
        }
        labels = {names.LABEL_STATE: names.STATE_FREE} | old["labels"]
        assert new["labels"] == labels


class TestWish:
    @pytest.mark.parametrize(
        "document",
        [
            None,
            [],
            {},
            {"metadata": None},
            {"metadata": {"labels": None}},
            {"metadata": {"labels": {}}},
        ],
    )
    def test_only_the_label_asks_for_injection(self, document):
        assert inject.wanted(document) is None

    def test_the_label_asks(self):
        assert inject.wanted(pods.pod()) == names.INJECT_POOL

    @pytest.mark.parametrize(
        ("value", "wanted"), [("workload", "workload"), ("enabled", None), ("", None), ([], None)]
    )
    def test_what_another_value_of_the_label_asks_for(self, value, wanted):
        document = pods.pod()
        document["metadata"]["labels"][names.LABEL_INJECT] = value
        assert inject.wanted(document) == wanted
