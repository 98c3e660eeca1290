"""Whoever waits for a node with a new pod of his own is given a placeholder that comes free meanwhile."""

from __future__ import annotations

import contextlib

import pytest
import trio

from gateway import reseating
from gateway.allocation import Allocation
from gateway.config import Settings
from gateway.fairness import Ticket
from gateway.model import Tier
from gateway.orders import Slot
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_pool import running, want


@pytest.fixture
def full():
    """A cluster whose nodes have no room for a new pod."""
    cluster = FakeCluster()
    cluster.is_full = True
    return cluster


async def test_a_placeholder_that_comes_free_goes_to_whose_new_pod_finds_no_node(
    full, autojump_clock
):
    async with running(full) as pool:
        made = []

        async def allocate():
            made.append(await pool.allocate("acme", want(), None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(allocate)
            await trio.sleep(20)
            placeholder = full.placeholder()
        assert trio.current_time() < 40
    [one] = made
    assert (one.instance.uid, one.instance.tier) == (placeholder.uid, Tier.SWAP)
    # Its new pod is not left behind.
    assert [kind for kind, _ in full.writes] == ["create", "delete", "claim"]
    assert [left.uid for left in full.leased()] == [placeholder.uid]


async def test_of_many_one_is_given_it_and_the_others_keep_theirs(full, autojump_clock):
    async with running(full) as pool, trio.open_nursery() as nursery:
        made = []

        async def allocate():
            made.append(await pool.allocate("acme", want(), None))

        for _ in range(5):
            nursery.start_soon(allocate)
        await trio.sleep(20)
        full.placeholder()
        await trio.sleep(20)
        assert len(made) == 1
        assert sum(kind == "create" for kind, _ in full.writes) == 5
        nursery.cancel_scope.cancel()


def waiting(**limits) -> tuple[Allocation, Ticket, Slot]:
    """One that waits with a new pod, and a placeholder that comes free."""
    one = Allocation(**{"cold_max": 5, "claims_max": 5, **limits})
    ticket = Ticket(1, "root", TASK)
    one.arrive(ticket)
    assert [order.slot for order in one.assign()] == [None]
    slot = Slot("u1", "root", BASE, "n1", swap=True)
    one.offer(slot)
    return one, ticket, slot


def test_a_placeholder_that_is_lost_while_it_is_kept_is_nobodys():
    one, ticket, slot = waiting()
    kept = one.keep(ticket)
    assert kept is not None
    one.withdraw(slot.uid)
    one.give_back(kept)
    assert one.free() == {}
    # It may come back, as any other: its daemon is met anew.
    one.offer(slot)
    assert one.free() == {"root": 1}


def test_no_more_are_kept_than_may_be_claimed():
    one, ticket, _ = waiting()
    one.limit(claims=0, cold=5)
    assert one.keep(ticket) is None
    one.limit(claims=1, cold=5)
    kept = one.keep(ticket)
    assert kept is not None
    one.offer(Slot("u2", "root", BASE, "n1", swap=True))
    assert one.keep(ticket) is None
    one.give_back(kept)
    assert one.free() == {"root": 2}
    assert one.keep(ticket) is not None


def test_evaluations_may_be_kept_some_when_rollouts_have_all_claims():
    one, ticket, _ = waiting(claims_max=8)
    one.limit(claims=0, cold=5)
    assert one.keep(ticket) is None
    one.limit(claims=8, cold=5)
    others = [Ticket(number, "other", BASE) for number in range(10, 18)]
    for number, other in enumerate(others):
        one.offer(Slot(f"o{number}", "other", BASE, "n1", swap=True))
        one.arrive(other)
    assert len(one.assign()) == 8
    assert one.keep(ticket) is None
    one.evaluating.add("root")
    assert one.keep(ticket) is not None


def test_whose_image_another_one_tries_keeps_its_pod():
    one, ticket, _ = waiting()
    other = Ticket(2, "root", TASK)
    one.arrive(other)
    # The other one overtakes: it is with it that the image is tried now.
    assert [order.ticket for order in one.assign()] == [other]
    one.offer(Slot("u2", "root", BASE, "n1", swap=True))
    assert one.keep(ticket) is None
    assert one.free() == {"root": 1}


async def test_a_pod_that_found_a_node_is_kept(autojump_clock):
    """Its image may take minutes to be pulled: it is on its way all the same."""
    cluster = FakeCluster()
    cluster.start_s = 50.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        made = []

        async def allocate():
            made.append(await pool.allocate("acme", want(), None))

        nursery.start_soon(allocate)
        await trio.sleep(reseating.AFTER_S + 5)
        cluster.placeholder()
    assert made[0].instance.tier == Tier.COLD


@pytest.mark.parametrize("after", [0.0, 0.0001, 0.001, 0.01, 0.1])
async def test_who_goes_away_in_the_middle_leaves_nothing_taken(full, autojump_clock, after):
    async with running(full, Settings(cold_max=1)) as pool:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def go_away():
                    await trio.sleep(20)
                    full.placeholder()
                    await trio.sleep(0.001 + after)
                    scope.cancel()

                nursery.start_soon(go_away)
                with contextlib.suppress(trio.Cancelled):
                    await pool.allocate("acme", want(), None)
        await trio.sleep(30)
        assert full.leased() == []
        # Another one may have it, unless it had been claimed for him who went.
        is_spent = "claim" in dict(full.writes)
        if is_spent:
            full.placeholder()
        made = await pool.allocate("acme", want(), None)
        assert made.instance.tier == Tier.SWAP
        assert len(full.leased()) == 1
