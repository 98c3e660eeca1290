"""Attempts on a user's workload that somebody is attached to: by another tenant, and by who may make pods beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sandman import names
from tests.cluster import hostile, hostile_namespace
from tests.cluster.hostile import Box, Gates, Json, Said, said
from tests.cluster.hostile_namespace import DRY, Mallory, denied, pod
from tests.cluster.install import WORKLOADS, WORKLOADS_USER
from tests.cluster.shop import RESTRICTED, Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

GUARD = "sandman-guard-workloads"
WRITTEN = denied(
    GUARD,
    "annotations nonce, key-id, injected and containers below sandman.dev/ are written by Sandman alone: remove them",
)
CHANGED = denied(
    GUARD,
    "annotations nonce, key-id, injected and containers below sandman.dev/ are changed by nobody: make the pod anew",
)
WORKLOAD = {names.LABEL_INJECT: names.INJECT_WORKLOAD}
VICTIM = "victim"


class World(NamedTuple):
    """A workload, its user's attachment, and who is after it."""

    gates: Gates
    victim: Box
    shop: Shop
    mallory: Mallory
    token: str
    """Of another tenant, whom the cluster knows, and who may not `create pods/exec` there."""

    def pod(self) -> Json:
        return self.shop.get("pod", VICTIM)


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    made = sandman.installation
    with (
        opened(sandman, WORKLOADS) as shop,
        hostile_namespace.mallory(sandman, WORKLOADS) as mallory,
        hostile.gates(sandman) as gates,
    ):
        main = {"securityContext": RESTRICTED}
        document = pod(sandman.image("debian"), WORKLOAD | {"app": VICTIM}, main=main)
        document["metadata"]["name"] = VICTIM
        del document["spec"]["nodeSelector"]
        shop.create(document)
        shop.one_ready(VICTIM, injected=True)
        with shop.client() as client:
            box = shop.attach(client, VICTIM)
            shown = {"id": box.id, "token": box.info.token, "boot_id": box.info.boot_id}
            victim = Box(gates, made.token, shown)
            command = {"argv": ["sleep", "3600"], "exec_id": Box.EXEC_ID, "detached": True}
            assert victim.call("POST", "/processes", json=command).status_code == 200
            yield World(gates, victim, shop, mallory, made.other_token)
            box.release()


CALLS: dict[str, tuple[str, str, Json]] = {
    "look": ("GET", "", {}),
    "run": ("POST", "/exec", {"json": {"argv": ["true"]}}),
    "renew": ("POST", "/renew", {}),
    "make a token": ("POST", "/tokens", {"json": {}}),
    "change its network": ("PUT", "/network", {"json": {"network": "open"}}),
    "read a file": ("GET", "/files?path=/etc/passwd", {}),
    "end its command": ("DELETE", f"/processes/{Box.EXEC_ID}", {}),
}


@pytest.mark.parametrize("case", CALLS)
def test_anothers_attachment_is_byte_for_byte_one_that_never_was(world: World, case: str) -> None:
    method, tail, more = CALLS[case]
    never = world.victim.id[:-1] + ("0" if world.victim.id[-1] != "0" else "1")
    seen = []
    for one in (world.victim.id, never):
        for answer in world.gates.each(method, f"/v1/sandboxes/{one}{tail}", world.token, **more):
            assert said(answer) == Said(404, "not_found", f"no sandbox {one}")
            seen.append(answer.content.replace(one.encode(), b"ID"))
    assert set(seen) == {seen[0]}
    world.victim.is_whole()


def test_anothers_attachment_is_released_by_nobody(world: World) -> None:
    for answer in world.gates.each("DELETE", f"/v1/sandboxes/{world.victim.id}", world.token):
        assert (answer.status_code, answer.content) == (204, b"")
    world.victim.is_whole()


def none_for(user: str, name: str) -> Said:
    """What somebody hears who may not, and what he hears of a pod that is not there."""
    detail = f"no pod {name} with a daemon in it in namespace {WORKLOADS} in which {user} may create pods/exec"
    return Said(403, "forbidden", detail)


def test_who_may_not_run_commands_there_hears_of_no_pod(world: World) -> None:
    seen = []
    for name in (VICTIM, "nobody"):
        body = {"namespace": WORKLOADS, "pod": name}
        for answer in world.gates.each("POST", "/v1/sandboxes/attach", world.token, json=body):
            assert said(answer) == none_for("sandman-other", name)
            seen.append(answer.content.replace(name.encode(), b"POD"))
    assert set(seen) == {seen[0]}
    for answer in world.gates.each("GET", "/v1/sandboxes?attachable", world.token):
        assert answer.json() == {"attachable": []}


@pytest.mark.parametrize("where", ["default", names.SYSTEM_NAMESPACE, names.SANDBOX_NAMESPACE])
def test_nobody_attaches_elsewhere(world: World, where: str) -> None:
    body = {"namespace": where, "pod": "x"}
    detail = f"this gateway serves no workloads in namespace {where}; it does in: {WORKLOADS}"
    for answer in world.gates.each(
        "POST", "/v1/sandboxes/attach", world.victim.tenant_token, json=body
    ):
        assert said(answer) == Said(404, "not_found", detail)


# --- beside it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [names.ANNOTATION_NONCE, names.ANNOTATION_KEY_ID, names.ANNOTATION_INJECTED, names.ANNOTATION_CONTAINERS])  # fmt: skip
def test_a_pod_without_the_label_says_nothing_of_a_daemon(world: World, key: str) -> None:
    told = world.pod()["metadata"]["annotations"][key]
    document = pod("x", {"app": "x"}, {key: told}, main={"securityContext": RESTRICTED})
    told = world.mallory.refused("create", "-f", "-", DRY, where=WORKLOADS, stdin=document)
    assert WRITTEN in told


@pytest.mark.parametrize("key", [names.ANNOTATION_NONCE, names.ANNOTATION_CONTAINERS])
def test_what_the_webhook_wrote_stays(world: World, key: str) -> None:
    for change in (f"{key}=x", f"{key}-"):
        arguments = ["annotate", "pod", VICTIM, "--overwrite", change, DRY]
        assert CHANGED in world.mallory.refused(*arguments, where=WORKLOADS)


def test_a_copy_of_the_victim_has_another_nonce(world: World) -> None:
    said_before = world.pod()["metadata"]["annotations"]
    copy = {key: said_before[key] for key in (names.ANNOTATION_NONCE, names.ANNOTATION_KEY_ID)}
    image = world.shop.sandman.image("debian")
    document = pod(image, WORKLOAD, copy, main={"securityContext": RESTRICTED})
    made = json.loads(
        world.mallory.kubectl(
            "create", "-f", "-", DRY, "-o", "json", where=WORKLOADS, stdin=document
        )
    )
    nonce = made["metadata"]["annotations"][names.ANNOTATION_NONCE]
    assert nonce != said_before[names.ANNOTATION_NONCE]
    digests = [
        next(one["value"] for one in found["spec"]["containers"][0]["env"] if one["name"] == names.ENV_TOKEN_SHA256)
        for found in (made, world.pod())
    ]  # fmt: skip
    assert digests[0] != digests[1]


def test_a_pods_label_alone_attaches_nobody(world: World) -> None:
    """Labelled when it was there already, it has no daemon; what listens at its port is told nothing."""
    document = pod(
        world.shop.sandman.image("debian"), {"app": "late"}, main={"securityContext": RESTRICTED}
    )
    document["metadata"]["name"] = "late"
    world.mallory.kubectl("create", "-f", "-", where=WORKLOADS, stdin=document)
    label = f"{names.LABEL_INJECT}={names.INJECT_WORKLOAD}"
    world.mallory.kubectl("label", "pod", "late", label, where=WORKLOADS)
    body = {"namespace": WORKLOADS, "pod": "late"}
    for answer in world.gates.each(
        "POST", "/v1/sandboxes/attach", world.victim.tenant_token, json=body
    ):
        assert said(answer) == none_for(WORKLOADS_USER, "late")
    world.mallory.kubectl(
        "delete", "pod", "late", "--grace-period=1", "--wait=false", where=WORKLOADS
    )


def test_a_pool_pod_among_workloads_is_none(world: World) -> None:
    labels = {names.LABEL_INJECT: names.INJECT_POOL, names.LABEL_POOL: "root"}
    document = pod("x", labels, main={"securityContext": RESTRICTED})
    made = json.loads(
        world.mallory.kubectl(
            "create", "-f", "-", DRY, "-o", "json", where=WORKLOADS, stdin=document
        )
    )
    assert made["spec"]["containers"][0]["command"] == ["sleep", "600"]
    assert names.ANNOTATION_NONCE not in made["metadata"].get("annotations", {})
