"""What a sweep does besides leases: daemons are told, lost nodes and orphans are cleared away."""

from __future__ import annotations

import dataclasses
import itertools

import trio

from gateway import leases, orphans
from gateway.model import Ending, Terms
from gateway.provider import Gone, NodeSeen, PoolGone
from gateway.sweeper import EVERY_S
from sandman import names
from tests.unit.gateway.test_roster import leased
from tests.unit.gateway.test_sweeper import HOUR_S, OF_RUN, OWN, sweeping

# --- daemons are told ---


async def test_daemons_hear_of_a_gateway_three_times_in_their_patience(autojump_clock):
    async with sweeping() as bed:
        one, quiet = bed.sandbox(terms=OF_RUN, run="r1"), bed.sandbox()
        for _ in range(2 * 36):
            bed.runs.beat("acme", "r1")
            await trio.sleep(50.0)
        told = [(name, ttl_s, asked) for name, ttl_s, asked in bed.cluster.told]
        # (100 + 600) / 3 s apart.
        assert 14 <= told.count((one.name, 100.0, False)) <= 15
        assert len(told) == told.count((one.name, 100.0, False))
        assert bed.lives(quiet)


async def test_leaders_that_come_and_go_forget_no_daemon(autojump_clock):
    """Each leads for less than the span in which a daemon is told."""
    async with sweeping() as bed:
        one = bed.sandbox(terms=OF_RUN, run="r1")
        told: list[float] = []
        for _ in range(40):
            bed.runs.beat("acme", "r1")
            bed.leads = False
            await trio.sleep(2 * EVERY_S)
            bed.leads = True
            bed.cluster.told.clear()
            for _ in range(9):
                await trio.sleep(10.0)
                bed.runs.beat("acme", "r1")
                told += [trio.current_time()] * len(bed.cluster.told)
                bed.cluster.told.clear()
        assert bed.lives(one)
        assert max(b - a for a, b in itertools.pairwise(told)) < 350.0


async def test_one_that_could_not_be_told_is_told_at_the_next_sweep(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(terms=Terms(ttl_s=600.0))
        await trio.sleep(350.0)
        bed.cluster.silent.add(one.uid)
        await trio.sleep(100.0)
        assert bed.cluster.told == []
        bed.cluster.silent.clear()
        await trio.sleep(2 * EVERY_S)
        assert bed.cluster.told == [(one.name, 600.0, False)]


# --- nodes ---


async def test_a_silent_sandbox_of_a_lost_node_is_lost_and_its_pod_is_buried(autojump_clock):
    async with sweeping() as bed:
        one, answers = bed.sandbox(), bed.sandbox()
        bed.cluster.silent.add(one.uid)

        async def delete(instance):
            bed.cluster._put(dataclasses.replace(bed.cluster.pods[instance.uid], deleting=True))

        bed.cluster.delete = delete
        bed.cluster.send.send_nowait(NodeSeen("n1", closed=True, lost=True))
        await trio.sleep(orphans.LOST_S + 3 * EVERY_S)
        assert bed.ends == [(one.name, "node_lost")]
        assert bed.roster.registry.ending(one.id)[1].error("x").cause == "infrastructure"
        assert bed.cluster.pods[one.uid].deleting
        await trio.sleep(orphans.BURY_S + 2 * EVERY_S)
        assert not bed.lives(one)
        # Its kubelet alone is gone: commands run on.
        await trio.sleep(HOUR_S)
        assert bed.lives(answers)


async def test_a_node_that_comes_back_in_time_loses_nobody(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox()
        bed.cluster.silent.add(one.uid)
        for _ in range(20):
            bed.cluster.send.send_nowait(NodeSeen("n1", closed=True, lost=True))
            await trio.sleep(orphans.LOST_S - 1)
            bed.cluster.send.send_nowait(NodeSeen("n1", closed=False))
            await trio.sleep(60.0)
        assert bed.lives(one)


# --- orphans ---


async def test_a_claim_that_was_never_handed_over_goes(autojump_clock):
    async with sweeping() as bed:
        one, mine = bed.sandbox(), bed.sandbox()
        for orphan in (one, mine):
            del bed.cluster.claims[orphan.uid]
        bed.in_hand.add(mine.claim_id)
        handed = bed.sandbox()
        begun = trio.current_time()
        gone = await bed.until_gone(one) - begun
        assert orphans.HANDOVER_S <= gone <= orphans.HANDOVER_S + 2 * EVERY_S
        await trio.sleep(HOUR_S)
        assert bed.lives(mine)
        assert bed.lives(handed)


async def test_what_is_being_prepared_has_all_the_time_that_it_takes(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(terms=OWN)
        bed.in_hand.add(one.claim_id)
        del bed.cluster.claims[one.uid]
        await trio.sleep(1000.0)
        assert bed.lives(one)
        # Its handshake is its first use.
        bed.cluster.claims[one.uid] = one.claim_id
        bed.callers[one.uid].calls()
        bed.in_hand.clear()
        begun = trio.current_time()
        assert 100.0 <= await bed.until_gone(one) - begun <= 100.0 + EVERY_S + 1


async def test_a_cold_pod_that_never_becomes_ready_goes(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(running=False)
        bed.cluster.silent.add(one.uid)
        begun = trio.current_time()
        gone = await bed.until_gone(one) - begun
        assert orphans.START_S <= gone <= orphans.START_S + 2 * EVERY_S


async def test_free_pods_of_a_pool_that_is_no_more_go(autojump_clock):
    async with sweeping() as bed:
        free = bed.cluster.placeholder()
        held = bed.sandbox()
        bed.cluster.send.send_nowait(PoolGone("ns", "root"))
        await trio.sleep(orphans.POOLLESS_S + 2 * EVERY_S)
        assert not bed.lives(free)
        assert bed.lives(held)


async def test_what_was_told_to_end_by_a_gateway_that_died_goes(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox()
        await bed.cluster.mark(one, Ending("released", "it was released"))
        await trio.sleep(2 * EVERY_S)
        assert not bed.lives(one)
        assert bed.ends == [(one.name, "released")]


async def test_runs_with_sandboxes_are_living(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(run="r1")
        await trio.sleep(2 * EVERY_S)
        assert ("acme", "r1") in bed.runs.living
        bed.cluster.send.send_nowait(Gone(one.uid, Ending("deleted", "x")))
        await trio.sleep(2 * EVERY_S)
        assert ("acme", "r1") not in bed.runs.living


async def test_another_daemon_at_its_address_tells_nothing(autojump_clock):
    async with sweeping() as bed:
        begun = trio.current_time()
        one = bed.sandbox(terms=OWN)
        bed.cluster.claims[one.uid] = "another"
        assert await bed.until_gone(one) - begun >= 150.0
        assert names.STATE_LEASED not in {pod.state for pod in bed.cluster.pods.values()}


def test_a_verdict_without_end_is_none():
    assert leases.ending(leased(), leases.Verdict.ASK) is None
