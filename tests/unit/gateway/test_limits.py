"""Limits of a tenant: sums of processor and memory, and creations a second."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway import quota
from gateway.model import PoolSpec, Share
from gateway.provider import PoolSeen
from gateway.quota import Amount, Bucket
from sandman.errors import QuotaError
from tests.fakes.cluster import BASE, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want

GI = 2**30


def template(cpu: object = "500m", memory: object = "1Gi", **spec: object) -> dict:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    return {"spec": {"containers": [{"resources": resources}], **spec}}


def test_a_pod_costs_what_the_scheduler_sets_aside_for_it():
    assert quota.of_template(template()) == Amount(1, 0.5, GI)
    assert quota.of_template({}) == Amount(1)
    assert quota.of_template({"spec": {"containers": "?"}}) == Amount(1)
    limited = {"containers": [{"resources": {"limits": {"cpu": "2"}}}, {"name": "bare"}]}
    assert quota.of_template({"spec": limited}) == Amount(1, 2.0)
    first = template("1", "1Gi", initContainers=[{"resources": {"requests": {"cpu": "3"}}}])
    assert quota.of_template(first) == Amount(1, 3.0, GI)
    assert quota.of_template(template("1", 0, overhead={"cpu": "250m"})) == Amount(1, 1.25)


async def test_the_sum_of_what_pods_request_is_limited(autojump_clock):
    cluster = FakeCluster()
    for _ in range(5):
        cluster.placeholder()
    async with running(cluster) as pool:
        spec = PoolSpec("ns", "root", BASE, True, 1, None, template())
        cluster.send.send_nowait(PoolSeen(spec))
        await settle()
        share = Share(cpu=1.2)
        for _ in range(2):
            await pool.allocate("acme", want(image=BASE), None, share=share)
        with pytest.raises(QuotaError, match=r"1\.2 cores of cpu") as caught:
            await pool.allocate("acme", want(), None, share=share)
        assert caught.value.facts == {"limit": 1.2, "used": 1.0, "asked": 0.5, "resource": "cpu"}
        assert (caught.value.retryable, caught.value.retry_after) == (True, quota.RETRY_S)
        await pool.allocate("acme", want(), None, share=Share(memory=3 * GI))
        with pytest.raises(QuotaError, match="bytes of memory"):
            await pool.allocate("acme", want(), None, share=Share(memory=3 * GI))
        with pytest.raises(QuotaError) as caught:
            await pool.allocate("zeta", want(), None, share=Share(memory=GI // 2))
        assert not caught.value.retryable
        # A pool that went away: its sandboxes count as sandboxes still.
        pool._roster.pools.clear()
        assert pool._admission.used("acme") == Amount(3)


async def test_creations_are_limited_to_a_rate_and_who_is_refused_is_told_when_to_come(
    autojump_clock,
):
    cluster = FakeCluster()
    for _ in range(8):
        cluster.placeholder()
    async with running(cluster) as pool:
        share = Share(rate=2.0)
        for _ in range(2):
            await pool.allocate("acme", want(image=BASE), None, share=share)
        waits = []
        for _ in range(3):
            with pytest.raises(QuotaError, match="2 sandboxes a second") as caught:
                await pool.allocate("acme", want(image=BASE), None, share=share)
            waits.append(caught.value.retry_after)
        assert waits == pytest.approx([0.5, 1.0, 1.5], abs=0.01)
        await pool.allocate("zeta", want(image=BASE), None, share=share)
        await trio.sleep(waits[0])
        await pool.allocate("acme", want(image=BASE), None, share=share)


def test_who_asks_for_more_than_a_seconds_worth_is_served_and_leaves_a_debt():
    bucket = Bucket()
    bucket.take(10, 2.0, 0.0)
    with pytest.raises(QuotaError) as caught:
        bucket.take(1, 2.0, 0.0)
    assert caught.value.retry_after == pytest.approx(4.5)
    bucket.take(1, 2.0, 4.5)
    with pytest.raises(QuotaError) as caught:
        bucket.take(1, 0.001, 4.5)
    assert caught.value.retry_after == quota.PROMISE_MAX_S


@given(
    rate=st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    asks=st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 6)), min_size=1, max_size=40),
)
def test_over_any_time_no_more_is_made_than_the_rate_and_a_burst(rate, asks):
    bucket, now, made = Bucket(), 0.0, 0
    most = 0
    for pause, count in asks:
        now += pause
        try:
            bucket.take(count, rate, now)
        except QuotaError:
            continue
        made += count
        most = max(most, count)
        assert made <= rate * now + max(1.0, rate) + most + 1e-3


@given(rate=st.sampled_from([0.5, 2.0, 7.0]), crowd=st.integers(1, 30))
def test_of_a_crowd_each_is_served_at_the_moment_that_it_was_promised(rate, crowd):
    bucket, waiting = Bucket(), []
    for _ in range(crowd):
        try:
            bucket.take(1, rate, 0.0)
        except QuotaError as error:
            waiting.append(error.retry_after)
    assert waiting == sorted(waiting)
    for at in waiting:
        if at < quota.PROMISE_MAX_S:
            bucket.take(1, rate, at)


async def test_a_gang_that_can_never_be_is_refused_at_once(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        gang = want(count=3, gang=True)
        wants = [
            pool.want("acme", gang, None, share=Share(concurrent=2), gang="g") for _ in range(3)
        ]
        with pytest.raises(QuotaError, match="2 sandboxes at once") as caught:
            pool.enter(wants)
        assert not caught.value.retryable
        cluster.send.send_nowait(PoolSeen(PoolSpec("ns", "root", BASE, True, 1, 2)))
        await settle()
        free = [dataclasses.replace(one, share=Share()) for one in wants]
        with pytest.raises(QuotaError, match="holds 2") as caught:
            pool.enter(free)
        assert not caught.value.retryable
        assert caught.value.facts == {"limit": 2, "asked": 3, "resource": "pool"}
        assert (pool._waiters, pool._admission._count) == ({}, 0)
