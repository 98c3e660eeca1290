"""Attempts by somebody who may make pods and Deployments, among the sandboxes and in a namespace of his own."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sandman import grants, names
from tests.cluster import faults, hostile, hostile_namespace
from tests.cluster.bed import BedError, kubectl
from tests.cluster.bed.shell import wait_until
from tests.cluster.hostile import Box, Gates, Said, said
from tests.cluster.hostile_namespace import (
    DRY,
    PRIVATE,
    Json,
    Mallory,
    Refusals,
    controller,
    copied,
    denied,
    pod,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.deployed import Deployed

STATE, POOLS, INSIDES = (f"sandman-guard-{one}" for one in ("state", "pools", "insides"))
INJECT = {names.LABEL_INJECT: names.INJECT_POOL}
POOL = {names.LABEL_POOL: "root", names.LABEL_STATE: names.STATE_FREE, **INJECT}
POOL_PODS = denied(
    STATE,
    "pool pods (label sandman.dev/pool) are made by Sandman and by the ReplicaSets of its pools, by nobody else",
)
LEASED = denied(
    STATE,
    "a new pod may not carry the state of a leased sandbox (sandman.dev/state, tenant, run, key, tier, reservation, "
    "lease, renewed, request, claim, prepared, ended, network-changed)",
)
NETWORK = denied(
    STATE,
    "a new pod has no network (sandman.dev/network): say sandman.dev/network on the pool's Deployment, as an annotation, "
    "and not in its template",
)
LABELS = denied(STATE, "labels below sandman.dev/ are set and changed by Sandman alone")
ANNOTATIONS = denied(STATE, "annotations below sandman.dev/ are set and changed by Sandman alone")
IMAGES = denied(STATE, "images of pool pods are changed by Sandman alone")
OWNERS = denied(STATE, "owners of a sandbox in use are given and taken by Sandman alone")
MANAGED = denied(
    POOLS,
    "pools (labels below sandman.dev/ on it or in its template) are made and changed by who may manage "
    "pools.sandman.dev in this namespace, by nobody else",
)
KEPT = denied(
    "sandman-keep-leased",
    "this pod is a sandbox in use (sandman.dev/state): its ReplicaSet has no say over it any more",
)
ENTERED = denied(
    INSIDES,
    "sandboxes are entered through the gateway: exec, attach, port-forward, proxy and debug are for who may enter "
    "sandboxes.sandman.dev in this namespace",
)
WEBHOOK = 'admission webhook "pods.sandman.dev" denied the request: not injected: '


class World(NamedTuple):
    """Mallory, and whom he is after."""

    gates: Gates
    victim: Box
    mallory: Mallory

    @property
    def sandman(self) -> Deployed:
        return self.mallory.sandman

    @property
    def image(self) -> str:
        return self.sandman.image("python")


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    token = sandman.installation.token
    with (
        hostile_namespace.mallory(sandman) as mallory,
        hostile.gates(sandman) as gates,
        hostile.box(gates, token, image=sandman.image("python"), run="hostile") as victim,
    ):
        yield World(gates, victim, mallory)
    sandman.wait_nothing_leased(60)


# --- pods by hand -------------------------------------------------------------------------------

Made = tuple["Callable[[World], Json]", str]
PODS: dict[str, Made] = {
    "for a pool": (lambda w: pod(w.image, POOL), POOL_PODS),
    "for a pool of his own": (lambda w: pod(w.image, POOL | {names.LABEL_POOL: "mine"}), POOL_PODS),
    "that looks leased": (lambda w: pod(w.image, INJECT | {names.LABEL_STATE: "leased"}), LEASED),
    "that looks reserved": (lambda w: pod(w.image, {names.LABEL_RESERVATION: "r"}), LEASED),
    "of the victim's tenant": (lambda w: pod(w.image, {names.LABEL_TENANT: "demo"}), LEASED),
    "under the victim's key": (lambda w: pod(w.image, {names.LABEL_KEY: "0" * 32}), LEASED),
    "with a claim": (lambda w: pod(w.image, INJECT, {names.ANNOTATION_CLAIM: '{"id": "x"}'}), LEASED),
    "that looks prepared": (lambda w: pod(w.image, INJECT, {names.ANNOTATION_PREPARED: "{}"}), LEASED),
    "with an open network": (lambda w: pod(w.image, {names.LABEL_NETWORK: "open"}), NETWORK),
    "that is the victim's again": (lambda w: copied(w.sandman, w.victim), POOL_PODS),
    "that is the victim's without its pool": (
        lambda w: without(copied(w.sandman, w.victim), names.LABEL_POOL), LEASED),
    "with the node's network": (
        lambda w: pod(w.image, INJECT, hostNetwork=True),
        f"{WEBHOOK}hostNetwork opens the node to the sandbox: remove hostNetwork from the pod"),
    "with the node's processes": (
        lambda w: pod(w.image, INJECT, hostPID=True),
        f"{WEBHOOK}hostPID opens the node to the sandbox: remove hostPID from the pod"),
    "with the node's privileges": (
        lambda w: pod(w.image, INJECT, main={"securityContext": {"privileged": True}}),
        f"{WEBHOOK}container main is privileged: set privileged to false"),
    "with the node's files": (
        lambda w: pod(w.image, INJECT, volumes=[{"name": "h", "hostPath": {"path": "/"}}]),
        'violates PodSecurity "baseline:latest": hostPath volumes (volume "h")'),
    "with processes shared": (
        lambda w: pod(w.image, INJECT, shareProcessNamespace=True),
        f"{WEBHOOK}the daemon must be process 1 of its container: remove shareProcessNamespace"),
    "with a token of an account": (
        lambda w: pod(w.image, INJECT, volumes=[{"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "sandman"}}]}}]),
        f"{WEBHOOK}the pod carries a ServiceAccount token, which the sandbox could read: set "
        "automountServiceAccountToken: false in the template and project no token"),
    "with the daemon's files in another container": (
        lambda w: pod(w.image, INJECT, initContainers=[{"name": "x", "image": w.image, "volumeMounts": [
            {"name": "sandman", "mountPath": "/x"}]}]),
        f"{WEBHOOK}container x mounts volume sandman at /x: /.sandman and volume sandman are the daemon's, remove the mount"),
    "with files over the daemon's": (
        lambda w: pod(w.image, INJECT, volumes=[{"name": "v", "emptyDir": {}}], main={"volumeMounts": [
            {"name": "v", "mountPath": "/.sandman/app"}]}),
        f"{WEBHOOK}container main mounts volume v at /.sandman/app: /.sandman and volume sandman are the daemon's, "
        "remove the mount"),
    "with a server on the daemon's port": (
        lambda w: pod(w.image, INJECT, initContainers=[{"name": "x", "image": w.image, "restartPolicy": "Always",
            "ports": [{"containerPort": names.DAEMON_PORT}]}]),
        f"{WEBHOOK}container x uses port 21763, which is the daemon's: choose another containerPort"),
}  # fmt: skip


@pytest.mark.parametrize("case", PODS)
def test_a_pod_made_by_hand_is_refused(world: World, case: str) -> None:
    make, because = PODS[case]
    assert because in world.mallory.refused("create", "-f", "-", DRY, stdin=make(world))


def test_a_digest_of_ones_own_choice_is_replaced(world: World) -> None:
    """He knows a token, and gives the pod its hash, with a nonce of his."""
    known = {"name": names.ENV_TOKEN_SHA256, "value": grants.token_digest("known")}
    said_by_him = {names.ANNOTATION_NONCE: "mine", names.ANNOTATION_KEY_ID: "mine"}
    document = pod(world.image, INJECT, said_by_him, main={"env": [known, known]})
    made = json.loads(world.mallory.kubectl("create", "-f", "-", DRY, "-o", "json", stdin=document))
    values = [
        one["value"] for one in made["spec"]["containers"][0]["env"] if one["name"] == known["name"]
    ]
    assert known["value"] not in values
    assert made["metadata"]["annotations"][names.ANNOTATION_NONCE] != "mine"
    assert made["metadata"]["annotations"][names.ANNOTATION_KEY_ID] != "mine"


def test_a_copy_of_the_victim_knows_another_token_and_is_handed_out_to_nobody(world: World) -> None:
    victim = faults.document(world.sandman, world.victim.pod)
    assert victim is not None
    document = without(copied(world.sandman, world.victim), names.LABEL_POOL, names.LABEL_STATE, *PRIVATE,
        names.ANNOTATION_LEASE, names.ANNOTATION_CLAIM, names.ANNOTATION_REQUEST, names.ANNOTATION_RENEWED)  # fmt: skip
    name = document["metadata"]["name"]
    made = json.loads(world.mallory.kubectl("create", "-f", "-", "-o", "json", stdin=document))
    try:
        nonce, key_id = (
            victim["metadata"]["annotations"][one]
            for one in (names.ANNOTATION_NONCE, names.ANNOTATION_KEY_ID)
        )
        assert made["metadata"]["annotations"][names.ANNOTATION_NONCE] != nonce
        output = f"jsonpath={{.data.daemon-{key_id}}}"
        key = faults.system(world.sandman, "get", "secret", names.KEYS_SECRET, "-o", output)
        token = grants.daemon_token(base64.b64decode(key), names.SANDBOX_NAMESPACE, nonce)
        world.sandman.kubectl("wait", "pod", name, "--for=condition=Ready", "--timeout=60s")
        assert answers(world, world.victim.pod, token) == "200"
        assert answers(world, name, token) == "401"
        sandbox = f"{name}-{made['metadata']['uid'][:8]}"
        for who in (world.victim.tenant_token, world.sandman.installation.other_token):
            asked = world.gates.each("GET", f"/v1/sandboxes/{sandbox}", who)
            assert {said(one) for one in asked} == {Said(404, "not_found", f"no sandbox {sandbox}")}
        for change in (f"{names.LABEL_POOL}=root", f"{names.LABEL_STATE}=free"):
            assert LABELS in world.mallory.refused("label", "pod", name, "--overwrite", change)
    finally:
        world.sandman.kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
    world.victim.is_whole()


CALL = """
import sys, urllib.error, urllib.request
asked = urllib.request.Request("http://127.0.0.1:21763/v1/info", headers={"Authorization": "Bearer " + sys.argv[1]})
try:
    print(urllib.request.urlopen(asked, timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def answers(world: World, name: str, token: str) -> str:
    """Status of a pod's daemon for this token, asked on its own loopback by the administrator."""
    return world.sandman.kubectl("exec", name, "--", "python3", "-c", CALL, token).strip()


# --- controllers --------------------------------------------------------------------------------

KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController")
ITS_LABELS = {names.LABEL_POOL: "root"}
CONTROLLERS: dict[str, Callable[[World], Json]] = {
    **{f"{kind} of the victim's pool": (lambda w, kind=kind: controller(kind, w.image, POOL, ITS_LABELS)) for kind in KINDS},
    "labelled in its template alone": lambda w: controller("Deployment", w.image, POOL),
    "labelled on itself alone": lambda w: controller("Deployment", w.image, {"app": "x"}, ITS_LABELS),
    "of a pool of his own": lambda w: controller("Deployment", w.image, POOL | {names.LABEL_POOL: "mine"}),
    "that makes leased pods": lambda w: controller("Deployment", w.image, INJECT | {names.LABEL_STATE: "leased"}),
    "with a pull secret": lambda w: controller("Deployment", w.image, POOL, ITS_LABELS, imagePullSecrets=[{"name": "mine"}]),
    "with a container beside the daemon": lambda w: controller(
        "Deployment", w.image, POOL, ITS_LABELS, initContainers=[{"name": "x", "image": w.image, "restartPolicy": "Always"}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTROLLERS)
def test_nobody_else_makes_a_pool(world: World, case: str) -> None:
    document = CONTROLLERS[case](world)
    assert MANAGED in world.mallory.refused("create", "-f", "-", DRY, stdin=document)


def test_what_is_no_pool_is_his_own_business(world: World) -> None:
    for kind in KINDS:
        world.mallory.kubectl(
            "create", "-f", "-", DRY, stdin=controller(kind, world.image, {"app": "x"})
        )


IMAGE = {"spec": {"template": {"spec": {"containers": [{"name": "sandbox", "image": "example.invalid/x"}]}}}}  # fmt: skip
POOL_CHANGES: dict[str, list[str]] = {
    "its image": ["patch", "-p", json.dumps(IMAGE)],
    "a container more": ["patch", "-p", json.dumps(IMAGE).replace("sandbox", "mine")],
    "its tenants": ["annotate", "--overwrite", f"{names.ANNOTATION_POOL_TENANTS}=other"],
    "its networks": ["annotate", "--overwrite", f"{names.ANNOTATION_POOL_NETWORKS}=*"],
    "its maximum": ["annotate", "--overwrite", f"{names.ANNOTATION_POOL_MAX}=1"],
    "its steps": ["annotate", "--overwrite", f'{names.ANNOTATION_POOL_PREPARE}=[{{"exec": {{"argv": ["x"]}}}}]'],
    "its name": ["label", "--overwrite", f"{names.LABEL_POOL}=mine"],
    "its label": ["label", f"{names.LABEL_POOL}-"],
}  # fmt: skip


@pytest.mark.parametrize("case", POOL_CHANGES)
def test_nobody_else_changes_a_pool(world: World, case: str) -> None:
    verb, *change = POOL_CHANGES[case]
    assert MANAGED in world.mallory.refused(verb, "deployment", "sandman-pool-root", *change, DRY)


# --- the victim's pod ---------------------------------------------------------------------------

RUNS = {"spec": {"containers": [{"name": "sandbox", "image": "example.invalid/x"}]}}
OWNED: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "0"}
DEBUG = {"spec": {"ephemeralContainers": [{"name": "x", "image": "x", "targetContainerName": "sandbox"}]}}  # fmt: skip
CHANGES: dict[str, tuple[list[str], str]] = {
    "its tenant": (["label", "pod", "POD", "--overwrite", f"{names.LABEL_TENANT}=other"], LABELS),
    "its state": (["label", "pod", "POD", "--overwrite", f"{names.LABEL_STATE}=free"], LABELS),
    "its pool": (["label", "pod", "POD", f"{names.LABEL_POOL}-"], LABELS),
    "its network": (["label", "pod", "POD", "--overwrite", f"{names.LABEL_NETWORK}=open"], LABELS),
    "its nonce": (["annotate", "pod", "POD", "--overwrite", f"{names.ANNOTATION_NONCE}=mine"], ANNOTATIONS),
    "its lease": (["annotate", "pod", "POD", "--overwrite", f"{names.ANNOTATION_LEASE}={{}}"], ANNOTATIONS),
    "its end": (["annotate", "pod", "POD", f"{names.ANNOTATION_ENDED}={{}}"], ANNOTATIONS),
    "its network's past": (["annotate", "pod", "POD", f"{names.ANNOTATION_NETWORK_CHANGED}={{}}"], ANNOTATIONS),
    "its image": (["patch", "pod", "POD", "-p", json.dumps(RUNS)], IMAGES),
    "its owner": (["patch", "pod", "POD", "-p", json.dumps({"metadata": {"ownerReferences": [OWNED]}})], OWNERS),
    "a container to debug": (
        ["patch", "pod", "POD", "--subresource=ephemeralcontainers", "-p", json.dumps(DEBUG)], ENTERED),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_the_victims_pod_is_not_changed(world: World, case: str) -> None:
    arguments, because = CHANGES[case]
    given = [world.victim.pod if one == "POD" else one for one in arguments]
    assert because in world.mallory.refused(*given, DRY)
    world.victim.is_whole()


@pytest.mark.parametrize(
    "way", ["exec?command=id&stdout=true", "attach?stdout=true", "portforward?ports=21763", "proxy/v1/info"]
)  # fmt: skip
def test_nobody_enters_past_the_gateway(world: World, way: str) -> None:
    path = f"/api/v1/namespaces/{names.SANDBOX_NAMESPACE}/pods/{world.victim.pod}/{way}"
    told = world.mallory.refused("create", "--raw", path, "-f", "-", stdin={})
    assert ENTERED in told
    world.victim.is_whole()


def test_a_placeholder_runs_no_image_of_his(world: World) -> None:
    query = [
        "-l",
        f"{names.LABEL_STATE}=free,{names.LABEL_POOL}=root",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]
    free = world.mallory.kubectl("get", "pods", *query)
    assert IMAGES in world.mallory.refused("patch", "pod", free, "-p", json.dumps(RUNS), DRY)


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_no_controller_adopts_a_sandbox(world: World, kind: str) -> None:
    """A selector that fits each pod of a pool, and no pods wanted: what it adopts it would delete."""
    document = controller(kind, world.image, {"app.kubernetes.io/part-of": "sandman"})
    document["spec"]["replicas"] = 0
    name, log = document["metadata"]["name"], Refusals(world.sandman)
    world.mallory.kubectl("create", "-f", "-", stdin=document)
    try:
        account = "replicaset" if kind == "ReplicaSet" else "replication"
        who = f"system:serviceaccount:kube-system:{account}-controller"
        wait_until("it has tried", lambda: ("patch", who, world.victim.pod) in log.read(), 30)
    finally:
        world.mallory.kubectl("delete", kind.lower(), name, "--cascade=orphan")
    found = faults.document(world.sandman, world.victim.pod)
    assert found is not None
    assert found["metadata"].keys() & {"ownerReferences", "deletionTimestamp"} == set()
    world.victim.is_whole()


CONTROLLERS_OF_PODS = ("replicaset", "replication", "statefulset", "daemon-set", "job")


@pytest.mark.parametrize("one", CONTROLLERS_OF_PODS)
def test_no_controller_has_a_say_over_a_sandbox(world: World, one: str) -> None:
    account = f"system:serviceaccount:kube-system:{one}-controller"
    as_it = [f"--as={account}", "-n", names.SANDBOX_NAMESPACE]
    verdict = kubectl(world.sandman.bed, *as_it, "auth", "can-i", "delete", "pods").strip()
    assert verdict == "yes"
    with pytest.raises(BedError) as caught:
        kubectl(world.sandman.bed, *as_it, "delete", "pod", world.victim.pod, DRY)
    assert KEPT in str(caught.value)
    world.victim.is_whole()
