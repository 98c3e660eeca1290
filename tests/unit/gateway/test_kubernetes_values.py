"""Kubernetes objects in, the gateway's values out; the claim patch and the cold pod."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.model import (
    Assignment,
    Broken,
    Instance,
    Owner,
    PoolSpec,
    Terms,
    Tier,
)
from gateway.provider import patches, pods
from sandman import names
from sandman.service import kube

IMAGE = "r.example/task:1"


def assignment(**changes) -> Assignment:
    values = {
        "claim_id": "c1", "previous_boot_id": "b0", "tier": Tier.SWAP, "tenant": "acme",
        "image": IMAGE, "expires_at": 2000.5, "max_s": 100.0,
        "request": {"image": IMAGE, "labels": {"a": "b"}}, "run": "r1", "key": "k" * 40,
    }  # fmt: skip
    return Assignment(**(values | changes))


def placeholder(**changes) -> Instance:
    values = {
        "namespace": "ns", "name": "p", "uid": "u" * 36, "version": "7", "pool": "root",
        "state": names.STATE_FREE, "image": "r.example/base:1", "started_at": 970.0,
    }  # fmt: skip
    return Instance(**(values | changes))


def pod(document: dict) -> kube.Pod:
    return msgspec.json.decode(json.dumps(document), type=kube.Pod)


def running_pod(**status) -> dict:
    return {
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "12345678-9", "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                names.LABEL_POOL: "root", names.LABEL_STATE: "leased", names.LABEL_TENANT: "acme",
                names.LABEL_RUN: "r1", names.LABEL_KEY: "k", names.LABEL_TIER: "swap",
            },
            "annotations": {
                names.ANNOTATION_NONCE: "n", names.ANNOTATION_KEY_ID: "k1",
                names.ANNOTATION_CLAIM: '{"id":"c1","previous_boot_id":"b0"}',
                names.ANNOTATION_LEASE: '{"expires_at":2000.5}',
                names.ANNOTATION_REQUEST: '{"labels":{"a":"b"}}',
            },
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": IMAGE}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.9", "startTime": "2026-01-01T00:00:01Z",
            "containerStatuses": [
                {"name": "side", "imageID": "side@sha256:1", "state": {"running": {}}},
                {"name": "main", "imageID": "task@sha256:2", "restartCount": 1,
                 "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}},
            ],
        } | status,
    }  # fmt: skip


# --- the claim ---


def test_the_claim_tests_before_it_writes_and_writes_everything_at_once():
    operations = patches.claim(placeholder(), assignment(), now=1000.0)
    assert operations[:5] == [
        {"op": "test", "path": "/metadata/uid", "value": "u" * 36},
        {"op": "test", "path": "/metadata/labels/sandman.dev~1state", "value": "free"},
        {"op": "test", "path": "/metadata/deletionTimestamp", "value": None},
        {"op": "remove", "path": "/metadata/ownerReferences"},
        {"op": "replace", "path": "/metadata/labels/sandman.dev~1state", "value": "leased"},
    ]
    written = {one["path"]: one.get("value") for one in operations[5:]}
    assert written.pop("/spec/containers/0/image") == IMAGE
    # 100 s of life, 30 s of age, a minute for the clocks.
    assert written.pop("/spec/activeDeadlineSeconds") == 190
    assert written == {
        "/metadata/labels/sandman.dev~1tenant": "acme",
        "/metadata/labels/sandman.dev~1tier": "swap",
        "/metadata/labels/sandman.dev~1run": "r1",
        "/metadata/labels/sandman.dev~1key": "k" * 40,
        "/metadata/labels/sandman.dev~1network": "none",
        "/metadata/annotations/sandman.dev~1claim": '{"id":"c1","previous_boot_id":"b0"}',
        "/metadata/annotations/sandman.dev~1lease": '{"expires_at":2000.5,"max_s":100.0,"start_s":0.0}',
        "/metadata/annotations/sandman.dev~1request": '{"image":"r.example/task:1","labels":{"a":"b"}}',
        "/metadata/annotations/cluster-autoscaler.kubernetes.io~1safe-to-evict": "false",
        "/metadata/managedFields": [{}],
    }


def test_a_warm_claim_leaves_the_image_alone_and_absent_values_are_no_labels():
    same = assignment(image="r.example/base:1", previous_boot_id=None, run=None, key=None)
    paths = [one["path"] for one in patches.claim(placeholder(), same, now=0.0)]
    assert "/spec/containers/0/image" not in paths
    assert not [path for path in paths if "run" in path or "key" in path]


def test_a_cold_pod_is_the_template_leased():
    template = {
        "metadata": {"labels": {names.LABEL_STATE: "free", names.LABEL_POOL: "root"}},
        "spec": {"containers": [{"name": "main", "image": "base"}], "restartPolicy": "Always"},
    }
    spec = PoolSpec("ns", "root", "base", swap=True, wanted=1, most=None, template=template)
    body = patches.cold_pod(spec, "cold-1", assignment(previous_boot_id=None))
    assert body["metadata"]["name"] == "cold-1"
    assert body["metadata"]["labels"][names.LABEL_STATE] == "leased"
    assert body["metadata"]["labels"][names.LABEL_POOL] == "root"
    assert body["spec"]["containers"][0]["image"] == IMAGE
    assert body["spec"]["activeDeadlineSeconds"] == 160
    assert "ownerReferences" not in body["metadata"]
    # The template itself, which the cache shares, is as it was.
    assert template["spec"]["containers"][0]["image"] == "base"


OWNER = Owner("ns", "trainer", "j1")
REFERENCE = {"apiVersion": "batch/v1", "kind": "Job", "name": "trainer", "uid": "j1"}


def test_a_job_takes_the_place_of_the_replica_set():
    owned = assignment(owner=OWNER)
    [change] = [
        one
        for one in patches.claim(placeholder(), owned, now=0.0)
        if "ownerReferences" in one["path"]
    ]
    assert change == {"op": "replace", "path": "/metadata/ownerReferences", "value": [REFERENCE]}
    template = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "base"}]}}
    spec = PoolSpec("ns", "root", "base", swap=True, wanted=1, most=None, template=template)
    assert patches.cold_pod(spec, "c", owned)["metadata"]["ownerReferences"] == [REFERENCE]


def test_what_was_agreed_is_written_and_read_again():
    terms = Terms(ttl_s=60.0, idle_s=30.0, max_s=100.0, of_run=True)
    agreed = assignment(terms=terms, start_s=330.0)
    text = patches.lease_annotations(agreed)[names.ANNOTATION_LEASE]
    assert json.loads(text) == {
        "expires_at": 2000.5, "max_s": 100.0, "start_s": 330.0, "ttl_s": 60.0, "idle_s": 30.0,
        "run": True,
    }  # fmt: skip
    # A start that may take long is in the kubelet's deadline, which cannot be raised later.
    written = {
        one["path"]: one.get("value") for one in patches.claim(placeholder(), agreed, 1000.0)
    }
    assert written["/spec/activeDeadlineSeconds"] == 190 + 330
    document = running_pod()
    document["metadata"]["annotations"][names.ANNOTATION_LEASE] = text
    document["metadata"]["annotations"][names.ANNOTATION_RENEWED] = "5 1"
    one = pods.instance(pod(document))
    assert (one.terms, one.renewed) == (terms, "5 1")
    # It was started in 2026, decades after that: no later than a start may be.
    assert one.expires_at == 2000.5 + 330.0
    document["status"]["containerStatuses"][0]["restartCount"] = 0
    assert pods.instance(pod(document)).expires_at == 2000.5 + 330.0


def test_a_renewal_is_one_annotation_and_none_on_what_ends():
    operations = patches.renewal(placeholder(), 2.5, 1000.0)
    assert [(one["op"], one["path"].rpartition("/")[2], one["value"]) for one in operations] == [
        ("test", "uid", "u" * 36),
        ("test", "deletionTimestamp", None),
        ("test", "sandman.dev~1ended", None),
        ("add", "sandman.dev~1renewed", "1000.000 2.5"),
    ]


# --- reading pods ---


def test_a_leased_pod_is_read_whole():
    one = pods.instance(pod(running_pod()))
    assert one.id == "p-12345678"
    assert (one.pool, one.state, one.tenant, one.run, one.key, one.tier) == (
        "root", "leased", "acme", "r1", "k", "swap",
    )  # fmt: skip
    assert (one.claim_id, one.previous_boot_id, one.expires_at) == ("c1", "b0", 2000.5)
    assert (one.address, one.node, one.nonce, one.key_id) == ("10.0.0.9", "n1", "n", "k1")
    assert (one.image, one.image_digest, one.running) == (IMAGE, "task@sha256:2", True)
    assert one.request == {"labels": {"a": "b"}}
    assert (one.ending, one.waiting, one.deleting) == (None, None, False)


def test_after_a_swap_the_old_digest_is_not_told():
    document = running_pod()
    document["status"]["containerStatuses"][1]["restartCount"] = 0
    assert pods.instance(pod(document)).image_digest is None


def test_annotations_that_somebody_broke_are_absent():
    document = running_pod()
    document["metadata"]["annotations"] = {
        names.ANNOTATION_CLAIM: "{",
        names.ANNOTATION_LEASE: "[]",
        names.ANNOTATION_REQUEST: '"x"',
    }
    one = pods.instance(pod(document))
    assert (one.claim_id, one.expires_at, one.request) == (None, None, {})


def test_a_container_that_cannot_start_is_stuck_and_one_that_is_being_made_is_not():
    document = running_pod()
    status = document["status"]["containerStatuses"][1]
    status["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}
    one = pods.instance(pod(document))
    assert (one.is_stuck, one.running) == (True, False)
    status["state"] = {"waiting": {"reason": "ContainerCreating"}}
    assert not pods.instance(pod(document)).is_stuck


def deployment(**annotations: str) -> kube.Deployment:
    return msgspec.json.decode(
        json.dumps(
            {
                "metadata": {
                    "name": "d",
                    "namespace": "ns",
                    "labels": {names.LABEL_POOL: "root"},
                    "annotations": annotations,
                },
                "spec": {
                    "replicas": 3,
                    "template": {"spec": {"containers": [{"name": "main", "image": "base"}]}},
                },
            }
        ),
        type=kube.Deployment,
    )


@pytest.mark.parametrize(
    ("policy", "keeps"), [("IfNotPresent", True), ("Never", True), ("Always", False), (None, False)]
)
def test_a_pool_that_asks_the_registry_at_each_start_keeps_no_images(policy, keeps):
    made = deployment()
    made.spec.template["spec"]["containers"][0]["imagePullPolicy"] = policy
    spec = pods.pool(made)
    assert spec is not None
    assert spec.keeps_images is keeps


@pytest.mark.parametrize(
    ("own", "others", "network", "networks"),
    [
        (None, None, "none", set()),
        ("open", None, "open", set()),
        ("", " open , model,", "none", {"open", "model"}),
        ("none", "*", "none", {"*"}),
    ],
)
def test_which_egress_profiles_a_pool_has(own, others, network, networks):
    notes = {names.ANNOTATION_POOL_NETWORK: own, names.ANNOTATION_POOL_NETWORKS: others}
    spec = pods.pool(deployment(**{name: told for name, told in notes.items() if told is not None}))
    assert spec is not None
    assert (spec.network, spec.networks) == (network, networks)


@pytest.mark.parametrize(
    ("told", "secrets", "admitted"),
    [
        (None, False, {"acme", "zeta"}),
        ("acme", False, {"acme"}),
        (" acme , zeta ", True, {"acme", "zeta"}),
        ("", False, set()),
        ("*", True, {"acme", "zeta"}),
        # Whoever may use a pool may use what its pull secrets open: somebody has to say who.
        (None, True, set()),
    ],
)
def test_whose_a_pool_is(told, secrets, admitted):
    made = deployment(**({} if told is None else {names.ANNOTATION_POOL_TENANTS: told}))
    if secrets:
        made.spec.template["spec"]["imagePullSecrets"] = [{"name": "private"}]
    spec = pods.pool(made)
    assert spec is not None
    assert {one for one in ("acme", "zeta") if spec.admits(one)} == admitted


@pytest.mark.parametrize(
    "told",
    ["", "[]", "{}", "not json", '{"reason": 1, "replicas": 2, "template": "t"}',
     '{"reason": "r", "replicas": -1, "template": "t"}', '{"reason": "r", "replicas": true, "template": "t"}',
     '{"reason": "r", "replicas": 10000000000, "template": "t"}', '{"reason": "r", "replicas": 1}'],
)  # fmt: skip
def test_what_somebody_wrote_in_the_place_of_the_reason_stops_no_pool(told):
    spec = pods.pool(deployment(**{names.ANNOTATION_BROKEN: told}))
    assert spec is not None
    assert (spec.broken, spec.stopped) == (None, False)


def test_a_pool_is_stopped_for_as_long_as_it_has_the_template_that_is_to_blame():
    now = pods.fingerprint(deployment().spec.template)
    for template, stopped in ((now, True), ("another", False)):
        told = {"reason": "r", "at": 5, "replicas": 3, "template": template}
        spec = pods.pool(deployment(**{names.ANNOTATION_BROKEN: json.dumps(told)}))
        assert spec is not None
        assert (spec.broken, spec.stopped) == (Broken("r", 5.0, 3, template), stopped)


def test_a_pod_whose_daemon_cannot_be_copied_is_stuck_with_that():
    document = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "task"}]},
        "status": {
            "containerStatuses": [
                {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
            ],
            "initContainerStatuses": [
                {"name": "done", "state": {"terminated": {"exitCode": 0}}},
                {"name": "copy", "state": {"waiting": {"reason": "ErrImagePull", "message": "x"}}},
            ],
        },
    }
    one = pods.instance(pod(document))
    assert one.waiting == ("ErrImagePull", "x")
    assert one.is_stuck
    document["status"]["initContainerStatuses"].pop()
    assert pods.instance(pod(document)).waiting == ("PodInitializing", "")


def test_a_node_tells_all_names_of_its_images():
    document = {
        "metadata": {"name": "n1"},
        "status": {
            "images": [{"names": ["a@sha256:1", "a:1"]}, {"names": None}, {"names": ["b:1"]}]
        },
    }
    assert pods.images(msgspec.convert(document, type=kube.Node)) == ("a@sha256:1", "a:1", "b:1")


def test_a_pool_is_read_from_its_deployment():
    spec = pods.pool(deployment(**{names.ANNOTATION_POOL_MAX: "9"}))
    assert spec is not None
    assert (spec.name, spec.image, spec.swap, spec.wanted, spec.most) == (
        "root", "base", True, 3, 9,
    )  # fmt: skip


def test_swaps_are_forbidden_by_annotation_and_a_bad_maximum_is_none():
    spec = pods.pool(
        deployment(**{names.ANNOTATION_POOL_SWAP: "false", names.ANNOTATION_POOL_MAX: "many"})
    )
    assert spec is not None
    assert (spec.swap, spec.most) == (False, None)
