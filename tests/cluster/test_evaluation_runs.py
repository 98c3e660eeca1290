"""Evaluations on the real cluster, all at once: a real task, and pods that are lost in the middle of a script.

Whatever becomes of a pod, it is never a failed test: it is retried elsewhere, or reported as infrastructure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from sandman import names
from tests.cluster import faults, pools, slots
from tests.cluster.bed import kubectl
from tests.cluster.together import Cases
from tests.tasks import catalog, fetch, small
from tests.tasks.rows import RealRow
from tests.tasks.small import END, RESULT, SMALL, START

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

CASES = Cases()
POOL = "evalsmall"
in_thread = trio.to_thread.run_sync


@pytest.fixture(scope="module")
def outcomes(sandman, request, tmp_path_factory):
    requests = {"cpu": "10m", "memory": "96Mi"}
    # One whose sandboxes have little memory.
    pools.make(sandman, POOL, {"requests": requests, "limits": {"cpu": "1", "memory": "96Mi"}})
    PLACE.append(tmp_path_factory.mktemp("runs"))
    try:
        yield CASES.run(sandman, request)
        sandman.wait_nothing_leased(60)
    finally:
        pools.remove(sandman, POOL)


PLACE: list[Path] = []
"""Where runs may keep their files."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_evaluation(outcomes, name):
    outcomes.check(name)


def out(name: str) -> Path:
    return PLACE[-1] / name


def of(pool: str) -> dict[str, Any]:
    """How a small row is evaluated in a pool."""
    return {**SMALL, "sandbox": {**SMALL["sandbox"], "pool": pool}}


@CASES.add
async def the_reference_solution_of_a_real_task_resolves_it(deployed):
    real = RealRow(fetch.materials(catalog.H11), deployed.image("debian"))
    how = {"workdir": real.workdir, "setup": real.setup, "scrub_git": True, "times": 2}
    async with deployed.client() as client:
        report = await client.evaluate([real.row()], "gold", out("gold"), **how)
        nothing = await client.evaluate([real.row()], "none", out("none"), **how)
    assert (report.counts["resolved"], report.flips) == (2, 0), report.text()
    for one in nothing.records:
        assert (one.outcome, one.reason) == ("unresolved", "tests_failed"), nothing.text()
        assert one.failed["FAIL_TO_PASS"] == catalog.H11.fail_to_pass


@CASES.add
async def want_of_memory_is_infrastructure_and_not_a_failed_test(deployed):
    """Whether the kernel kills a process or the whole is the kubelet's setting."""
    row = small.row(deployed.image("debian"), START, "tail /dev/zero", RESULT, END)
    async with deployed.client() as client:
        report = await client.evaluate([row], "none", out("oom"), **of(POOL))
    [one] = report.records
    assert (one.outcome, one.reason, one.cause) == ("infrastructure", "oom", "sandbox"), one
    assert [met["reason"] for met in one.attempts] == ["oom"]
    assert one.failed == {}


@CASES.add
async def an_evicted_pod_costs_an_attempt(deployed):
    async def evict(pod: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": names.SANDBOX_NAMESPACE},
        }
        path = f"/api/v1/namespaces/{names.SANDBOX_NAMESPACE}/pods/{pod}/eviction"
        words = ("create", "--raw", path, "-f", "-")
        await in_thread(lambda: kubectl(deployed.bed, *words, input=json.dumps(body)))

    assert await reasons_of_a_loss(deployed, "evicted", evict) <= {"evicted", "deleted"}


@CASES.add
async def a_deleted_pod_costs_an_attempt(deployed):
    async def delete(pod: str) -> None:
        await in_thread(deployed.kubectl, "delete", "pod", pod, "--wait=false")

    assert await reasons_of_a_loss(deployed, "deleted", delete) == {"deleted"}


@CASES.add
async def a_preempted_pod_costs_an_attempt(deployed):
    """Its place is another's for a while; then there is one again."""

    async def preempt(pod: str) -> None:
        await in_thread(slots.preempt, deployed)
        while await in_thread(faults.document, deployed, pod) is not None:
            await trio.sleep(0.2)
        await in_thread(slots.leave, deployed)

    async with slots.one_slot(deployed):
        how = await reasons_of_a_loss(deployed, "preempted", preempt, slots.POOL)
    assert how == {"preempted"}


async def reasons_of_a_loss(
    deployed, name: str, lose: Callable[[str], Awaitable[None]], pool: str = "root"
) -> set[str]:
    """A script is running, in the first sandbox alone for ever; then that is lost."""
    boxes: list[Any] = []

    async def setup(box, row) -> None:
        del row
        boxes.append(box)
        if len(boxes) == 1:
            await box.files.write("/tmp/first", b"")

    async def lose_the_first() -> None:
        while not boxes:
            await trio.sleep(0.1)
        while not (await boxes[0].exec(["pgrep", "-f", "sleep 1000"])).ok:
            await trio.sleep(0.1)
        await lose(faults.pod_of(boxes[0].id))

    wait = "if [ -e /tmp/first ]; then sleep 1000; fi"
    row = small.row(deployed.image("debian"), START, wait, RESULT, END)
    async with deployed.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(lose_the_first)
        how = {**of(pool), "setup": setup}
        report = await client.evaluate([row], "gold", out(name), **how)
    [one] = report.records
    assert one.outcome == "resolved", one
    assert one.sandbox == boxes[1].id
    assert [met["sandbox"] for met in one.attempts] == [boxes[0].id]
    assert [met["cause"] for met in one.attempts] == ["infrastructure"]
    return {str(met["reason"]) for met in one.attempts}
