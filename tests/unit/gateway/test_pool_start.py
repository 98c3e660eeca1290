"""Pods that do not start, vanish or die before they are handed over, in virtual time."""

from __future__ import annotations

import dataclasses

import pytest
import trio

from gateway import versions
from gateway.config import Settings
from gateway.model import Ending
from sandman import names, wire
from sandman.errors import (
    CapacityError,
    DeletedError,
    ImagePullError,
    OomError,
    UnreachableError,
    UnschedulableError,
    VersionSkewError,
)
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_pool import running, want
from tests.unit.gateway.test_pool_trouble import is_whole


def never_up(cluster: FakeCluster, **state) -> None:
    """New pods stay like this."""
    put = cluster._put

    def odd(pod):
        if pod.state == names.STATE_LEASED:
            pod = dataclasses.replace(pod, running=False, address=None, **state)
        return put(pod)

    cluster._put = odd


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({"node": None}, UnschedulableError, "no node"),
        ({"node": "n1"}, ImagePullError, "in time"),
        ({"waiting": ("CreateContainerError", "no such mount")}, ImagePullError, "no such mount"),
    ],
)
async def test_a_pod_that_never_starts_says_what_it_waits_for(autojump_clock, state, error, words):
    cluster = FakeCluster()
    never_up(cluster, **state)
    async with running(cluster, Settings(image_s=20.0, handshake_s=5.0)) as one:
        with pytest.raises(error, match=words):
            await one.allocate("acme", want(wait_s=500.0), None)
        assert cluster.pods == {}
        is_whole(one)


@pytest.mark.parametrize(
    ("version", "behind"),
    [("0.0.1", None), ("0.2.5", None), ("0.3.0", "the gateway"), ("next", "the pool's pods")],
)
async def test_a_daemon_too_old_or_too_new_is_nobodys_sandbox(autojump_clock, version, behind):
    """Its placeholders are not given, and the pod that is made in their stead has the same daemon."""
    cluster = FakeCluster()
    cluster.version = version
    cluster.pool()
    pod = cluster.placeholder()
    async with running(cluster) as one:
        await trio.sleep(20.0)
        assert (one._roster.skewed == {pod.uid}) is (behind is not None)
        if behind is None:
            assert (await one.allocate("acme", want(), None)).instance.uid == pod.uid
            return
        with pytest.raises(
            VersionSkewError, match=f"version {version}.* Upgrade {behind}"
        ) as caught:
            await one.allocate("acme", want(), None)
        assert (caught.value.cause, caught.value.retryable) == ("infrastructure", False)
        assert set(cluster.pods) == {pod.uid}
        cluster.version = versions.OWN
        await trio.sleep(60.0)
        assert one._roster.skewed == set()
        assert (await one.allocate("acme", want(), None)).instance.uid == pod.uid


async def test_one_that_goes_is_counted_no_more(autojump_clock):
    cluster = FakeCluster()
    cluster.version = "0.3.0"
    cluster.pool()
    pod = cluster.placeholder()
    async with running(cluster) as one:
        await trio.sleep(5.0)
        assert one._roster.skewed == {pod.uid}
        cluster.remove(pod.uid, Ending("deleted", "somebody deleted it"))
        await trio.sleep(1.0)
        assert one._roster.skewed == set()


async def test_a_daemon_that_never_answers_is_unreachable(autojump_clock):
    cluster = FakeCluster()
    cluster._boot = lambda uid, up_in: cluster.up_at.update({uid: float("inf")})
    async with running(cluster, Settings(image_s=20.0, handshake_s=5.0)) as one:
        with pytest.raises(UnreachableError, match="daemon did not answer"):
            await one.allocate("acme", want(wait_s=500.0), None)
        assert cluster.pods == {}


async def test_a_pod_that_dies_before_it_is_ready_ends_the_call_with_its_reason(autojump_clock):
    cluster = FakeCluster()
    pod = cluster.placeholder()
    async with running(cluster) as one, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(OomError):
                await one.allocate("acme", want(), None)

        nursery.start_soon(call)
        await trio.sleep(0.1)
        cluster.end(pod.uid, Ending("oom", "killed for want of memory"))
    assert cluster.leased() == []


async def test_a_sandbox_that_vanished_unseen_before_the_claims_answer_came_is_not_kept(
    autojump_clock,
):
    """The watch was quicker than the answer: what it has seen go must not come in again."""
    cluster = FakeCluster()
    pod = cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as one, trio.open_nursery() as nursery:
        cluster.delay_after = 1.0

        async def call() -> None:
            with pytest.raises(CapacityError):
                await one.allocate("acme", want(wait_s=10.0), None)

        nursery.start_soon(call)
        await trio.sleep(0.5)
        cluster.remove(pod.uid, Ending("deleted", "somebody deleted its pod"))
    assert one._roster.registry.all() == []
    assert one._roster.registry.of_tenant("acme") == []


async def test_an_answer_older_than_what_the_watch_told_does_not_undo_it(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as one:
        cluster.delay_after = 1.0
        create = cluster.create

        async def late(*args):
            made = await create(*args)
            return dataclasses.replace(made, address=None, node=None, running=False)

        cluster.create = late
        made = await one.allocate("acme", want(wait_s=30.0), None)
        assert made.instance.address is not None


async def test_a_vanished_pod_that_nobody_told_of_is_deleted_and_no_fault_of_the_sandbox(
    autojump_clock,
):
    cluster = FakeCluster()
    async with running(cluster) as one:
        instance = dataclasses.replace(cluster.placeholder(), uid="never-seen")
        with pytest.raises(DeletedError):
            await one._fulfilment.starting.wait_ready(instance, wire.Claim("c"))
