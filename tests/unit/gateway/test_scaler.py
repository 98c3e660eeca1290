"""Pools that are kept in size, over a cluster in memory with a ReplicaSet, in virtual time."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import trio

from gateway import steps
from gateway.autoscale import HOLD_DOWN_S
from gateway.config import Settings
from gateway.model import Ending
from gateway.provider import PoolGone
from gateway.scaler import LOOK_EVERY_S, Scaler
from sandman import names
from sandman.errors import UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_pool import running, want


@contextlib.asynccontextmanager
async def scaled(cluster: FakeCluster, *, least: int | None = 2, most: int | None = 100, **more):
    async with running(cluster, Settings(cold_max=0)) as pool, trio.open_nursery() as nursery:
        bed = SimpleNamespace(pool=pool, is_leader=True, forecast={}, nursery=nursery, failed=0)
        cluster.pool(least=least, most=most, **more)
        cluster.replace()
        bed.scaler = Scaler(
            pool._roster, cluster, is_leader=lambda: bed.is_leader,
            forecast=lambda: bed.forecast,
        )  # fmt: skip
        nursery.start_soon(bed.scaler.run)
        nursery.start_soon(replica_set, cluster)
        yield bed
        nursery.cancel_scope.cancel()


async def replica_set(cluster: FakeCluster) -> None:
    while True:
        await trio.sleep(0.1)
        cluster.replace()


def free(cluster: FakeCluster) -> int:
    return sum(one.state == names.STATE_FREE for one in cluster.pods.values())


async def burst(bed, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(bed.pool.allocate, "acme", want(image=None), None)


async def test_the_least_is_kept_and_a_burst_is_served_and_then_let_go_of(autojump_clock):
    cluster = FakeCluster()
    async with scaled(cluster) as bed:
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.specs["root"].wanted == 2
        with trio.fail_after(20):
            await burst(bed, 40)
        assert max(cluster.scales) >= 30
        await trio.sleep(HOLD_DOWN_S / 2)
        assert free(cluster) >= 30
        await trio.sleep(HOLD_DOWN_S)
        assert (cluster.specs["root"].wanted, free(cluster)) == (2, 2)
        # No sandbox in use went for it.
        assert len(cluster.leased()) == 40


async def test_at_its_maximum_a_pool_is_not_refilled(autojump_clock):
    cluster = FakeCluster()
    async with scaled(cluster, least=5, most=12) as bed:
        await trio.sleep(3 * LOOK_EVERY_S)
        await burst(bed, 10)
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.specs["root"].wanted == 2
        assert len(cluster.pods) == 12
        for one in cluster.leased():
            cluster.remove(one.uid, Ending("released", "x"))
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.specs["root"].wanted >= 5


async def test_what_is_reserved_is_wanted(autojump_clock):
    cluster = FakeCluster()
    async with scaled(cluster) as bed:
        bed.forecast = {"root": 30, "other": 50}
        await trio.sleep(2 * LOOK_EVERY_S)
        assert cluster.specs["root"].wanted == 30


async def test_pools_without_both_numbers_are_left_alone(autojump_clock):
    for limits in ({"least": None}, {"most": None}, {"least": 9, "most": 3}):
        cluster = FakeCluster()
        async with scaled(cluster, **limits) as bed:
            bed.forecast = {"root": 50}
            await trio.sleep(HOLD_DOWN_S * 2)
            assert cluster.scales == []


async def test_an_open_breaker_and_a_replica_that_is_no_allocator_scale_nothing(autojump_clock):
    cluster = FakeCluster()
    # Stopped from the first event of it on: what is told of later may come after a look.
    async with scaled(cluster, stopped=True) as bed:
        bed.forecast = {"root": 50}
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.scales == []
        bed.is_leader = False
        cluster.pool(least=2, most=100)
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.scales == []
        bed.is_leader = True
        await trio.sleep(3 * LOOK_EVERY_S)
        assert cluster.scales == [50]


async def test_a_write_that_fails_is_tried_again(autojump_clock):
    cluster = FakeCluster()
    cluster.fail_scales = [UnreachableError("away")]
    async with scaled(cluster) as bed:
        bed.forecast = {"root": 50}
        await trio.sleep(4 * LOOK_EVERY_S)
        assert cluster.scales == [50]


async def test_a_watch_that_is_behind_causes_no_second_write(autojump_clock):
    cluster = FakeCluster()
    async with scaled(cluster) as bed:
        await trio.sleep(2 * LOOK_EVERY_S)
        # Written, and never told of: somebody set it back at once.
        real, told = cluster.scale, []

        async def scale(spec, replicas: int) -> None:
            told.append(replicas)

        cluster.scale = scale
        bed.forecast = {"root": 50}
        await trio.sleep(3.5)
        assert told == [50]
        cluster.scale = real
        await trio.sleep(4.0)
        assert cluster.scales == [2, 50]


async def test_a_pool_that_goes_away_is_forgotten(autojump_clock):
    cluster = FakeCluster()
    async with scaled(cluster) as bed:
        await trio.sleep(2 * LOOK_EVERY_S)
        assert len(bed.scaler._memory) == 1
        cluster.send.send_nowait(PoolGone("ns", "root"))
        await trio.sleep(2 * LOOK_EVERY_S)
        assert bed.scaler._memory == {}


async def test_the_steps_of_a_pool_are_done_for_requests_without(autojump_clock):
    cluster = FakeCluster()
    pools = steps.parse([{"exec": {"argv": ["pool"]}}])
    own = steps.parse([{"exec": {"argv": ["own"]}}])
    async with scaled(cluster, prepare=pools) as bed:
        await trio.sleep(2 * LOOK_EVERY_S)
        await bed.pool.allocate("acme", want(), None)
        await bed.pool.allocate("acme", want(prepare=own), None)
        assert [b"pool" in call[3] for call in cluster.calls] == [True, False]
