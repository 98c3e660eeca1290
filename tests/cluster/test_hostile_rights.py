"""Attempts by somebody who may make pods and Deployments, on what is around the sandboxes: Sandman's own objects, and
objects of those names elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway import tokens
from sandman import names
from tests.cluster import faults, hostile, hostile_namespace
from tests.cluster.hostile import Gates, Said, said
from tests.cluster.hostile_namespace import (
    DRY,
    HOME,
    Json,
    Mallory,
    controller,
    denied,
    forbidden,
    pod,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

SYSTEM, SANDBOXES = names.SYSTEM_NAMESPACE, names.SANDBOX_NAMESPACE
ADMISSION = "admissionregistration.k8s.io"
LEASES = denied(
    "sandman-guard-leases",
    "Leases with labels or annotations below sandman.dev/ are written by Sandman alone",
)
NETWORKS = denied(
    "sandman-guard-networks",
    "network policies of sandboxes are written by who may manage pools.sandman.dev in this namespace, by nobody else",
)
UNKNOWN = Said(401, "unauthenticated", "the token is not known")


class World(NamedTuple):
    """Mallory, and how the gateways are reached."""

    gates: Gates
    mallory: Mallory

    @property
    def sandman(self) -> Deployed:
        return self.mallory.sandman


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    with hostile_namespace.mallory(sandman) as mallory, hostile.gates(sandman) as gates:
        yield World(gates, mallory)


# --- Sandman's own ------------------------------------------------------------------------------

ENABLED = f"{names.LABEL_INJECT}=enabled"
OWN = f"/api/v1/namespaces/{SYSTEM}"
HOOKS = f"/apis/{ADMISSION}/v1/mutatingwebhookconfigurations"


def put(path: str) -> list[str]:
    """A write without a look before it, as kubectl has for `patch`."""
    return ["replace", "--raw", path, "-f", "-"]


RIGHTS: dict[str, tuple[str, list[str], str]] = {
    "the signing keys": (SYSTEM, ["get", "secret", names.KEYS_SECRET], forbidden("get", "secrets")),
    "the API keys": (SYSTEM, ["get", "secret", names.API_KEYS_SECRET], forbidden("get", "secrets")),
    "all Secrets": (SYSTEM, ["get", "secrets"], forbidden("list", "secrets")),
    "a key for himself": (SYSTEM, put(f"{OWN}/secrets/{names.API_KEYS_SECRET}"), forbidden("update", "secrets")),
    "the rules of callers": (SYSTEM, ["get", "configmap", names.CALLERS_CONFIG], forbidden("get", "configmaps")),
    "a rule for himself": (SYSTEM, put(f"{OWN}/configmaps/{names.CALLERS_CONFIG}"), forbidden("update", "configmaps")),
    "the allocator's lock": (
        SYSTEM, ["delete", "lease", names.ALLOCATOR_LEASE], forbidden("delete", "leases", "coordination.k8s.io")),
    "the gateway's account": (
        SYSTEM, ["create", "token", "sandman-gateway"], forbidden("create", "serviceaccounts/token")),
    "the gateways": (SYSTEM, ["delete", "deployment", "sandman-gateway"], forbidden("delete", "deployments", "apps")),
    "the webhook's entry": (
        SYSTEM, ["delete", "mutatingwebhookconfiguration", names.WEBHOOK_CONFIGURATION],
        forbidden("delete", "mutatingwebhookconfigurations", ADMISSION, "")),
    "the webhook's address": (
        SYSTEM, put(f"{HOOKS}/{names.WEBHOOK_CONFIGURATION}"),
        forbidden("update", "mutatingwebhookconfigurations", ADMISSION, "")),
    "a policy": (
        SYSTEM, ["delete", "validatingadmissionpolicy", "sandman-guard-state"],
        forbidden("delete", "validatingadmissionpolicies", ADMISSION, "")),
    "a policy's binding": (
        SYSTEM, ["delete", "validatingadmissionpolicybinding", "sandman-guard-state"],
        forbidden("delete", "validatingadmissionpolicybindings", ADMISSION, "")),
    "the mark of the sandboxes' namespace": (
        SANDBOXES, ["label", "namespace", SANDBOXES, f"{names.LABEL_INJECT}-"],
        forbidden("patch", "namespaces", "", SANDBOXES)),
    "the mark for his own": (HOME, ["label", "namespace", HOME, ENABLED], forbidden("patch", "namespaces", "", HOME)),
    "more rights": (
        SANDBOXES, ["create", "rolebinding", "x", "--clusterrole=cluster-admin", f"--serviceaccount={HOME}:mallory"],
        forbidden("create", "rolebindings", "rbac.authorization.k8s.io", SANDBOXES)),
    "a pod's state, as a kubelet": (
        SANDBOXES, put(f"/api/v1/namespaces/{SANDBOXES}/pods/x/status"),
        forbidden("update", "pods/status", "", SANDBOXES)),
    "the quota": (
        SANDBOXES, ["delete", "resourcequota", "sandman-pods"], forbidden("delete", "resourcequotas", "", SANDBOXES)),
    "pods of Sandman's": (SYSTEM, ["get", "pods"], forbidden("list", "pods")),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHTS)
def test_what_is_sandmans_is_not_his(world: World, case: str) -> None:
    where, arguments, because = RIGHTS[case]
    assert because in world.mallory.refused(*arguments, where=where, stdin={})


def lease(labels: Json, annotations: Json | None = None) -> Json:
    metadata = {"name": "mallory", "labels": labels, "annotations": annotations or {}}
    spec = {"holderIdentity": "mallory", "leaseDurationSeconds": 3600}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }


FORGED_LEASES = {
    "a heartbeat": lease({names.LABEL_TENANT: "demo", names.LABEL_RUN: "r"}),
    "a reservation": lease({names.LABEL_TENANT: "demo", names.LABEL_RESERVATION: "r"}),
    "an attachment": lease({names.LABEL_TENANT: "other", names.LABEL_ATTACHED: "true"}),
    "another's identity": lease({}, {names.ANNOTATION_IDENTITY: '{"user": "sandman-demo"}'}),
}


@pytest.mark.parametrize("case", FORGED_LEASES)
def test_no_lease_speaks_for_somebody_else(world: World, case: str) -> None:
    assert LEASES in world.mallory.refused("create", "-f", "-", DRY, stdin=FORGED_LEASES[case])


def test_a_lease_that_is_none_of_sandmans_stays_so(world: World) -> None:
    world.mallory.kubectl("create", "-f", "-", stdin=lease({"app": "x"}))
    try:
        told = world.mallory.refused("label", "lease", "mallory", f"{names.LABEL_RUN}=r", DRY)
        assert LEASES in told
    finally:
        world.mallory.kubectl("delete", "lease", "mallory")


def network(labels: Json) -> Json:
    metadata = {"name": "mallory", "labels": labels}
    spec = {
        "podSelector": {},
        "policyTypes": ["Egress", "Ingress"],
        "egress": [{}],
        "ingress": [{}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": spec,
    }


@pytest.mark.parametrize(
    "labels", [{}, {names.LABEL_PROFILE: "mine"}], ids=["open to all", "a profile"]
)
def test_no_network_policy_of_his_opens_sandboxes(world: World, labels: Json) -> None:
    assert NETWORKS in world.mallory.refused("create", "-f", "-", DRY, stdin=network(labels))


def test_no_network_policy_of_sandmans_is_taken_away(world: World) -> None:
    for name in ("sandman-default-deny", "sandman-network-open"):
        assert NETWORKS in world.mallory.refused("delete", "networkpolicy", name, DRY)
    opened = json.dumps({"spec": {"egress": [{}]}})
    told = world.mallory.refused(
        "patch", "networkpolicy", "sandman-default-deny", "-p", opened, DRY
    )
    assert NETWORKS in told


# --- the same names elsewhere -------------------------------------------------------------------


def test_keys_and_rules_in_his_own_namespace_are_nobodys(world: World) -> None:
    token = tokens.make_api_key("mallory")
    entry = tokens.api_key_entry(token, "demo").decode()
    rule = json.dumps({"namespace": HOME, "name": "mallory", "tenant": "demo"})
    own: list[Json] = [
        {"kind": "Secret", "metadata": {"name": names.API_KEYS_SECRET}, "stringData": {"mallory": entry}},
        {"kind": "Secret", "metadata": {"name": names.KEYS_SECRET}, "stringData": {"current": "x"}},
        {"kind": "ConfigMap", "metadata": {"name": names.CALLERS_CONFIG}, "data": {"account.mallory": rule}},
    ]  # fmt: skip
    for where in (HOME, SANDBOXES):
        for one in own:
            world.mallory.kubectl(
                "create", "-f", "-", where=where, stdin={"apiVersion": "v1", **one}
            )
    try:
        assert {said(one) for one in world.gates.each("GET", "/v1/sandboxes", token)} == {UNKNOWN}
        account = world.mallory.kubectl(
            "create", "token", "mallory", "--audience=sandman", where=HOME
        ).strip()
        for answer in world.gates.each("GET", "/v1/sandboxes", account):
            assert answer.status_code in {401, 403}, answer.text
    finally:
        for one in own:
            name = one["metadata"]["name"]
            world.mallory.kubectl("delete", one["kind"].lower(), name, where=SANDBOXES)


def test_the_allocators_lock_elsewhere_locks_nothing(world: World) -> None:
    before = allocator(world.sandman)
    document = lease({})
    document["metadata"]["name"] = names.ALLOCATOR_LEASE
    for where in (HOME, SANDBOXES):
        world.mallory.kubectl("create", "-f", "-", where=where, stdin=document)
    try:
        shown = world.gates.each("GET", "/v1/reservations", world.sandman.installation.token)
        assert {one.status_code for one in shown} == {200}
        assert allocator(world.sandman) == before
    finally:
        world.mallory.kubectl("delete", "lease", names.ALLOCATOR_LEASE, where=SANDBOXES)


def allocator(sandman: Deployed) -> str:
    query = ["get", "lease", names.ALLOCATOR_LEASE, "-o", "jsonpath={.spec.holderIdentity}"]
    return faults.system(sandman, *query)


def test_a_pool_in_his_own_namespace_is_none(world: World) -> None:
    token, image = world.sandman.installation.token, world.sandman.image("python")
    before = [one.json() for one in world.gates.each("GET", "/v1/pools", token)]
    labels = {names.LABEL_POOL: "mallorys", names.LABEL_INJECT: names.INJECT_POOL}
    leased = labels | {
        names.LABEL_STATE: "leased",
        names.LABEL_TENANT: "demo",
        names.LABEL_RUN: "mallory",
    }
    one, deployment = pod(image, leased), controller("Deployment", image, labels, labels)
    made = json.loads(
        world.mallory.kubectl("create", "-f", "-", "-o", "json", where=HOME, stdin=one)
    )
    world.mallory.kubectl("create", "-f", "-", where=HOME, stdin=deployment)
    # Nothing is injected outside of the sandboxes' namespace.
    assert names.ANNOTATION_NONCE not in made["metadata"].get("annotations", {})
    assert made["spec"]["containers"][0]["command"] == ["sleep", "600"]
    sandbox = f"{made['metadata']['name']}-{made['metadata']['uid'][:8]}"
    for answer in world.gates.each("GET", f"/v1/sandboxes/{sandbox}", token):
        assert said(answer) == Said(404, "not_found", f"no sandbox {sandbox}")
    for answer in world.gates.each("GET", "/v1/sandboxes?run=mallory", token):
        assert answer.json() == {"sandboxes": []}
    names_before = [[pool["name"] for pool in one["pools"]] for one in before]
    after: list[Any] = [one.json() for one in world.gates.each("GET", "/v1/pools", token)]
    assert [[pool["name"] for pool in one["pools"]] for one in after] == names_before


def test_the_gateways_account_is_not_borrowed_by_a_pod(world: World) -> None:
    document = pod(world.sandman.image("python"), {}, serviceAccountName="sandman-gateway")
    told = world.mallory.refused("create", "-f", "-", where=HOME, stdin=document)
    assert (
        f'error looking up service account {HOME}/sandman-gateway: serviceaccount "sandman-gateway" not found'
        in told
    )
