"""Eight faults on the real cluster, each told for what it is, and never as the result of a command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
import trio

import sandman as sdk
from sandman import names
from sandman.errors import (
    DeletedError,
    DiedError,
    EvictedError,
    NodeLostError,
    OomError,
    OutcomeUnknownError,
    PreemptedError,
    SandmanError,
    UnreachableError,
)
from tests.cluster import faults
from tests.cluster.bed import kubectl

SLOT = "sandman.test/slot"
# The long form, five minutes: make test-faults.
CUT_S = float(os.environ.get("SANDMAN_TEST_CUT_S", "45"))
TOLD_S = 30.0
"""Seconds within which every loss is told."""


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    sandman.wait_nothing_leased(60)


def make_pool(deployed, name: str, resources: dict) -> None:
    """A pool like `root`, with other resources, that waits with one placeholder."""
    pool = json.loads(deployed.kubectl("get", "deployment", "sandman-pool-root", "-o", "json"))
    labels = {names.LABEL_POOL: name}
    meta = {
        "name": f"sandman-pool-{name}",
        "labels": {**pool["metadata"]["labels"], **labels},
        "annotations": {names.ANNOTATION_POOL_MAX: "5", names.ANNOTATION_POOL_SWAP: "true"},
    }
    spec = pool["spec"]
    spec["replicas"] = 1
    spec["selector"]["matchLabels"] |= labels
    spec["template"]["metadata"]["labels"] |= labels
    spec["template"]["spec"]["containers"][0]["resources"] = resources
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    apply(deployed, body)
    selector = f"{names.LABEL_POOL}={name}"
    query = "jsonpath={.items[*].status.phase}"
    faults.wait(
        f"pool {name} has a placeholder",
        lambda: deployed.kubectl("get", "pods", "-l", selector, "-o", query) == "Running",
        90,
    )


def apply(deployed, body: dict) -> None:
    kubectl(deployed.bed, "-n", names.SANDBOX_NAMESPACE, "apply", "-f", "-", input=json.dumps(body))


@pytest.fixture
def small(sandman):
    """A pool whose sandboxes have little memory and disk."""
    requests = {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "10Mi"}
    limits = {"cpu": "1", "memory": "64Mi", "ephemeral-storage": "30Mi"}
    make_pool(sandman, "small", {"requests": requests, "limits": limits})
    yield "small"
    sandman.kubectl("delete", "deployment", "sandman-pool-small")


async def told(box, kind: type[SandmanError], begun: float, within: float = TOLD_S) -> SandmanError:
    """What every later call hears."""
    with pytest.raises(kind) as caught:
        await box.exec(["true"])
    assert trio.current_time() - begun < within
    return caught.value


# --- memory ---


async def test_a_child_that_eats_the_memory_is_a_result_that_says_so_or_the_end(sandman, small):
    """Which of both is the kubelet's setting (docs/operations.md); never a plain exit code."""
    async with sandman.client() as client:
        box = await client.create(image=sandman.image("busybox"), pool=small)
        begun = trio.current_time()
        result = None
        with contextlib.suppress(OomError):
            result = await box.exec(["tail", "/dev/zero"])
        if result is None:
            assert (await told(box, OomError, begun)).cause == "sandbox"
        else:
            assert result.oom_killed
            assert not result.ok
            assert (await box.exec(["true"])).ok
        await box.release()


async def test_process_1_killed_for_want_of_memory_is_oom(sandman, small):
    async with sandman.client() as client:
        box = await client.create(image=sandman.image("busybox"), pool=small)
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        # The kernel's choice, were its commands not likelier victims.
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        begun = trio.current_time()
        with pytest.raises(OomError) as caught:
            # What lies in memory and is no process's own: its writer is smaller than the daemon.
            await box.run("dd if=/dev/zero of=/dev/shm/full bs=64k count=2000")
        assert caught.value.cause == "sandbox"
        await told(box, OomError, begun)
        await box.release()


# --- the pod ---


async def test_an_eviction_for_its_own_disk_is_evicted_and_its_own_fault(sandman, small):
    async with sandman.client() as client:
        box = await client.create(image=sandman.image("busybox"), pool=small)
        with pytest.raises(SandmanError) as caught, trio.fail_after(180):
            await box.run("dd if=/dev/zero of=/tmp/big bs=1M count=80; sleep 600")
        await told(box, EvictedError, trio.current_time())
        await box.release()
        assert (caught.value.reason, caught.value.cause) == ("evicted", "sandbox")


async def test_a_pod_that_kubectl_deletes_is_deleted(sandman):
    async with sandman.client() as client:
        box = await client.create(image=sandman.image("busybox"))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def delete():
                await trio.sleep(0.5)
                await trio.to_thread.run_sync(
                    sandman.kubectl, "delete", "pod", faults.pod_of(box.id), "--wait=false"
                )

            nursery.start_soon(delete)
            with pytest.raises(DeletedError) as caught:
                await box.exec(["sleep", "600"])
        assert caught.value.cause == "infrastructure"
        await told(box, DeletedError, begun)


async def test_a_preempted_sandbox_is_preempted(sandman):
    """The node has one slot; a pod of higher priority wants it."""
    patch = json.dumps([{"op": "add", "path": "/status/capacity/sandman.test~1slot", "value": "1"}])
    node = ("node", "sandman-node", "--subresource=status", "--type=json")
    sandman.kubectl("patch", *node, "-p", patch)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000,
            "metadata": {"name": "sandman-test-high"}}  # fmt: skip
    slot = {"cpu": "10m", "memory": "32Mi", SLOT: "1"}
    try:
        await trio.to_thread.run_sync(
            make_pool, sandman, "slot", {"requests": slot, "limits": {**slot, "cpu": "1"}}
        )
        apply(sandman, high)
        async with sandman.client() as client:
            box = await client.create(image=sandman.image("busybox"), pool="slot")
            begun = trio.current_time()
            pod = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "preemptor"},
                "spec": {
                    "priorityClassName": "sandman-test-high", "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {"name": "x", "image": sandman.image("busybox"), "command": ["sleep", "600"],
                         "resources": {"requests": slot, "limits": slot}}
                    ],
                },
            }  # fmt: skip
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, apply, sandman, pod)
                with pytest.raises(PreemptedError) as caught:
                    await box.exec(["sleep", "600"])
            assert caught.value.cause == "infrastructure"
            await told(box, PreemptedError, begun)
    finally:
        sandman.kubectl("delete", "pod", "preemptor", "--ignore-not-found", "--wait=false")
        sandman.kubectl("delete", "deployment", "sandman-pool-slot", "--ignore-not-found")
        sandman.kubectl("delete", "priorityclass", "sandman-test-high", "--ignore-not-found")
        gone = json.dumps([{"op": "remove", "path": "/status/capacity/sandman.test~1slot"}])
        sandman.kubectl("patch", *node, "-p", gone)


async def test_a_killed_daemon_is_died(sandman):
    async with sandman.client() as client:
        box = await client.create(image=sandman.image("busybox"))
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def kill():
                await trio.sleep(0.5)
                os.kill(pid, signal.SIGKILL)

            nursery.start_soon(kill)
            with pytest.raises(DiedError) as caught:
                await box.exec(["sleep", "600"])
        assert caught.value.cause == "sandbox"
        await told(box, DiedError, begun)
        await box.release()


# --- node and network ---


@pytest.mark.slow
async def test_a_lost_node_is_unreachable_and_then_lost(sandman):
    """Its kubelet is silent and the sandbox too; another one there answers and lives on."""
    made = sandman.installation
    [address, *_] = faults.gateway_addresses(sandman)
    async with sdk.Client(
        f"https://{address}:{names.GATEWAY_PORT}", made.token, ca=made.ca,
        server_name=made.server_name, limits=sdk.Limits(retry_s=1.0),
    ) as client:  # fmt: skip
        box = await client.create(image=sandman.image("busybox"), ttl_s=600)
        other = await client.create(image=sandman.image("busybox"), ttl_s=600)
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        with faults.kubelet_stopped(sandman), faults.network_cut(pid):
            begun = trio.current_time()
            with pytest.raises((UnreachableError, OutcomeUnknownError)):
                await box.files.read("/etc/passwd")
            first = trio.current_time() - begun
            with pytest.raises(NodeLostError) as caught:
                await until_lost(box)
            assert caught.value.cause == "infrastructure"
            lost = trio.current_time() - begun
            print(f"unreachable after {first:.1f} s, node_lost after {lost:.1f} s")
            assert first < TOLD_S
            assert lost < 90
            assert (await other.exec(["true"])).ok
        await trio.to_thread.run_sync(
            faults.wait, "the node is back", lambda: node_is_ready(sandman), 60
        )
        await other.release()
        await box.release()


async def until_lost(box) -> None:
    """Read until that is refused for another reason than that it cannot be reached."""
    with trio.fail_after(120):
        while True:
            with contextlib.suppress(UnreachableError):
                await box.files.read("/etc/passwd")
            await trio.sleep(1)


def node_is_ready(deployed) -> bool:
    query = "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}"
    return deployed.kubectl("get", "nodes", "-o", query) == "True"


async def test_ten_seconds_without_network_cost_nothing(sandman):
    async with sandman.client() as client, client.sandbox(image=sandman.image("busybox")) as box:
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        results = []

        async def count():
            results.append(await box.run("for i in $(seq 1 20); do echo $i; sleep 1; done"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.sleep(3)
            with faults.network_cut(pid):
                await trio.sleep(10)
        [result] = results
        assert (result.exit_code, result.stdout_text.split()) == (0, [*map(str, range(1, 21))])


@pytest.mark.slow
async def test_long_without_network_is_an_unknown_outcome_and_the_sandbox_lives(sandman):
    async with sandman.client() as client, client.sandbox(image=sandman.image("busybox")) as box:
        await box.files.write("/tmp/kept", b"x")
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        with faults.network_cut(pid):
            begun = time.monotonic()
            with pytest.raises((OutcomeUnknownError, UnreachableError)):
                await box.exec(["sleep", "1000"])
            print(f"told after {time.monotonic() - begun:.1f} s")
            await trio.sleep(max(0.0, CUT_S - (time.monotonic() - begun)))
        assert await box.files.read("/tmp/kept") == b"x"
        assert (await box.exec(["true"])).ok


# --- upgrades ---


@pytest.mark.slow
async def test_a_rolling_restart_breaks_no_command(sandman):
    """Twenty commands of a minute, their output complete and in order, over new gateways and webhooks."""
    script = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
    results = []
    async with sandman.client() as client:
        image = sandman.image("busybox")
        boxes = [await client.create(image=image, run="rolling", wait_s=240) for _ in range(20)]

        async def one(box):
            results.append(await box.run(script))

        async with trio.open_nursery() as nursery:
            for box in boxes:
                nursery.start_soon(one, box)
            await trio.sleep(5)
            for name in ("gateway", "webhook"):
                await trio.to_thread.run_sync(
                    faults.system, sandman, "rollout", "restart", f"deployment/sandman-{name}"
                )
            for name in ("gateway", "webhook"):
                await trio.to_thread.run_sync(
                    faults.system, sandman, "rollout", "status", f"deployment/sandman-{name}",
                    "--timeout=180s",
                )  # fmt: skip
        whole = "".join(f"{i}\n" for i in range(1, 601))
        assert [one.exit_code for one in results] == [7] * 20
        assert {one.stdout_text for one in results} == {whole}
        assert await client.release_run("rolling") == 20
