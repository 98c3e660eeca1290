"""Evaluations on the real cluster: their pool, what holds inside, capacity of their own, other nodes.

The bed's kubelet has the static policy, as a node for evaluations should: the one cpu of such a sandbox is its own."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from sandman.errors import BadRequestError, SandmanError
from tests.cluster import faults, pools
from tests.cluster.bed import kubectl
from tests.cluster.test_main_job import wait_free

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandman import Client, Sandbox
    from tests.cluster.deployed import Deployed

POOL = "deployment/sandman-pool-eval"
WHOLE = {"cpu": "1", "memory": "256Mi"}
ELSEWHERE = "sandman-elsewhere"
INSIDE = """
cat /proc/sys/kernel/hostname; nproc; date +%Z; echo $LC_ALL $PYTHONHASHSEED $OMP_NUM_THREADS $PYTHON_CPU_COUNT
python3 -c 'import os; print(len(os.sched_getaffinity(0)))'
"""


@pytest.fixture(scope="module", autouse=True)
def placeholder(sandman: Deployed) -> Iterator[None]:
    """One that waits, while these tests run."""
    sandman.kubectl("scale", POOL, "--replicas=1")
    try:
        yield
    finally:
        sandman.kubectl("scale", POOL, "--replicas=0")
        sandman.wait_nothing_leased()


@contextlib.asynccontextmanager
async def evaluation(deployed: Deployed, client: Client, **asked: object) -> AsyncIterator[Sandbox]:
    """A sandbox for one, out of a placeholder: one that runs is not claimed before the gateway has met its daemon, and
    who asks in between gets a new pod."""
    wait_free(deployed, 1, "eval")
    for _ in range(5):
        async with client.sandbox(**{"purpose": "eval", **asked}) as box:  # type: ignore[arg-type]
            if box.info.tier != "cold":
                yield box
                return
    pytest.fail("each was a new pod")


def pod(deployed: Deployed, box: Sandbox) -> dict:
    return json.loads(deployed.kubectl("get", "pod", box.id.rpartition("-")[0], "-o", "json"))


async def digest_of(box: Sandbox) -> str:
    """The kubelet tells it a moment after the container runs."""
    with trio.fail_after(20):
        while box.info.image_digest is None:
            await trio.sleep(0.25)
            await box.refresh()
    return box.info.image_digest


async def test_an_evaluation_has_what_it_was_promised(sandman: Deployed) -> None:
    async with sandman.client() as client:
        asked = {"image": sandman.image("python"), "env": {"LC_ALL": "C"}}
        async with evaluation(sandman, client, **asked) as box:
            assert (box.info.tier, box.info.pool, box.info.resources) == ("swap", "eval", WHOLE)
            told = dict(box.info.conditions or {})
            env = told.pop("env")
            assert told == {
                "purpose": "eval", "dedicated": True, "floor": WHOLE, "ceiling": WHOLE,
                "qos": "Guaranteed", "exclusive_cpus": None, "network_acknowledged": True,
            }  # fmt: skip
            assert (env["TZ"], env.get("LC_ALL")) == ("UTC", None)
            inside = await box.run(INSIDE)
            assert inside.stdout_text.splitlines() == ["sandbox", "1", "UTC", "C 0 1 1", "1"]
            now = pod(sandman, box)
            [container] = now["spec"]["containers"]
            assert container["resources"]["requests"].items() >= WHOLE.items()
            assert container["resources"]["limits"].items() >= WHOLE.items()
            assert now["status"]["qosClass"] == "Guaranteed"
            digest = await digest_of(box)
        # The same image by its digest, in another sandbox.
        async with evaluation(sandman, client, image=digest) as again:
            assert (again.info.tier, again.info.image) == ("swap", digest)
            assert await digest_of(again) == digest
            assert again.id != box.id
            [status] = pod(sandman, again)["status"]["containerStatuses"]
            assert status["imageID"] == digest


async def test_other_memory_in_place_leaves_it_guaranteed(sandman: Deployed) -> None:
    more = {"cpu": "1", "memory": "320Mi"}
    async with (
        sandman.client() as client,
        evaluation(sandman, client, image=sandman.image("debian"), resources=more) as box,
    ):
        assert (box.info.tier, box.info.resources) == ("swap", more)
        told = box.info.conditions or {}
        assert (told["floor"], told["ceiling"], told["qos"]) == (more, more, "Guaranteed")


async def test_told_are_the_cpus_that_it_has_where_its_kubelet_changes_none(
    sandman: Deployed,
) -> None:
    """With the static policy no kubelet resizes cpus: it has more than it asked for, and hears so."""
    asked = {"image": sandman.image("debian"), "resources": {"cpu": "500m"}}
    async with sandman.client() as client, evaluation(sandman, client, **asked) as box:
        told = box.info.conditions or {}
        assert (box.info.tier, told["ceiling"], told["floor"]) == ("swap", WHOLE, WHOLE)


async def test_rollouts_have_no_part_in_it(sandman: Deployed) -> None:
    async with sandman.client() as client:
        with pytest.raises(BadRequestError, match="for evaluations") as caught:
            await client.create(image=sandman.image("debian"), pool="eval")
        assert caught.value.field == "pool"
        [shown] = [one for one in await client.pools() if one.name == "eval"]
        assert (shown.purpose, shown.resources) == ("eval", WHOLE)


async def test_rollouts_that_fill_the_node_leave_an_evaluation_its_own(sandman: Deployed) -> None:
    wait_free(sandman, 1, "eval")
    share = {"cpu": "400m", "memory": "64Mi"}
    pools.make(sandman, "rollouts", {"requests": share, "limits": {**share, "cpu": "401m"}}, 0)
    try:
        async with sandman.client() as client, trio.open_nursery() as nursery:
            outcomes: list[str] = []

            async def roll() -> None:
                try:
                    async with client.sandbox(
                        image=sandman.image("debian"), pool="rollouts", wait_s=45
                    ):
                        outcomes.append("made")
                        await trio.sleep_forever()
                except SandmanError as error:
                    outcomes.append(error.reason)

            for _ in range(4):
                nursery.start_soon(roll)
            pending = "jsonpath={.items[?(@.status.phase=='Pending')].metadata.name}"
            chosen = f"{names.LABEL_POOL}=rollouts"
            with trio.fail_after(30):
                while outcomes.count("made") < 1 or not sandman.kubectl(
                    "get", "pods", "-l", chosen, "-o", pending
                ):
                    await trio.sleep(0.2)
            async with client.sandbox(
                image=sandman.image("debian"), purpose="eval", wait_s=14
            ) as box:
                assert (box.info.pool, box.info.tier) == ("eval", "swap")
                # While others still wait for room that there is not.
                assert sandman.kubectl("get", "pods", "-l", chosen, "-o", pending)
            nursery.cancel_scope.cancel()
    finally:
        pools.remove(sandman, "rollouts")
        sandman.wait_nothing_leased(30)


@contextlib.contextmanager
def other_node(deployed: Deployed) -> Iterator[None]:
    """A second node that takes pods, as far as is written; a taint keeps real ones from it."""
    taint = {"key": "sandman.dev/test", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": ELSEWHERE}}
    kubectl(
        deployed.bed, "apply", "-f", "-", input=json.dumps({**node, "spec": {"taints": [taint]}})
    )
    try:
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}}
        kubectl(
            deployed.bed,
            "patch",
            "node",
            ELSEWHERE,
            "--subresource=status",
            "-p",
            json.dumps(ready),
        )
        yield
    finally:
        kubectl(deployed.bed, "delete", "node", ELSEWHERE)


async def test_a_node_that_is_to_be_avoided_is_as_long_as_there_is_another(
    sandman: Deployed,
) -> None:
    wait_free(sandman, 1, "eval")
    [here] = json.loads(sandman.kubectl("get", "nodes", "-o", "json"))["items"]
    node = here["metadata"]["name"]
    asked = {"image": sandman.image("debian"), "purpose": "eval", "avoid_nodes": [node]}
    async with sandman.client() as client:
        with other_node(sandman):
            await trio.sleep(1)
            cold = f"{names.LABEL_POOL}=eval,{names.LABEL_TIER}=cold"
            found: list[dict] = []

            async def look() -> None:
                while not found:
                    await trio.sleep(0.2)
                    text = sandman.kubectl("get", "pods", "-l", cold, "-o", "json")
                    found.extend(json.loads(text)["items"])

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look)
                    with pytest.raises(SandmanError) as caught:
                        await client.create(**asked, wait_s=5)
            assert caught.value.reason in {"unschedulable", "capacity"}
            [term] = found[0]["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            away = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
            assert term == {"matchFields": [away]}
            assert "nodeName" not in found[0]["spec"]
        # One node alone: better on that than not at all.
        faults.wait("the other node is gone", lambda: ELSEWHERE not in nodes(sandman), 10)
        await trio.sleep(1)
        async with evaluation(sandman, client, **asked) as box:
            assert (box.info.pool, box.info.node) == ("eval", node)


def nodes(deployed: Deployed) -> str:
    return deployed.kubectl("get", "nodes", "-o", "name")
