"""Placeholders that were prepared ahead, over a cluster in memory: who gets them, and what else never happens."""

from __future__ import annotations

import dataclasses

import pytest
import trio

from gateway import steps
from gateway.config import Settings
from gateway.model import DEFAULT_SHARE, Ending, Purpose, Share, Tier
from gateway.provider import Seen
from sandman import names
from sandman.errors import DeletedError, PrepareFailedError, QuotaError, UnreachableError
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_certified import FACTS
from tests.unit.gateway.test_certified import made as certificate_of
from tests.unit.gateway.test_pool import running, settle, want

STEPS = steps.parse([{"exec": {"argv": ["make"]}}])
OTHERS = steps.parse([{"exec": {"argv": ["make", "more"]}}])
HASH = steps.prepared_hash("acme", TASK, STEPS)


def reserved(cluster: FakeCluster) -> list[str]:
    return [uid for uid, one in cluster.pods.items() if one.state == names.STATE_RESERVED]


async def reserve(pool, tenant: str = "acme", share: Share = DEFAULT_SHARE, **changes):
    request = want(prepare=STEPS, purpose=Purpose.AHEAD, **changes)
    return await pool.reserve(tenant, request, "r1", share=share)


async def test_what_was_prepared_is_handed_over_warm_by_one_write(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    cluster.call_s = 3.0
    async with running(cluster, Settings(cold_max=0)) as pool:
        made = await reserve(pool)
        assert (made.instance.state, made.instance.prepared) == (names.STATE_RESERVED, HASH)
        # Nobody has claimed the daemon: the sandbox's own environment comes with its claim.
        assert cluster.claims == {}
        begun = trio.current_time()
        box = await pool.allocate("acme", want(prepare=STEPS), "k")
        assert trio.current_time() - begun < 0.01
        assert (box.instance.uid, box.instance.tier) == (placeholder.uid, Tier.WARM)
        assert cluster.writes == [
            (kind, placeholder.name) for kind in ("claim", "prepared", "claim")
        ]
        assert len(cluster.calls) == 1
        again = await pool.allocate("acme", want(prepare=STEPS), "k")
        assert again.instance.uid == box.instance.uid


@pytest.mark.parametrize(("image", "restarts"), [(TASK, 1), (BASE, 0)])
async def test_that_it_was_swapped_is_still_known_of_the_sandbox(autojump_clock, image, restarts):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as pool:
        asked = want(image=image, prepare=STEPS, purpose=Purpose.AHEAD)
        await pool.reserve("acme", asked, "r1", share=DEFAULT_SHARE)
        box = (await pool.allocate("acme", want(image=image, prepare=STEPS), None)).instance
        assert (box.state, box.previous_boot_id) == (names.STATE_LEASED, None)
        facts = dataclasses.replace(FACTS, restarts=restarts)
        assert "restarts" not in {
            one["code"] for one in certificate_of(box, facts=facts)["reasons"]
        }
        again = dataclasses.replace(FACTS, restarts=restarts + 1)
        assert "restarts" in {one["code"] for one in certificate_of(box, facts=again)["reasons"]}


async def test_nobody_else_gets_it(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as pool:
        await reserve(pool)
        for tenant, request in [
            ("zeta", want(prepare=STEPS, wait_s=1.0)),
            ("acme", want(prepare=OTHERS, wait_s=1.0)),
            ("acme", want(wait_s=1.0)),
            ("acme", want(image="registry.example/other:1", prepare=STEPS, wait_s=1.0)),
        ]:
            with pytest.raises(Exception, match="no sandbox within"):
                await pool.allocate(tenant, request, None)
        assert pool._roster.registry.of_tenant("acme") == []
        box = await pool.allocate("acme", want(prepare=STEPS), None)
        assert pool._roster.registry.of_tenant("acme") == [box.instance]


async def test_one_without_steps_serves_requests_without(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as pool:
        await pool.reserve("acme", want(purpose=Purpose.AHEAD), "r1", share=DEFAULT_SHARE)
        box = await pool.allocate("acme", want(), None)
        assert box.instance.tier == Tier.WARM


async def test_a_new_gateway_finds_what_is_prepared(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        await reserve(pool)
    cluster.tell_anew()
    async with running(cluster, Settings(cold_max=0)) as pool:
        await settle()
        assert pool._allocation.statistics().prepared == 1
        box = await pool.allocate("acme", want(prepare=STEPS), None)
        assert box.instance.tier == Tier.WARM
        assert len(cluster.calls) == 1


async def test_one_whose_daemon_was_started_anew_is_never_handed_over(autojump_clock):
    cluster = FakeCluster()
    placeholder = cluster.placeholder()
    spare = cluster.placeholder()
    async with running(cluster) as pool:
        await reserve(pool)
        [uid] = reserved(cluster)
        cluster.boots[uid] = "another"
        box = await pool.allocate("acme", want(prepare=STEPS), None)
        assert box.instance.uid == spare.uid
        assert placeholder.uid not in cluster.pods
    cluster.pods.pop(box.instance.uid)
    cluster.tell_anew()
    cluster.placeholder()
    async with running(cluster) as pool:
        await reserve(pool)
        [uid] = reserved(cluster)
    cluster.boots[uid] = "another"
    cluster.tell_anew()
    async with running(cluster) as pool:
        await settle()
        assert pool._allocation.statistics().prepared == 0


async def test_a_preparation_that_fails_leaves_no_pod(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.answer = lambda *_: (200, b'{"exit_code": 1}')
    async with running(cluster) as pool:
        with pytest.raises(PrepareFailedError):
            await reserve(pool)
        assert cluster.pods == {}


async def test_a_mark_that_cannot_be_written_leaves_no_pod(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()

    async def refuse(*_args):
        raise UnreachableError("the API server is away")

    cluster.mark_prepared = refuse
    async with running(cluster) as pool:
        with pytest.raises(UnreachableError):
            await reserve(pool)
        assert cluster.pods == {}


async def test_one_that_ends_before_it_is_asked_for_is_not_given(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as pool:
        made = await reserve(pool)
        cluster.end(made.instance.uid, Ending("oom", "killed for want of memory"))
        await settle()
        assert pool._allocation.statistics().prepared == 0


async def test_what_is_prepared_counts_in_the_tenants_limit_and_only_once(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    share = Share(concurrent=2)
    async with running(cluster, Settings(cold_max=0)) as pool:
        for _ in range(2):
            await reserve(pool, share=share)
        with pytest.raises(QuotaError):
            await reserve(pool, share=share)
        with pytest.raises(QuotaError):
            await pool.allocate("acme", want(), None, share=share)
        for _ in range(2):
            await pool.allocate("acme", want(prepare=STEPS), None, share=share)
        with pytest.raises(QuotaError):
            await pool.allocate("acme", want(prepare=STEPS), None, share=share)


async def test_a_burst_on_what_is_prepared_stays_within_the_limit(autojump_clock):
    cluster = FakeCluster()
    for _ in range(6):
        cluster.placeholder()
    share = Share(concurrent=3)
    refused: list[QuotaError] = []
    async with running(cluster) as pool:
        for _ in range(3):
            await reserve(pool, share=share)

        async def one() -> None:
            try:
                await pool.allocate("acme", want(prepare=STEPS), None, share=share)
            except QuotaError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(one)
        assert len(cluster.leased()) == 3
        assert len(refused) == 3


async def test_a_late_sighting_of_what_was_handed_over_changes_nothing(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster, Settings(cold_max=0)) as pool:
        made = await reserve(pool)
        await pool.allocate("acme", want(prepare=STEPS), None)
        await settle()
        pool._roster.apply(Seen(made.instance))
        with pytest.raises(Exception, match="no sandbox within"):
            await pool.allocate("acme", want(prepare=STEPS, wait_s=1.0), None)


async def test_a_pod_that_vanishes_before_its_mark_is_replaced(autojump_clock):
    cluster = FakeCluster()
    first, second = cluster.placeholder(), cluster.placeholder()
    real = cluster.mark_prepared

    async def vanish(instance, what, boot_id):
        if instance.uid == first.uid:
            cluster.remove(first.uid, Ending("deleted", "somebody deleted its pod"))
            raise DeletedError("gone")
        return await real(instance, what, boot_id)

    cluster.mark_prepared = vanish
    async with running(cluster) as pool:
        made = await reserve(pool)
        assert made.instance.uid == second.uid
