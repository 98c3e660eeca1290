"""Sandboxes that are prepared before they are handed over: over a cluster in memory, in virtual time."""

from __future__ import annotations

import json

import pytest
import trio

from gateway import steps
from gateway.config import Settings
from gateway.daemons import NotListeningError
from gateway.fulfilment import LOOKS_APART_S
from gateway.model import Amounts, Bounds, Ending, Tier
from gateway.preparation import ANSWER_MAX_BYTES, TAIL_CHARS
from sandman import wire
from sandman.errors import (
    DiedError,
    OomError,
    PrepareFailedError,
    UnreachableError,
)
from tests.fakes.cluster import TASK, FakeCluster, make_pool
from tests.unit.gateway.test_pool import running, want

GI = 1024**3
BOUNDS = Bounds(Amounts(500, GI), Amounts(1000, 2 * GI))
STEPS = steps.parse(
    [{"file": {"path": "/a", "content": "x"}}, {"exec": {"argv": ["make"]}}]
)  # fmt: skip


def result(**members) -> tuple[int, bytes]:
    return 200, json.dumps({"exit_code": 0, **members}).encode()


async def test_the_steps_are_done_in_order_before_the_hand_over(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.call_s = 1.0
    async with running(cluster) as pool:
        begun = trio.current_time()
        made = await pool.allocate("acme", want(prepare=STEPS), None)
        assert [call[1:3] for call in cluster.calls] == [
            ("PUT", "/v1/files?path=%2Fa"), ("POST", "/v1/exec"),
        ]  # fmt: skip
        assert made.instance.tier == Tier.SWAP
        assert trio.current_time() - begun > 2.0
        # The daemon was told whose it is only then: the fake refuses a step after the claim.
        assert cluster.claims[made.instance.uid] == made.instance.claim_id


async def test_a_step_that_fails_tells_how_and_costs_the_sandbox(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.answer = lambda _pod, path, _body: result(
        **({"exit_code": 3, "stdout": "y" * 5000 + "end"} if "exec" in path else {})
    )
    async with running(cluster) as pool:
        with pytest.raises(PrepareFailedError, match=r"step 1 .*exit code 3") as caught:
            await pool.allocate("acme", want(prepare=STEPS), None)
        assert cluster.leased() == []
    facts = caught.value.facts
    assert (facts["step"], facts["exit_code"], facts["timed_out"]) == (1, 3, False)
    assert str(facts["output"]).endswith("end")
    assert len(str(facts["output"])) == TAIL_CHARS
    assert (caught.value.status, caught.value.cause, caught.value.retryable) == (
        422, "caller", False,
    )  # fmt: skip


async def test_a_file_that_cannot_be_written_tells_why(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    problem = {"reason": "no_space", "status": 507, "detail": "the disk is full"}
    cluster.answer = lambda *_: (507, json.dumps(problem).encode())
    async with running(cluster) as pool:
        with pytest.raises(PrepareFailedError, match=r"step 0 .*the disk is full") as caught:
            await pool.allocate("acme", want(prepare=STEPS), None)
    assert caught.value.facts == {"step": 0, "reason": "no_space"}


async def test_all_steps_together_have_a_time_limit(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.call_s = 7.0
    async with running(cluster, Settings(prepare_s=10.0)) as pool:
        with pytest.raises(PrepareFailedError, match="prepare_s=10") as caught:
            await pool.allocate("acme", want(prepare=STEPS), None)
        assert caught.value.facts == {"step": 1, "timed_out": True}
        assert cluster.leased() == []


@pytest.mark.parametrize("data", [b"nonsense", b"{}", b"x" * (ANSWER_MAX_BYTES + 1)])
async def test_an_answer_that_makes_no_sense_is_no_success(autojump_clock, data):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.answer = lambda *_: (200, data)
    async with running(cluster) as pool:
        with pytest.raises(UnreachableError):
            await pool.allocate("acme", want(prepare=STEPS), None)
        assert cluster.leased() == []


async def test_a_daemon_that_was_started_anew_meanwhile_is_a_loss_and_no_failed_step(
    autojump_clock,
):
    cluster = FakeCluster()
    cluster.placeholder()
    problem = {"reason": "died", "status": 410, "detail": "started anew"}
    cluster.answer = lambda *_: (410, json.dumps(problem).encode())
    async with running(cluster) as pool:
        with pytest.raises(DiedError):
            await pool.allocate("acme", want(prepare=STEPS), None)


@pytest.mark.parametrize("at_s", [0.5, 1.5])
async def test_a_pod_that_ends_meanwhile_ends_the_call_with_its_reason(autojump_clock, at_s):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    cluster.call_s = 60.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.sleep(at_s)
            cluster.end(placeholder.uid, Ending("oom", "killed for want of memory"))

        nursery.start_soon(end)
        with pytest.raises(OomError):
            await pool.allocate("acme", want(prepare=STEPS), None)
        assert trio.current_time() < 10


async def test_a_pod_that_is_deleted_meanwhile_is_replaced_in_silence(autojump_clock):
    cluster = FakeCluster()
    first, second = cluster.placeholder(), cluster.placeholder()
    cluster.call_s = 2.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:

        async def remove() -> None:
            await trio.sleep(1.0)
            cluster.remove(first.uid, Ending("deleted", "somebody deleted its pod"))

        nursery.start_soon(remove)
        made = await pool.allocate("acme", want(prepare=STEPS), None)
        assert made.instance.uid == second.uid
        assert [name for name, *_ in cluster.calls][-2:] == [second.name, second.name]


async def test_a_connection_that_breaks_waits_for_the_pods_news(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    cluster.call_s = 1.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:

        async def fall_silent() -> None:
            await trio.sleep(0.5)
            cluster.up_at[placeholder.uid] = float("inf")
            await trio.sleep(3.0)
            cluster.end(placeholder.uid, Ending("evicted", "disk pressure"))
            cluster.placeholder()

        nursery.start_soon(fall_silent)
        made = await pool.allocate("acme", want(prepare=STEPS), None)
        assert made.instance.uid != placeholder.uid


async def test_a_connection_that_breaks_without_news_is_unreachable(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    cluster.call_s = 1.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:

        async def fall_silent() -> None:
            await trio.sleep(0.5)
            cluster.up_at[placeholder.uid] = float("inf")

        nursery.start_soon(fall_silent)
        with pytest.raises(UnreachableError, match="while it was prepared"):
            await pool.allocate("acme", want(prepare=STEPS), None)
        assert cluster.leased() == []


async def test_while_one_is_prepared_others_are_claimed(autojump_clock):
    cluster = FakeCluster()
    for _ in range(3):
        cluster.placeholder()
    cluster.call_s = 20.0
    async with running(cluster, Settings(claims_max=1)) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(pool.allocate, "acme", want(prepare=STEPS), None)
        await trio.sleep(1.0)
        begun = trio.current_time()
        await pool.allocate("acme", want(), None)
        assert trio.current_time() - begun < 1.0


async def test_a_cancelled_preparation_leaves_nothing(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.call_s = 20.0
    async with running(cluster) as pool:
        with trio.move_on_after(5.0):
            await pool.allocate("acme", want(prepare=STEPS), None)
        await trio.sleep(LOOKS_APART_S)
        assert cluster.pods == {}
        assert pool._allocation.statistics().claiming == 0


async def test_a_daemon_that_starts_anew_after_the_steps_is_not_handed_over(autojump_clock):
    """What was prepared is not there any more: the claim would be the first that it hears."""
    cluster = FakeCluster()
    first, second = cluster.placeholder(), cluster.placeholder()

    def answer(pod, path, _body):
        if pod.uid == first.uid and "exec" in path:
            cluster.boots[first.uid] = "another"
        return result()

    cluster.answer = answer
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(prepare=STEPS), None)
        assert made.instance.uid == second.uid
        assert first.uid not in cluster.pods


async def test_the_same_key_finds_what_was_prepared(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(prepare=STEPS), "k")
        again = await pool.allocate("acme", want(prepare=STEPS), "k")
        assert again.instance.uid == first.instance.uid
        assert len(cluster.calls) == 2


async def test_what_a_gateway_before_left_half_prepared_is_made_anew(autojump_clock):
    cluster = FakeCluster()
    half = cluster.placeholder()
    whole = cluster.placeholder()
    cluster.call_s = 20.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(pool.allocate, "acme", want(prepare=STEPS), "k")
        await trio.sleep(5.0)
        # Killed: nothing of it cleans up.
        cluster.fail_discards = [UnreachableError("x")] * 3
        nursery.cancel_scope.cancel()
    assert cluster.pods[half.uid].claim_id is not None
    assert half.uid not in cluster.claims
    cluster.call_s = 1.0
    cluster.fail_discards = []
    cluster.tell_anew()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(prepare=STEPS), "k")
        assert made.instance.uid == whole.uid
        assert half.uid not in cluster.pods
        assert made.instance.image == TASK


async def test_the_daemon_from_before_the_swap_is_not_prepared():
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    pool = make_pool(cluster)
    meet = pool._fulfilment.preparation.meet
    with pytest.raises(NotListeningError):
        await meet(placeholder, wire.Claim("c", cluster.boots[placeholder.uid]))
    assert (await meet(placeholder, wire.Claim("c", "another"))).claim_id is None


async def test_the_resources_that_were_asked_for_are_there_before_the_steps(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder(bounds=BOUNDS)
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        cluster.nursery = nursery
        cluster.pool(bounds=BOUNDS, resize=True)
        await trio.sleep(0.1)
        asked = Amounts(2000, 4 * GI)
        seen = []

        def answer(pod, _path, _body):
            seen.append(cluster.pods[pod.uid].actual.limits)
            return result()

        cluster.answer = answer
        made = await pool.allocate("acme", want(prepare=STEPS, resources=asked), None)
        assert made.instance.uid == placeholder.uid
        assert seen == [asked, asked]
