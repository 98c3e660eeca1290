"""The pool over a cluster in memory, in virtual time."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.config import Settings
from gateway.fulfilment import LOOKS_APART_S
from gateway.model import Ending, SandboxRequest, Tier
from gateway.pool import SETTLE_EVERY_S
from gateway.provider import ClaimLostError
from sandman import names
from sandman.errors import (
    BadRequestError,
    CapacityError,
    ConflictError,
    ImageNotFoundError,
    UnreachableError,
)
from tests.fakes.cluster import BASE, TASK, FakeCluster, make_pool


def want(**changes) -> SandboxRequest:
    request = SandboxRequest(image=TASK, pool="root", max_s=3600.0, wait_s=60.0)
    return dataclasses.replace(request, **changes)


@contextlib.asynccontextmanager
async def running(cluster: FakeCluster, limits: Settings | None = None):
    pool = make_pool(cluster, limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, cluster.receive)
        cluster.pool()
        cluster.synced()
        await settle()
        yield pool
        nursery.cancel_scope.cancel()


async def settle() -> None:
    """Let news be taken in and placeholders be vetted."""
    await trio.sleep(0.001)


async def test_a_swap_waits_for_the_daemon_of_the_new_image(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    old_boot = cluster.boots[placeholder.uid]
    async with running(cluster) as pool:
        begun = trio.current_time()
        made = await pool.allocate("acme", want(), None)
        assert made.instance.tier == Tier.SWAP
        assert made.instance.image == TASK
        assert made.boot_id != old_boot
        assert made.boot_id == cluster.boots[placeholder.uid]
        assert 0.2 <= trio.current_time() - begun < 0.5
        assert cluster.writes == [("claim", placeholder.name)]


async def test_the_same_image_is_warm_and_at_once(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(image=None), None)
        assert made.instance.tier == Tier.WARM
        assert made.boot_id == cluster.boots[placeholder.uid]
        assert made.timings.ready_ms == 0.0


async def test_without_a_placeholder_a_pod_is_made(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(), None)
        assert made.instance.tier == Tier.COLD
        assert made.instance.tenant == "acme"
        assert [kind for kind, _ in cluster.writes] == ["create"]


async def test_a_placeholder_counts_as_free_only_once_its_daemon_has_answered(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(up_in=3.0)
    async with running(cluster, Settings(cold_max=0)) as pool:
        begun = trio.current_time()
        await pool.allocate("acme", want(image=None), None)
        assert 2.9 <= trio.current_time() - begun < 6


async def test_a_claim_that_somebody_else_won_takes_the_next_placeholder(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    second = cluster.placeholder()
    cluster.fail_claims = [ClaimLostError("x")]
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(), None)
        assert made.instance.uid == second.uid


async def test_losing_every_placeholder_ends_as_capacity(autojump_clock):
    cluster = FakeCluster()
    for _ in range(5):
        cluster.placeholder()
    cluster.fail_claims = [ClaimLostError("x")] * 5
    async with running(cluster) as pool:
        with pytest.raises(CapacityError, match="lost"):
            await pool.allocate("acme", want(), None)
        assert cluster.leased() == []


async def test_a_pod_lost_before_its_handshake_is_replaced_in_silence(autojump_clock):
    cluster = FakeCluster()
    first = cluster.placeholder()
    second = cluster.placeholder()
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        made = []

        async def call():
            made.append(await pool.allocate("acme", want(), None))

        nursery.start_soon(call)
        await trio.sleep(0.1)
        cluster.remove(first.uid, Ending("evicted", "the node put the pod out"))
        nursery.cancel_scope.deadline = trio.current_time() + 5
    assert made[0].instance.uid == second.uid


async def test_an_image_that_is_not_there_is_a_typed_error_and_its_pod_is_deleted(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.bad_images[TASK] = "image_not_found"
    async with running(cluster) as pool:
        with pytest.raises(ImageNotFoundError, match=TASK):
            await pool.allocate("acme", want(), None)
        assert cluster.leased() == []


async def test_waiting_ends_with_the_place_in_the_queue(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster, Settings(cold_max=0)) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(expect_capacity, pool, 8.0)
        await settle()
        with pytest.raises(CapacityError) as caught:
            await pool.allocate("acme", want(wait_s=5.0), None)
        assert caught.value.facts["place"] == 2
        assert caught.value.retry_after == 1.0


async def expect_capacity(pool, wait_s: float) -> None:
    with pytest.raises(CapacityError):
        await pool.allocate("acme", want(wait_s=wait_s), None)


async def test_a_full_queue_refuses_at_once(autojump_clock):
    cluster = FakeCluster()
    limits = Settings(cold_max=0, queue_max=1)
    async with running(cluster, limits) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(expect_capacity, pool, 8.0)
        await settle()
        with pytest.raises(CapacityError, match="full"):
            await pool.allocate("acme", want(), None)


async def test_wait_s_that_ends_while_the_pod_starts_leaves_nothing_behind(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        with pytest.raises(CapacityError, match="starting"):
            await pool.allocate("acme", want(wait_s=0.3), None)
        assert cluster.pods == {}


async def test_no_such_pool_names_those_that_there_are(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        with pytest.raises(BadRequestError, match="there are: root"):
            await pool.allocate("acme", want(pool="nope"), None)


# --- idempotency ---


async def test_the_same_key_gives_the_same_sandbox(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(), "k")
        again = await pool.allocate("acme", want(), "k")
        assert again.instance.id == first.instance.id
        assert again.boot_id == first.boot_id
        assert len(cluster.leased()) == 1


async def test_a_sandbox_of_the_key_whose_lease_ran_out_is_not_given_again(autojump_clock):
    """Its pod has some slack for calls in flight; a new call would be told that it has expired."""
    cluster = FakeCluster()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(max_s=20.0), "k")
        await trio.sleep(21.0)
        second = await pool.allocate("acme", want(max_s=20.0), "k")
        assert second.instance.id != first.instance.id
        again = await pool.allocate("acme", want(max_s=20.0), "k")
        assert again.instance.id == second.instance.id


async def test_two_at_once_with_the_same_key_make_one_sandbox(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.placeholder()
    async with running(cluster) as pool:
        made = []

        async def call():
            made.append(await pool.allocate("acme", want(), "k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
        assert made[0].instance.id == made[1].instance.id
        assert len(cluster.leased()) == 1
        assert repr(pool).endswith("keys=0>")


async def test_the_same_key_of_another_tenant_is_another_key(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(), "k")
        other = await pool.allocate("zeta", want(), "k")
        assert other.instance.id != first.instance.id


async def test_the_same_key_with_another_request_is_a_conflict(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        await pool.allocate("acme", want(), "k")
        with pytest.raises(ConflictError):
            await pool.allocate("acme", want(env=(("A", "2"),)), "k")


async def test_a_new_allocator_finishes_the_handshake_of_one_that_was_lost(autojump_clock):
    """The first allocator claimed and vanished: the second knows the claim from the pod alone."""
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_discards = [UnreachableError("it vanished: its cleanup never ran")]
    async with running(cluster) as pool:
        with trio.move_on_after(0.1):
            await pool.allocate("acme", want(), "k")
    [orphan] = cluster.leased()
    cluster.tell_anew()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(), "k")
        assert made.instance.uid == orphan.uid
        assert made.boot_id != orphan.previous_boot_id


async def test_a_daemon_is_told_a_lease_that_is_no_shorter_than_the_sandboxs(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.delay_after = 5.0
    async with running(cluster, Settings(outage_grace_s=90.0)) as pool:
        made = await pool.allocate("acme", want(max_s=1000.0), "k")
        expires_at = made.instance.expires_at
        assert expires_at is not None
        begun = trio.current_time()
        await trio.sleep(400.0)
        await pool.allocate("acme", want(max_s=1000.0), "k")
        [first, again] = cluster.leases[made.instance.uid]
    assert first is not None
    assert again is not None
    assert first.grace_s == again.grace_s == 90.0
    assert begun + first.ttl_s >= expires_at > begun + first.ttl_s - 10.0
    assert begun + 400.0 + again.ttl_s == pytest.approx(expires_at)


async def test_a_placeholder_whose_daemon_is_from_before_leases_serves_all_the_same(autojump_clock):
    cluster = FakeCluster()
    cluster.knows_no_leases = True
    cluster.placeholder()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(image=BASE), None)
        assert cluster.leases[made.instance.uid] == [None]
        assert [kind for kind, _ in cluster.writes] == ["claim"]


async def test_a_sandbox_whose_lease_nobody_can_read_is_not_ended_by_its_daemon(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(), "k")
        uid = made.instance.uid
        pool._roster.registry.put(dataclasses.replace(made.instance, expires_at=None))
        await pool.allocate("acme", want(), "k")
        assert cluster.leases[uid][-1] is None


async def test_a_sandbox_of_the_key_that_does_not_answer_is_unreachable_not_made_anew(
    autojump_clock,
):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        made = await pool.allocate("acme", want(), "k")
        cluster.up_at[made.instance.uid] = float("inf")
        with pytest.raises(UnreachableError):
            await pool.allocate("acme", want(wait_s=3.0), "k")
        assert len(cluster.leased()) == 1


# --- cancellation: at any moment, nothing is left behind ---


@settings(max_examples=60, deadline=None)
@given(
    at=st.floats(0.0, 1.2),
    before=st.sampled_from([0.0, 0.3]),
    after=st.sampled_from([0.0, 0.3]),
    free=st.integers(0, 1),
)
def test_cancelled_at_any_moment_the_pod_is_handed_over_or_gone(at, before, after, free):
    trio.run(cancel_at, at, before, after, free, clock=MockClock(autojump_threshold=0))


async def cancel_at(at: float, before: float, after: float, free: int) -> None:
    cluster = FakeCluster()
    for _ in range(free):
        cluster.placeholder()
    async with running(cluster) as pool:
        cluster.delay_before, cluster.delay_after = before, after
        made = []
        with trio.move_on_after(at):
            made.append(await pool.allocate("acme", want(), None))
        cluster.delay_before = cluster.delay_after = 0.0
        await trio.sleep(1.0)
        assert len(cluster.leased()) == len(made)
        # What was never taken serves the next caller.
        # A claim that was cut may be written yet: it is looked for twice.
        await trio.sleep(2 * SETTLE_EVERY_S + LOOKS_APART_S)
        assert pool._fulfilment._unsettled == []
        untouched = [p for p in cluster.pods.values() if p.state == names.STATE_FREE]
        if untouched:
            again = await pool.allocate("acme", want(image=BASE), None)
            assert again.instance.tier == Tier.WARM
        assert pool._allocation.statistics().claiming == 0
        assert pool._waiters == {}


async def test_a_burst_over_few_placeholders_gives_distinct_pods(autojump_clock):
    cluster = FakeCluster()
    for _ in range(20):
        cluster.placeholder()
    async with running(cluster) as pool:
        made = []

        async def call():
            made.append(await pool.allocate("acme", want(), None))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(call)
        assert len({one.instance.uid for one in made}) == 50
        tiers = [one.instance.tier for one in made]
        assert (tiers.count("swap"), tiers.count("cold")) == (20, 30)
