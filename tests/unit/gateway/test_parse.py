"""Bodies of allocation calls: what is taken, and which field each refusal names."""

from __future__ import annotations

import pytest

from gateway.config import Settings
from gateway.model import Purpose, Terms
from gateway.routes import changes, parse
from sandman.errors import BadRequestError, NetworkUnsupportedError

SETTINGS = Settings()


def test_the_defaults():
    request = parse.sandbox_request({"image": "debian"}, SETTINGS)
    assert (request.image, request.pool, request.max_s, request.wait_s) == (
        "debian",
        "root",
        4 * 3600.0,
        60.0,
    )


def test_everything():
    body = {
        "image": "r.example:5000/team/task@sha256:" + "a" * 64, "pool": "restricted",
        "env": {"A": "1", "B": ""}, "workdir": "/w", "user": 1000, "run": "run-1",
        "labels": {"x": "y"}, "lease": {"max_s": 60}, "wait_s": 5.5, "purpose": "eval",
    }  # fmt: skip
    request = parse.sandbox_request(body, SETTINGS)
    assert request.env == (("A", "1"), ("B", ""))
    assert request.labels == (("x", "y"),)
    assert (request.user, request.max_s, request.wait_s) == (1000, 60.0, 5.5)
    assert request.purpose is Purpose.EVAL


def test_resources_and_who_chooses_the_pool():
    body = {"resources": {"cpu": "500m", "memory": "2Gi"}, "node_class": "gpu"}
    request = parse.sandbox_request(body, SETTINGS)
    assert request.resources == (500, 2 * 1024**3)
    assert (request.node_class, request.names_pool, request.pool) == ("gpu", False, "root")
    request = parse.sandbox_request({"pool": "root", "resources": {"cpu": 2}}, SETTINGS)
    assert (request.resources, request.names_pool) == ((2000, None), True)
    request = parse.sandbox_request({"resources": {}}, SETTINGS)
    assert request.resources == (None, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"image": "a/UPPER"}, "image"),
        ({"image": "a b"}, "image"),
        ({"image": ""}, "image"),
        ({"image": "x:"}, "image"),
        ({"image": "x@sha256:short"}, "image"),
        ({"image": "https://x/y"}, "image"),
        ({"image": 5}, "image"),
        ({"image": "x" * 600}, "image"),
        ({"image": "x", "workdir": "rel"}, "workdir"),
        ({"image": "x", "run": "no spaces"}, "run"),
        ({"image": "x", "run": ""}, "run"),
        ({"image": "x", "labels": {"a": 1}}, "labels"),
        ({"image": "x", "labels": []}, "labels"),
        ({"image": "x", "labels": {"a": "y" * 40000}}, "labels"),
        ({"image": "x", "lease": 5}, "lease"),
        ({"image": "x", "lease": {"max_s": 1e8}}, "lease.max_s"),
        ({"image": "x", "lease": {"max_s": 0}}, "lease.max_s"),
        ({"image": "x", "lease": {"nope": 0}}, "lease.nope"),
        ({"image": "x", "wait_s": 1e6}, "wait_s"),
        ({"image": "x", "wait_s": True}, "wait_s"),
        ({"image": "x", "env": {"A=B": "c"}}, "env"),
        ({"image": "x", "env": {"A": 1}}, "env.A"),
        ({"image": "x", "purpose": "test"}, "purpose"),
        ({"image": "x", "resources": 2}, "resources"),
        ({"image": "x", "resources": {"gpu": 1}}, "resources.gpu"),
        ({"image": "x", "resources": {"cpu": "2 cores"}}, "resources.cpu"),
        ({"image": "x", "resources": {"cpu": -1}}, "resources.cpu"),
        ({"image": "x", "resources": {"cpu": True}}, "resources.cpu"),
        ({"image": "x", "resources": {"cpu": "9m"}}, "resources.cpu"),
        ({"image": "x", "resources": {"cpu": 1001}}, "resources.cpu"),
        ({"image": "x", "resources": {"memory": "4GB"}}, "resources.memory"),
        ({"image": "x", "resources": {"memory": "1Mi"}}, "resources.memory"),
        ({"image": "x", "resources": {"memory": "1Pi"}}, "resources.memory"),
        ({"image": "x", "node_class": "no spaces"}, "node_class"),
        ({"image": "x", "user": -1}, "user"),
        ({"image": "x", "imgae": "typo"}, "imgae"),
    ],
)
def test_a_refusal_names_its_field(body, field):
    with pytest.raises(BadRequestError) as caught:
        parse.sandbox_request(body, SETTINGS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text",
    ["debian", "debian:12", "library/debian", "r.example/a/b_c/d-e:V1.0", "localhost:5000/x",
     "127.0.0.1:5000/sandman-test/debian:1", "a__b/c.d", "[::1]:5000/x",
     "x:tag@sha256:" + "0" * 64],
)  # fmt: skip
def test_image_references_of_every_form(text):
    assert parse.image(text) == text


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_an_idempotency_key_has_a_length(key):
    with pytest.raises(BadRequestError, match="Idempotency-Key"):
        parse.idempotency_key(key)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workdir": "/" + "x" * 4096}, "workdir"),
        ({"user": "x" * 257}, "user"),
        ({"user": 10**300}, "user"),
        # As JSON in an annotation each of these takes twelve bytes.
        ({"labels": {"a": "\U0001f600" * 4000}}, "labels"),
    ],
)
def test_what_would_not_fit_on_a_pod_is_refused_with_its_own_field(body, field):
    with pytest.raises(BadRequestError) as caught:
        parse.sandbox_request({"image": "x", **body}, SETTINGS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("sandbox", "name"),
    [
        ("pool-5d9c-x2x7q-1f0e9c3a", "pool-5d9c-x2x7q"), ("a.b-00000000", "a.b"),
        ("..-00000000", None), ("a-0000000", None), ("a-0000000G", None), ("a/b-00000000", None),
        ("", None), ("-00000000", None), ("a-00000000\n", None), ("x" * 254 + "-00000000", None),
    ],
)  # fmt: skip
def test_a_sandbox_id_holds_a_pods_name_or_is_none(sandbox, name):
    assert parse.pod_name(sandbox) == name


def test_the_query_of_a_list_is_one_run_or_none():
    assert parse.list_query([]) == (None, False)
    assert parse.list_query([("run", "r1")]) == ("r1", False)
    assert parse.list_query([("state", "ended"), ("run", "r1")]) == ("r1", True)
    assert parse.list_query([("state", "living")]) == (None, False)


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ([("rnu", "r1")], "rnu"),
        ([("run", "r1"), ("labels", "x")], "labels"),
        ([("run", "r1"), ("run", "r2")], "run"),
        ([("run", "")], "run"),
        ([("state", "endde")], "state"),
        ([("state", "ended"), ("state", "ended")], "state"),
    ],
)
def test_a_list_that_would_show_more_than_was_asked_is_refused(pairs, field):
    with pytest.raises(BadRequestError) as caught:
        parse.list_query(pairs)
    assert caught.value.field == field


def test_an_egress_profile_is_a_name():
    request = parse.sandbox_request({"network": "open", "network_wait": True}, SETTINGS)
    assert (request.network, request.network_wait) == ("open", True)
    request = parse.sandbox_request({}, SETTINGS)
    assert (request.network, request.network_wait) == (None, None)
    # An evaluation waits, unless its caller says this.
    request = parse.sandbox_request({"network_wait": False}, SETTINGS)
    assert request.network_wait is False


def test_nodes_to_be_avoided_are_names_of_nodes():
    asked = {"avoid_nodes": ["node-2", "node-1.example", "node-2"]}
    request = parse.sandbox_request(asked, SETTINGS)
    assert request.avoid_nodes == ("node-1.example", "node-2")
    assert parse.sandbox_request({}, SETTINGS).avoid_nodes == ()


@pytest.mark.parametrize(
    "nodes", ["node-1", {"a": 1}, [1], ["Node"], ["a b"], [""], [f"n{i}" for i in range(17)]]
)
def test_what_is_no_list_of_nodes_is_refused(nodes):
    with pytest.raises(BadRequestError, match="16 names of nodes") as caught:
        parse.sandbox_request({"avoid_nodes": nodes}, SETTINGS)
    assert caught.value.field == "avoid_nodes"


@pytest.mark.parametrize("rules", [{"allow": ["packages.example:443"]}, ["10.0.0.0/8"], {}, []])
def test_rules_of_a_callers_own_are_refused_and_not_passed_over(rules):
    with pytest.raises(NetworkUnsupportedError, match="Name an egress profile") as caught:
        parse.sandbox_request({"network": rules}, SETTINGS)
    assert caught.value.field == "network"
    with pytest.raises(NetworkUnsupportedError):
        changes.network_change({"network": rules}, SETTINGS)


@pytest.mark.parametrize("text", ["", "a b", "-", "x" * 64, "a,b", "*", 1, True])
def test_what_cannot_be_a_profiles_name(text):
    with pytest.raises(BadRequestError) as caught:
        parse.sandbox_request({"network": text}, SETTINGS)
    assert caught.value.field == "network"


def test_a_change_of_the_network():
    assert changes.network_change({"network": "open"}, SETTINGS) == ("open", 30.0)
    assert changes.network_change({"network": "none", "wait_s": 2}, SETTINGS) == ("none", 2.0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "network"),
        ({"network": None}, "network"),
        ({"network": "open", "wait_s": 0}, "wait_s"),
        ({"network": "open", "wait_s": 601}, "wait_s"),
        ({"network": "open", "more": 1}, "more"),
    ],
)
def test_a_change_that_is_none(body, field):
    with pytest.raises(BadRequestError) as caught:
        changes.network_change(body, SETTINGS)
    assert caught.value.field == field


class TestAttach:
    def read(self, **body):
        return parse.attach_request({"namespace": "shop", "pod": "web"} | body, Settings())

    def test_what_is_meant(self):
        wanted = self.read(
            container="app", run="r", env={"A": "1"}, lease={"max_s": 60}, user=0, labels={"l": "1"}
        )
        assert (wanted.namespace, wanted.pod, wanted.container) == ("shop", "web", "app")
        assert (wanted.env, wanted.terms, wanted.user) == ((("A", "1"),), Terms(max_s=60), 0)
        assert self.read().terms == Terms(max_s=Settings().life_default_s)
        lease = {"ttl_s": 60, "idle_s": 30, "max_s": 90, "run": True}
        assert self.read(lease=lease, run="r").terms == Terms(
            ttl_s=60, idle_s=30, max_s=90, of_run=True
        )
        assert self.read(pod=None, selector={"a": "b"}).selector == (("a", "b"),)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"namespace": ""}, "namespace"),
            ({"pod": None}, "pod"),
            ({"selector": {"a": "b"}}, "pod"),
            ({"selector": {"a": 1}, "pod": None}, "selector"),
            ({"image": "x"}, "image"),
            ({"lease": {"max_s": 1e9}}, "lease.max_s"),
            ({"lease": {"ttl_s": 1}}, "lease.ttl_s"),
            ({"lease": {"idle_s": 1, "max_s": 60}}, "lease.idle_s"),
            ({"lease": {"run": True}}, "lease.run"),
            ({"lease": {"left_s": 1}}, "lease.left_s"),
            ({"run": "a b"}, "run"),
        ],
    )
    def test_what_is_wrong_is_told_with_its_field(self, body, field):
        with pytest.raises(BadRequestError) as told:
            self.read(**body)
        assert told.value.field == field

    def test_the_query_of_the_list(self):
        assert parse.attachable_query([("attachable", "")]) is None
        assert parse.attachable_query([("namespace", "a"), ("attachable", "1")]) == "a"
        for pairs in (
            [("attachable", ""), ("run", "x")],
            [("attachable", "1"), ("attachable", "")],
        ):
            with pytest.raises(BadRequestError):
                parse.attachable_query(pairs)
