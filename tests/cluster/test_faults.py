"""Faults of single sandboxes on the real cluster, all at once, each on a sandbox of its own: each is told for what it
is, in time, and never as the result of a command."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from sandman.errors import (
    DeletedError,
    DiedError,
    EvictedError,
    OomError,
    OutcomeUnknownError,
    PreemptedError,
    SandmanError,
    UnreachableError,
)
from tests.cluster import faults, pools, slots
from tests.cluster.together import Cases

# The long form, five minutes: make test-faults.
CUT_S = float(os.environ.get("SANDMAN_TEST_CUT_S", "35"))
TOLD_S = 30.0
"""Seconds within which every loss is told."""
CASES = Cases()


@pytest.fixture(scope="module")
def outcomes(sandman, request):
    requests = {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "10Mi"}
    limits = {"cpu": "1", "memory": "64Mi", "ephemeral-storage": "30Mi"}
    # One whose sandboxes have little memory and disk.
    pools.make(sandman, "small", {"requests": requests, "limits": limits}, replicas=3)
    try:
        yield CASES.run(sandman, request)
        sandman.wait_nothing_leased(60)
    finally:
        pools.remove(sandman, "small")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fault(outcomes, name):
    outcomes.check(name)


in_thread = trio.to_thread.run_sync


async def first_process(deployed, box) -> int:
    return await in_thread(faults.first_process, deployed, faults.pod_of(box.id))


async def told(box, kind: type[SandmanError], begun: float, within: float = TOLD_S) -> SandmanError:
    """What every later call hears."""
    with pytest.raises(kind) as caught:
        await box.exec(["true"])
    assert trio.current_time() - begun < within
    return caught.value


# --- memory ---


@CASES.add
async def a_child_that_eats_the_memory_is_a_result_that_says_so_or_the_end(deployed):
    """Which of both is the kubelet's setting (docs/operations.md); never a plain exit code."""
    async with deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"), pool="small")
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


@CASES.add
async def process_1_killed_for_want_of_memory_is_oom(deployed):
    async with deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"), pool="small")
        pid = await first_process(deployed, box)
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


@CASES.add
async def an_eviction_for_its_own_disk_is_evicted_and_its_own_fault(deployed):
    async with deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"), pool="small")
        with pytest.raises(SandmanError) as caught, trio.fail_after(180):
            await box.run("dd if=/dev/zero of=/tmp/big bs=1M count=80; sleep 600")
        await told(box, EvictedError, trio.current_time())
        await box.release()
        assert (caught.value.reason, caught.value.cause) == ("evicted", "sandbox")


@CASES.add
async def a_pod_that_kubectl_deletes_is_deleted(deployed):
    async with deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def delete():
                await trio.sleep(0.5)
                delete = ("delete", "pod", faults.pod_of(box.id), "--wait=false")
                await in_thread(deployed.kubectl, *delete)

            nursery.start_soon(delete)
            with pytest.raises(DeletedError) as caught:
                await box.exec(["sleep", "600"])
        assert caught.value.cause == "infrastructure"
        await told(box, DeletedError, begun)


@CASES.add
async def a_preempted_sandbox_is_preempted(deployed):
    """The node has one slot; a pod of higher priority wants it."""
    async with slots.one_slot(deployed), deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"), pool=slots.POOL)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, slots.preempt, deployed)
            with pytest.raises(PreemptedError) as caught:
                await box.exec(["sleep", "600"])
        assert caught.value.cause == "infrastructure"
        await told(box, PreemptedError, begun)


@CASES.add
async def a_killed_daemon_is_died(deployed):
    async with deployed.client() as client:
        box = await client.create(image=deployed.image("busybox"))
        pid = await first_process(deployed, box)
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


# --- the network ---


@CASES.add
async def ten_seconds_without_network_cost_nothing(deployed):
    await counts_over(deployed, 10.0)


@CASES.add
async def twenty_seconds_without_network_cost_a_command_nothing(deployed):
    """Longer than a connection lives: the command is come back to as soon as its daemon answers."""
    await counts_over(deployed, 20.0)


async def counts_over(deployed, cut_s: float) -> None:
    lines = int(cut_s) + 10
    async with deployed.client() as client, client.sandbox(image=deployed.image("busybox")) as box:
        pid = await first_process(deployed, box)
        results = []

        async def count():
            results.append(await box.run(f"for i in $(seq 1 {lines}); do echo $i; sleep 1; done"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.sleep(3)
            with faults.network_cut(pid):
                await trio.sleep(cut_s)
        [result] = results
        whole = [*map(str, range(1, lines + 1))]
        assert (result.exit_code, result.stdout_text.split()) == (0, whole)


@CASES.add
async def long_without_network_is_told_in_time_and_the_sandbox_lives(deployed):
    """To calls under way, and to each one made since."""
    async with deployed.client() as client, client.sandbox(image=deployed.image("busybox")) as box:
        await box.files.write("/tmp/kept", b"x")
        pid = await first_process(deployed, box)
        async with trio.open_nursery() as nursery:
            under_way = partial(box.exec, ["sleep", "1000"])
            looked = box.process("looked")
            await box.start(["sleep", "1000"], exec_id="looked")
            nursery.start_soon(hears, "exec under way", under_way, 3.0)
            nursery.start_soon(hears, "wait under way", looked.wait, 3.0)
            await trio.sleep(3)
            until = trio.current_time() + CUT_S
            with faults.network_cut(pid):
                nursery.start_soon(hears, "exec made since", under_way, 0.0)
                while trio.current_time() + TOLD_S < until:
                    await hears("read", partial(box.files.read, "/tmp/kept"), 0.0)
                await trio.sleep_until(until)
        assert await box.files.read("/tmp/kept") == b"x"
        assert (await box.exec(["true"])).ok


async def hears(what: str, call, cut_after: float) -> None:
    begun = trio.current_time() + cut_after
    with pytest.raises((OutcomeUnknownError, UnreachableError)) as caught:
        await call()
    took = trio.current_time() - begun
    print(f"{what}: told after {took:.1f} s: {caught.value}")
    assert took < TOLD_S
