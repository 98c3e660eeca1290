"""How many sandboxes a tenant may have at once: counted once each, whatever they are just doing."""

from __future__ import annotations

import pytest
import trio

from gateway import quota
from gateway.config import Settings
from gateway.model import Ending, Purpose, Share
from sandman.errors import CapacityError, QuotaError
from tests.fakes.cluster import BASE, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want

TWO = Share(concurrent=2)


async def test_a_tenant_with_all_it_may_have_is_refused_at_once_and_others_are_not(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    async with running(cluster) as pool:
        for _ in range(2):
            await pool.allocate("acme", want(), None, share=TWO)
        begun = trio.current_time()
        with pytest.raises(QuotaError, match="2 sandboxes at once") as caught:
            await pool.allocate("acme", want(), None, share=TWO)
        assert trio.current_time() == begun
        assert caught.value.facts["limit"] == caught.value.facts["used"] == 2
        assert caught.value.retry_after
        await pool.allocate("zeta", want(), None, share=TWO)
        await pool.allocate("acme", want(), None, share=Share(concurrent=3))


async def test_of_many_at_once_as_many_are_served_as_may_be(autojump_clock):
    cluster = FakeCluster()
    for _ in range(6):
        cluster.placeholder()
    made, refused = [], []

    async def one(pool) -> None:
        try:
            made.append(await pool.allocate("acme", want(), None, share=Share(concurrent=4)))
        except QuotaError as error:
            refused.append(error)

    async with running(cluster) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(one, pool)
            # Claimed, and not yet ready: counted as asked for, and not a second time as a pod.
            await trio.sleep(0.1)
            assert len(cluster.leased()) == 2
            for _ in range(4):
                nursery.start_soon(one, pool)
        assert (len(made), len(refused)) == (4, 2)


async def test_what_was_released_or_has_ended_makes_room(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(image=BASE), None, share=TWO)
        second = await pool.allocate("acme", want(image=BASE), None, share=TWO)
        cluster.end(first.instance.uid, Ending("oom", "it used too much"))
        await settle()
        await pool.allocate("acme", want(image=BASE), None, share=TWO)
        cluster.remove(second.instance.uid, Ending("released", "its caller let go"))
        await settle()
        await pool.allocate("acme", want(image=BASE), None, share=TWO)
        with pytest.raises(QuotaError):
            await pool.allocate("acme", want(image=BASE), None, share=TWO)


async def test_the_same_key_again_is_no_second_sandbox(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        only = Share(concurrent=1)
        first = await pool.allocate("acme", want(), "k", share=only)
        again = await pool.allocate("acme", want(), "k", share=only)
        assert again.instance.id == first.instance.id


HELD = Share(concurrent=4, eval_reserved=2)


async def test_rollouts_never_take_what_is_held_for_evaluations(autojump_clock):
    cluster = FakeCluster()
    for _ in range(8):
        cluster.placeholder()
    async with running(cluster) as pool:
        rollout, evaluation = want(), want(purpose=Purpose.EVAL, network_wait=False)
        for _ in range(2):
            first = await pool.allocate("acme", rollout, None, share=HELD)
        with pytest.raises(QuotaError, match="2 sandboxes beside the 2 held for eval") as caught:
            await pool.allocate("acme", rollout, None, share=HELD)
        assert (caught.value.retryable, caught.value.facts["used"]) == (True, 2)
        for _ in range(2):
            await pool.allocate("acme", evaluation, None, share=HELD)
        with pytest.raises(QuotaError, match="4 sandboxes at once"):
            await pool.allocate("acme", evaluation, None, share=HELD)
        # What a rollout gives up, an evaluation may have; not the other way round.
        cluster.remove(first.instance.uid, Ending("released", "its caller let go"))
        await settle()
        made = await pool.allocate("acme", evaluation, None, share=HELD)
        cluster.remove(made.instance.uid, Ending("released", "its caller let go"))
        await settle()
        await pool.allocate("acme", rollout, None, share=HELD)
        with pytest.raises(QuotaError):
            await pool.allocate("acme", rollout, None, share=HELD)


async def test_rollouts_that_are_asked_for_at_once_count_too(autojump_clock):
    cluster = FakeCluster()
    refused = []
    async with running(cluster) as pool, trio.open_nursery() as nursery:

        async def one() -> None:
            try:
                await pool.allocate("acme", want(), None, share=HELD)
            except QuotaError as error:
                refused.append(error)

        for _ in range(5):
            nursery.start_soon(one)
        await settle()
        assert len(refused) == 3
    assert pool._admission._rollouts["acme"] == 0


def test_more_than_could_ever_be_is_not_asked_for_again():
    with pytest.raises(QuotaError) as caught:
        quota.check_rollouts(HELD, 0, 3)
    assert not caught.value.retryable
    quota.check_rollouts(HELD, 0, 2)
    quota.check_rollouts(Share(concurrent=1), 0, 3)
    quota.check_rollouts(Share(eval_reserved=1), 0, 3)


async def test_a_queue_full_of_rollouts_has_places_for_evaluations(autojump_clock):
    cluster = FakeCluster()
    limits = Settings(queue_max=2, cold_max=0)
    async with running(cluster, limits) as pool, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pool.allocate, "acme", want(), None)
        await settle()
        with pytest.raises(CapacityError, match="the queue is full"):
            await pool.allocate("acme", want(), None)
        nursery.start_soon(pool.allocate, "acme", want(purpose=Purpose.EVAL), None)
        await settle()
        assert len(pool.waiting()) == 3
        with pytest.raises(CapacityError, match="the queue is full") as caught:
            await pool.allocate("acme", want(purpose=Purpose.EVAL), None)
        assert caught.value.facts["limit"] == 3
        nursery.cancel_scope.cancel()
