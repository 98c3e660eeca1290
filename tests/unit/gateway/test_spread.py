"""A pool of one name in several namespaces is one pool for callers, with the room of all of them."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from gateway import spread, views
from gateway.model import PoolSpec, SandboxRequest, Tier
from gateway.provider import PoolGone, PoolSeen
from sandman.errors import QuotaError
from tests.fakes.cluster import TASK, FakeCluster, make_pool


def spec(
    namespace: str, *, wanted: int = 1, most: int | None = None, swap: bool = True
) -> PoolSpec:
    return PoolSpec(namespace, "root", "base", swap, wanted, most)


def names(specs) -> list[str]:
    return [one.namespace for one in specs]


def request(**changes) -> SandboxRequest:
    values = {"image": TASK, "pool": "root", "max_s": 60.0, "wait_s": 5.0}
    return SandboxRequest(**(values | changes))


# --- decisions ---


def test_callers_see_the_sum_of_all_namespaces():
    whole = spread.merged([spec("b", wanted=3, most=10), spec("a", wanted=2, most=5)])
    assert (whole.namespace, whole.wanted, whole.most) == ("a", 5, 15)
    assert spread.merged([spec("a", most=5), spec("b")]).most is None


@pytest.mark.parametrize(
    ("limits", "pods", "full", "order"),
    [
        ({}, {}, [], ["a", "b"]),
        ({}, {("a", "root"): 1}, [], ["b", "a"]),
        # A namespace's other pools take its room too.
        ({}, {("a", "root"): 1, ("b", "other"): 2}, [], ["a", "b"]),
        # A pool's own maximum may be nearer than the namespace's.
        ({"a": 5}, {("b", "root"): 100}, [], ["b", "a"]),
        ({}, {("a", "root"): 1}, ["b"], ["a", "b"]),
        ({}, {("a", "root"): 1}, ["a", "b"], ["b", "a"]),
    ],
)
def test_a_new_pod_goes_where_most_room_is(limits, pods, full, order):
    specs = [spec("a", most=limits.get("a")), spec("b", most=limits.get("b"))]
    assert names(spread.places(specs, Counter(pods), full)) == order


# --- the pool over them ---


async def test_placeholders_of_every_namespace_are_claimed(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    for namespace in ("a", "b"):
        cluster.pool(namespace=namespace)
        cluster.placeholder(namespace=namespace)
    await trio.testing.wait_all_tasks_blocked()
    made = [await pool.allocate("acme", request(), None) for _ in range(2)]
    assert {one.instance.namespace for one in made} == {"a", "b"}
    assert {one.instance.tier for one in made} == {Tier.SWAP.value}
    shown = views.pool(pool._roster.pools["root"], pool._roster.registry.all())
    assert (shown["leased"], shown["wanted"]) == (2, 2)


async def test_new_pods_are_spread_and_a_full_namespace_leaves_the_others(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.quotas = {"a": 1, "b": 3}
    for namespace in ("a", "b"):
        cluster.pool(namespace=namespace)
    await trio.testing.wait_all_tasks_blocked()
    made = [await pool.allocate("acme", request(), None) for _ in range(4)]
    assert [one.instance.namespace for one in made] == ["a", "b", "b", "b"]
    with pytest.raises(QuotaError, match="exceeded quota"):
        await pool.allocate("acme", request(), None)
    assert len(cluster.leased()) == 4
    assert pool._allocation.statistics().cold == 0
    # What is released makes room again.
    await cluster.delete(made[0].instance)
    await trio.sleep(spread.FULL_S)
    assert (await pool.allocate("acme", request(), None)).instance.namespace == "a"


async def test_each_namespace_says_whether_its_placeholders_may_be_swapped(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.pool(namespace="a", swap=False)
    cluster.pool(namespace="b")
    fixed = cluster.placeholder(namespace="a")
    cluster.placeholder(namespace="b")
    await trio.testing.wait_all_tasks_blocked()
    slots = pool._allocation._slots
    assert slots[fixed.uid].swap is False
    cluster.send.send_nowait(PoolSeen(PoolSpec("b", "root", "x", False, 1, None)))
    await trio.testing.wait_all_tasks_blocked()
    assert [one.swap for one in slots.values()] == [False, False]


async def test_a_pool_that_goes_in_one_namespace_stays_in_the_other(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    for namespace in ("a", "b"):
        cluster.pool(namespace=namespace)
    cluster.send.send_nowait(PoolGone("a", "root"))
    await trio.testing.wait_all_tasks_blocked()
    assert names(pool._roster.places("root")) == ["b"]
    assert pool._roster.places("none") == []
    made = await pool.allocate("acme", request(), None)
    assert made.instance.namespace == "b"
