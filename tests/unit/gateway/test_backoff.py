"""Backing off from an API server that is too busy, and how many pods are made at once."""

from __future__ import annotations

import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.backoff import PAUSE_MAX_S, PAUSE_S, Backoff, Window
from gateway.config import Settings
from gateway.provider import BusyError, NodeSeen, RefusedError
from gateway.provider.kubernetes import _failure
from sandman.errors import BadRequestError, UnreachableError
from sandman.service import kube
from tests.fakes.cluster import BASE, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want
from tests.unit.gateway.test_pool_trouble import is_whole


def busy(retry_after: float | None = None) -> BusyError:
    return BusyError(UnreachableError("too many requests", retry_after=retry_after))


def test_a_refusal_halves_and_each_window_of_successes_adds_one():
    window = Window(32)
    window.refused(10.0, None)
    assert (window.limit(10.0), window.limit(10.0 + PAUSE_S)) == (0, 16)
    for _ in range(17):
        window.succeeded()
    assert window.limit(20.0) == 17
    for _ in range(1000):
        window.succeeded()
    assert window.limit(20.0) == 32


def test_refusals_of_calls_that_were_on_their_way_together_are_one():
    window = Window(32)
    for _ in range(20):
        window.refused(10.0, 2.0)
    assert (window.limit(11.9), window.limit(12.0)) == (0, 16)


def test_the_longest_pause_is_bounded_and_the_shortest_too():
    window = Window(4)
    window.refused(0.0, 3600.0)
    assert window.paused_until == PAUSE_MAX_S
    window.refused(100.0, 0.0)
    assert window.paused_until == 100.0 + PAUSE_S


@given(
    most=st.integers(0, 40),
    events=st.lists(st.tuples(st.booleans(), st.floats(0.0, 5.0), st.none() | st.floats(0, 9))),
)
def test_it_is_never_beyond_its_most_and_never_below_one_for_long(most, events):
    window, now = Window(most), 0.0
    for succeeds, passed, retry_after in events:
        now += passed
        if succeeds:
            window.succeeded()
        else:
            window.refused(now, retry_after)
        assert 0 <= window.limit(now) <= most
        assert window.limit(now + PAUSE_MAX_S) >= min(most, 1)


def test_pods_in_the_making_are_bounded_by_the_nodes_that_take_them():
    backoff = Backoff(claims_max=8, cold_max=10, cold_per_node=4)
    colds = [backoff.limits(0.0, nodes)[1] for nodes in (None, 0, 1, 2, 3, 100)]
    assert colds == [10, 4, 4, 8, 10, 10]
    backoff.cold.refused(0.0, None)
    assert backoff.limits(0.5, 3) == (8, 0)
    assert backoff.limits(PAUSE_S, 3) == (8, 5)
    assert backoff.paused_until() == PAUSE_S


async def test_a_claim_that_the_api_server_has_no_time_for_is_made_later(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_claims = [busy(3.0), busy(), busy(), busy(), busy()]
    async with running(cluster, Settings(claim_attempts=1)) as pool:
        begun = trio.current_time()
        made = await pool.allocate("acme", want(image=BASE), None)
        assert trio.current_time() - begun == pytest.approx(3.0 + 4 * PAUSE_S, abs=0.1)
        assert made.instance.tier == "warm"
        assert [kind for kind, _ in cluster.writes] == ["claim"]
        is_whole(pool)


async def test_during_the_pause_nothing_more_is_asked_and_then_by_fewer_at_once(autojump_clock):
    cluster = FakeCluster()
    asked: list[float] = []
    claim = cluster.claim

    async def counted(*arguments):
        asked.append(trio.current_time())
        return await claim(*arguments)

    cluster.claim = counted
    for _ in range(16):
        cluster.placeholder()
    cluster.fail_claims = [busy(5.0)] * 8
    cluster.delay_before = 0.2
    async with running(cluster, Settings(claims_max=8)) as pool:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(pool.allocate, "acme", want(image=BASE), None)
        times = [round(at - begun, 1) for at in asked]
        assert times[:8] == [0.0] * 8
        assert times[8] == pytest.approx(5.2, abs=0.05)
        assert times.count(times[8]) == 4
        assert len(cluster.leased()) == 16


async def test_one_whose_outcome_is_not_known_slows_down_too(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_claims = [UnreachableError("no answer", retry_after=2.0)]
    async with running(cluster) as pool:
        with pytest.raises(UnreachableError):
            await pool.allocate("acme", want(image=BASE), None)
        assert pool._fulfilment.backoff.claims.size == 16


async def test_a_refusal_for_another_reason_does_not(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_claims = [RefusedError(BadRequestError("no"))]
    async with running(cluster) as pool:
        with pytest.raises(BadRequestError):
            await pool.allocate("acme", want(image=BASE), None)
        assert pool._fulfilment.backoff.claims.size == 32


async def test_creations_are_as_many_as_the_open_nodes_bear(autojump_clock):
    cluster = FakeCluster()
    for name, closed in (("n1", False), ("n2", False), ("n3", True), ("n4", False)):
        cluster.send.send_nowait(NodeSeen(name, closed=closed))
    cluster.send.send_nowait(NodeSeen("n4", closed=False, gone=True))
    async with running(cluster, Settings(cold_per_node=3)) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(pool.allocate, "acme", want(), None)
            await settle()
            assert pool._allocation.statistics().cold == 6
            cluster.send.send_nowait(NodeSeen("n3", closed=False))
            await settle()
            assert pool._allocation.statistics().cold == 9
        assert len(cluster.leased()) == 20


def test_a_429_was_never_carried_out_and_of_a_503_nobody_knows():
    throttled = kube.ThrottledError("slow down", status=429, retry_after=7.0)
    refused = _failure(throttled)
    assert isinstance(refused, BusyError)
    assert refused.error.retry_after == 7.0
    away = _failure(kube.UnavailableError("away", status=503))
    assert isinstance(away, UnreachableError)


def test_a_gateway_whose_own_token_is_gone_sends_its_callers_to_another():
    refused = _failure(kube.UnauthorizedError("Unauthorized", status=401))
    assert isinstance(refused, RefusedError)
    assert isinstance(refused.error, UnreachableError)
    assert refused.error.retryable


def test_an_infinite_wait_is_no_reason_to_wait_for_ever():
    window = Window(2)
    window.refused(0.0, math.inf)
    assert window.limit(PAUSE_MAX_S) == 1
