"""The pool when something goes wrong at an awkward moment, in virtual time."""

from __future__ import annotations

import dataclasses

import pytest
import trio

from gateway import fulfilment, pool
from gateway.config import Settings
from gateway.daemons import NotListeningError
from gateway.model import Ending, Tier
from gateway.provider import PoolGone
from sandman.errors import (
    BadRequestError,
    CapacityError,
    DiedError,
    InternalError,
    UnreachableError,
)
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_pool import running, settle, want


def is_whole(one) -> None:
    """Nothing is under way, and nobody is waited for."""
    state = one._allocation.statistics()
    assert (state.waiting, state.claiming, state.cold) == (0, 0, 0)
    assert one._waiters == {}
    assert not len(one._keys)


# --- an API server that is away ---


async def test_a_claim_that_may_have_been_lost_gives_its_placeholder_back_once_that_is_known(
    autojump_clock,
):
    cluster = FakeCluster()
    free = cluster.placeholder()
    cluster.fail_claims = [UnreachableError("no answer")]
    cluster.fail_discards = [UnreachableError("still away")] * 2
    async with running(cluster, Settings(cold_max=0)) as one:
        with pytest.raises(UnreachableError, match="no answer"):
            await one.allocate("acme", want(), None)
        is_whole(one)
        assert one._allocation.statistics().free == 0
        begun = trio.current_time()
        made = await one.allocate("acme", want(), None)
        assert made.instance.uid == free.uid
        # Two that failed, and two looks.
        assert trio.current_time() - begun <= 5 * pool.SETTLE_EVERY_S + 1


async def test_a_pod_that_could_not_be_deleted_is_deleted_later(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.bad_images[want().image] = "image_not_found"
    cluster.fail_discards = [UnreachableError("away")]
    async with running(cluster) as one:
        with pytest.raises(Exception, match="image_not_found"):
            await one.allocate("acme", want(), None)
        assert len(cluster.leased()) == 1
        await trio.sleep(pool.SETTLE_EVERY_S + 1)
        assert cluster.leased() == []
        is_whole(one)


async def test_a_cleanup_that_takes_too_long_holds_nobody_up_and_is_done_later(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.delay_after = 5.0
    hang = cluster.discard

    async def slow(*args):
        cluster.discard = hang
        await trio.sleep_forever()

    async with running(cluster) as one:
        cluster.discard = slow
        begun = trio.current_time()
        with trio.move_on_after(1.0):
            await one.allocate("acme", want(), None)
        assert trio.current_time() - begun == pytest.approx(1.0 + fulfilment.CLEANUP_S)
        is_whole(one)
        await trio.sleep(pool.SETTLE_EVERY_S + 1)
        assert cluster.leased() == []


async def test_what_two_settle_at_once_is_given_back_once(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_claims = [UnreachableError("no answer")]
    discard = cluster.discard

    async def slow(*args):
        await trio.sleep(0.8 * fulfilment.CLEANUP_S)
        return await discard(*args)

    cluster.discard = slow
    async with running(cluster, Settings(cold_max=0)) as one:
        with pytest.raises(UnreachableError):
            await one.allocate("acme", want(), None)
        made = await one.allocate("acme", want(), None)
        await trio.sleep(5 * pool.SETTLE_EVERY_S)
        assert one._allocation._given == {made.instance.uid: 2}
        assert one._fulfilment._unsettled == []


# --- the same key again ---


async def test_a_claim_that_is_written_after_it_was_given_up_is_not_found_by_its_key(
    autojump_clock,
):
    """It is about to be deleted, though it looks like a sandbox of the key that only starts."""
    cluster = FakeCluster()
    doomed = cluster.placeholder()
    cluster.placeholder()
    claim = cluster.claim

    async def late(instance, assignment):
        cluster.claim = claim
        cluster.late = assignment
        await trio.sleep_forever()

    cluster.claim = late
    async with running(cluster) as one:
        with trio.move_on_after(0.1):
            await one.allocate("acme", want(), "k")
        await claim(doomed, cluster.late)
        await settle()
        made = await one.allocate("acme", want(), "k")
        assert made.instance.uid != doomed.uid
        await trio.sleep(2 * pool.SETTLE_EVERY_S)
        assert [pod.uid for pod in cluster.leased()] == [made.instance.uid]
        again = await one.allocate("acme", want(), "k")
        assert again.instance.uid == made.instance.uid


async def test_a_call_that_was_given_up_is_not_found_again_by_its_key(autojump_clock):
    """Its pod is going, though its daemon still answers and the watch has not told yet."""
    cluster = FakeCluster()
    doomed = cluster.placeholder()
    cluster.placeholder()
    cluster.delete = lambda _pod: trio.lowlevel.checkpoint()
    async with running(cluster) as one:
        with trio.move_on_after(0.1):
            await one.allocate("acme", want(), "k")
        made = await one.allocate("acme", want(), "k")
        assert made.instance.uid != doomed.uid
        assert one._roster.registry.ending(doomed.id)[1].reason == "released"


async def test_waiting_for_the_first_call_of_a_key_ends_with_ones_own_wait_s(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster, Settings(cold_max=0)) as one, trio.open_nursery() as nursery:
        nursery.start_soon(expect_capacity, one, 50.0)
        await settle()
        begun = trio.current_time()
        with pytest.raises(CapacityError, match="earlier call"):
            await one.allocate("acme", want(wait_s=2.0), "k")
        assert trio.current_time() - begun == pytest.approx(2.0)


async def expect_capacity(one, wait_s: float) -> None:
    with pytest.raises(CapacityError):
        await one.allocate("acme", want(wait_s=wait_s), "k")


# --- cancelled at each await ---


@pytest.mark.parametrize(
    "at",
    ["in the queue", "at the key's lock", "in the claim", "after the claim", "in the creation",
     "at the handshake", "at the handshake of an earlier claim"],
)  # fmt: skip
async def test_cancelled_there_the_state_is_whole(autojump_clock, at):
    cluster = FakeCluster()
    cold = at == "in the creation"
    if not cold:
        cluster.placeholder()
    limits = Settings(cold_max=int(cold))
    async with running(cluster, limits) as one, trio.open_nursery() as nursery:
        key = None
        if at == "in the queue":
            await one.allocate("acme", want(image=None), None)
        elif at == "at the key's lock":
            key = "k"
            await one.allocate("acme", want(image=None), None)
            nursery.start_soon(expect_cancelled, one, key)
            await settle()
        elif at == "in the claim":
            cluster.delay_before = 3.0
        elif at in {"after the claim", "in the creation"}:
            cluster.delay_after = 3.0
        elif at == "at the handshake of an earlier claim":
            key = "k"
            made = await one.allocate("acme", want(), key)
            cluster.up_at[made.instance.uid] = float("inf")
        else:
            cluster.up_at = dict.fromkeys(cluster.up_at, 0.0)
            cluster._boot = lambda uid, up_in: cluster.up_at.update({uid: float("inf")})
        before = len(cluster.leased())
        with trio.move_on_after(0.5) as scope:
            await one.allocate("acme", want(), key)
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
        cluster.delay_before = cluster.delay_after = 0.0
        await trio.sleep(0.01)
        assert len(cluster.leased()) == before
        assert one._roster._changes == {}
    is_whole(one)


async def expect_cancelled(one, key: str) -> None:
    await one.allocate("acme", want(), key)


# --- placeholders that are odd ---


async def test_a_placeholder_whose_key_comes_late_is_used_then(autojump_clock):
    """At a start the pods may be told of before the keys are."""
    cluster = FakeCluster()
    cluster.placeholder()
    answer, failures = cluster.info, [InternalError("no key"), DiedError("a stranger")] * 20

    async def info(instance):
        if failures:
            raise failures.pop()
        return await answer(instance)

    cluster.info = info
    async with running(cluster, Settings(cold_max=0)) as one:
        made = await one.allocate("acme", want(image=None, wait_s=5000.0), None)
        assert made.instance.tier == Tier.WARM


async def test_a_placeholder_that_stays_silent_is_asked_until_it_is_gone(autojump_clock):
    cluster = FakeCluster()
    silent = cluster.placeholder(up_in=10_000.0)
    asked = []

    async def info(instance):
        asked.append(trio.current_time())
        raise NotListeningError(instance.name)

    cluster.info = info
    async with running(cluster):
        await trio.sleep(100.0)
        assert asked[-1] > 60.0
        cluster.remove(silent.uid, Ending("deleted", "x"))
        count = len(asked)
        await trio.sleep(100.0)
        assert len(asked) <= count + 1


async def test_a_placeholder_that_somebody_claimed_at_its_daemon_is_not_given(autojump_clock):
    cluster = FakeCluster()
    taken = cluster.placeholder()
    cluster.claims[taken.uid] = "another gateway's claim"
    async with running(cluster) as one:
        made = await one.allocate("acme", want(), None)
        assert made.instance.tier == Tier.COLD


async def test_a_placeholder_that_goes_and_comes_back_is_met_anew(autojump_clock):
    cluster = FakeCluster()
    pod = cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as one:
        cluster._put(dataclasses.replace(pod, running=False))
        await settle()
        assert one._allocation.statistics().free == 0
        cluster._boot(pod.uid, 0.0)
        cluster._put(pod)
        made = await one.allocate("acme", want(image=None), None)
        assert made.boot_id == cluster.boots[pod.uid]


async def test_the_end_of_the_news_ends_the_pool(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as one:
        await cluster.send.aclose()
        with trio.fail_after(1):
            await settle()
    is_whole(one)


# --- pools that go away ---


async def test_a_pool_that_goes_away_before_its_turn_is_a_typed_error(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as one, trio.open_nursery() as nursery:
        cluster.delay_before = 1.0

        async def call() -> None:
            with pytest.raises(BadRequestError, match="no pool"):
                await one.allocate("acme", want(), None)

        one._roster.apply(PoolGone("ns", "root"))
        nursery.start_soon(call)


async def test_an_order_of_a_pool_that_went_away_is_refused_and_spent(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as one:
        pump = one._pump

        def gone_meanwhile() -> None:
            one._roster.apply(PoolGone("ns", "root"))
            pump()

        one._pump = gone_meanwhile
        with pytest.raises(BadRequestError, match="went away"):
            await one.allocate("acme", want(), None)
        is_whole(one)


async def test_a_placeholder_that_vanished_before_its_turn_is_replaced(autojump_clock):
    cluster = FakeCluster()
    first = cluster.placeholder()
    async with running(cluster) as one:
        pump = one._pump

        def gone_meanwhile() -> None:
            pump()
            if first.uid in cluster.pods:
                one._roster.registry.remove(first.uid, Ending("deleted", "x"))
                del cluster.pods[first.uid]

        one._pump = gone_meanwhile
        made = await one.allocate("acme", want(), None)
        assert made.instance.tier == Tier.COLD
        is_whole(one)
