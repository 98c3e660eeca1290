"""A sandbox has what was asked for: in place, in another placeholder, or in a new pod; never less."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import trio

from gateway import resizing, views
from gateway.model import Amounts, Bounds, Instance, Ready, SandboxRequest, Tier
from gateway.provider import RefusedError
from sandman.errors import (
    BadRequestError,
    CapacityError,
    ConflictError,
    InternalError,
    UnreachableError,
)
from tests.fakes.cluster import RESIZE_S, TASK, FakeCluster, make_pool

if TYPE_CHECKING:
    from gateway.pool import Pool

GI = 1024**3
BOUNDS = Bounds(Amounts(250, GI // 2), Amounts(2000, 4 * GI))
GROWN = Bounds(Amounts(500, GI), Amounts(4000, 8 * GI))
MORE = Amounts(4000, 8 * GI)
LESS = Amounts(1000, GI)


def request(resources: Amounts = MORE, **changes) -> SandboxRequest:
    values = {"image": TASK, "pool": "root", "max_s": 60.0, "wait_s": 60.0}
    return SandboxRequest(**(values | changes), resources=resources)


@pytest.fixture
async def bed():
    cluster = FakeCluster()
    pool = make_pool(cluster)
    async with trio.open_nursery() as nursery:
        cluster.nursery = nursery
        nursery.start_soon(pool.run, cluster.receive)
        cluster.pool(bounds=BOUNDS, resize=True)
        yield cluster, pool
        nursery.cancel_scope.cancel()


async def placeholders(cluster: FakeCluster, *nodes: str) -> None:
    for node in nodes:
        cluster.placeholder(node=node, bounds=BOUNDS)
    await trio.testing.wait_all_tasks_blocked()


def writes(cluster: FakeCluster) -> list[str]:
    return [kind for kind, _ in cluster.writes]


def whole(pool: Pool) -> None:
    """Nothing is left in hand."""
    counts = pool._allocation.statistics()
    assert (counts.claiming, counts.cold, counts.waiting) == (0, 0, 0)
    assert not pool._fulfilment._unsettled
    assert not pool._fulfilment.in_hand


async def test_a_resize_is_one_more_write_and_what_is_handed_over_has_it(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1")
    begun = trio.current_time()
    made = await pool.allocate("acme", request(), None)
    assert writes(cluster) == ["claim", "resize"]
    assert made.instance.tier == Tier.SWAP.value
    assert made.instance.actual == GROWN
    assert trio.current_time() - begun == pytest.approx(RESIZE_S, abs=0.1)
    shown = views.ready(made, "t")["resources"]
    assert shown == {"cpu": "4", "memory": "8Gi"}
    whole(pool)


async def test_what_the_pool_gives_anyway_costs_no_write(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1", "n1")
    for asked in (Amounts(2000), Amounts()):
        made = await pool.allocate("acme", request(asked), None)
        assert views.ready(made, "t")["resources"] == {"cpu": "2", "memory": "4Gi"}
    assert writes(cluster) == ["claim", "claim"]


async def test_a_pool_that_allows_no_resize_gives_what_it_has_or_says_so(autojump_clock, bed):
    cluster, pool = bed
    cluster.pool(bounds=BOUNDS)
    await placeholders(cluster, "n1")
    with pytest.raises(BadRequestError, match="gives cpu 2, memory 4Gi at most") as caught:
        await pool.allocate("acme", request(), None)
    assert caught.value.field == "resources"
    made = await pool.allocate("acme", request(LESS), None)
    assert views.ready(made, "t")["resources"] == {"cpu": "2", "memory": "4Gi"}
    assert writes(cluster) == ["claim"]


async def test_a_new_pod_has_it_from_the_start(autojump_clock, bed):
    cluster, pool = bed
    await trio.testing.wait_all_tasks_blocked()
    made = await pool.allocate("acme", request(), None)
    assert (made.instance.tier, made.instance.bounds) == (Tier.COLD.value, GROWN)
    assert writes(cluster) == ["create"]


@pytest.mark.parametrize("said", sorted(resizing.GIVEN_UP))
async def test_where_a_node_has_no_room_another_placeholder_is_tried(autojump_clock, bed, said):
    cluster, pool = bed
    cluster.resizes = {"full": said}
    await placeholders(cluster, "full", "n2")
    made = await pool.allocate("acme", request(), None)
    assert made.instance.node == "n2"
    assert writes(cluster) == ["claim", "resize", "delete", "claim", "resize"]
    assert len(cluster.leased()) == 1
    whole(pool)


async def test_when_two_have_failed_a_new_pod_is_made_whatever_else_is_free(autojump_clock, bed):
    cluster, pool = bed
    cluster.resizes = {"full": "Infeasible"}
    await placeholders(cluster, "full", "full", "full")
    made = await pool.allocate("acme", request(), None)
    assert made.instance.tier == Tier.COLD.value
    assert writes(cluster) == ["claim", "resize", "delete"] * 2 + ["create"]
    assert pool._allocation.statistics().free == 1
    whole(pool)


@pytest.mark.parametrize(
    "error", [RefusedError(InternalError("forbidden")), UnreachableError("no answer")], ids=str
)
async def test_a_resize_that_the_server_refuses_leads_to_a_new_pod_at_once(
    autojump_clock, bed, error
):
    cluster, pool = bed
    cluster.fail_resizes = [error]
    await placeholders(cluster, "n1", "n1")
    made = await pool.allocate("acme", request(), None)
    assert made.instance.tier == Tier.COLD.value
    assert writes(cluster) == ["claim", "delete", "create"]
    whole(pool)


async def test_a_node_that_is_too_small_by_the_servers_word_leaves_the_other_placeholders(
    autojump_clock, bed
):
    cluster, pool = bed
    word = "node didn't have enough allocatable resources: cpu, requested: 4000, allocatable: 2000"
    cluster.fail_resizes = [RefusedError(InternalError(word))]
    await placeholders(cluster, "small", "n2")
    made = await pool.allocate("acme", request(), None)
    assert (made.instance.tier, made.instance.node) == (Tier.SWAP.value, "n2")
    assert writes(cluster) == ["claim", "delete", "claim", "resize"]
    whole(pool)


@pytest.mark.parametrize("how", ["refused", "deferred", "never"])
async def test_what_cannot_be_made_smaller_is_handed_over_as_it_is(autojump_clock, bed, how):
    cluster, pool = bed
    if how == "refused":
        cluster.fail_resizes = [RefusedError(InternalError("no"))]
    cluster.resizes = {"n1": {"deferred": "Deferred", "never": "In due time"}.get(how, "")}
    await placeholders(cluster, "n1")
    made = await pool.allocate("acme", request(LESS), None)
    assert made.instance.tier == Tier.SWAP.value
    assert views.ready(made, "t")["resources"] == {"cpu": "2", "memory": "4Gi"}
    whole(pool)


async def test_what_is_not_done_in_time_is_not_waited_for_for_ever(autojump_clock, bed):
    cluster, pool = bed
    cluster.resizes = {"n1": "In due time"}
    await placeholders(cluster, "n1")
    begun = trio.current_time()
    made = await pool.allocate("acme", request(), None)
    assert made.instance.tier == Tier.COLD.value
    assert trio.current_time() - begun < resizing.ACTUATED_S + 2


async def test_a_caller_who_goes_away_leaves_nothing_whatever_was_being_done(autojump_clock, bed):
    cluster, pool = bed
    cluster.delay_before = cluster.delay_after = 0.05
    for moment in range(1, 12):
        await placeholders(cluster, "n1")
        with trio.move_on_after(moment * 0.1):
            await pool.allocate("acme", request(), None)
        await trio.sleep(20)
        whole(pool)
        for one in cluster.leased():
            # Those that were served before their time was up.
            assert one.actual == GROWN
            await cluster.delete(one)


# --- the same key again ---


async def test_the_same_key_finishes_the_resize_that_another_gateway_began(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1")
    made = await pool.allocate("acme", request(), "k")
    # As if the first one had died before the resize.
    cluster._put(dataclasses.replace(cluster.pods[made.instance.uid], bounds=BOUNDS, actual=BOUNDS))
    await trio.testing.wait_all_tasks_blocked()
    again = await pool.allocate("acme", request(), "k")
    assert (again.instance.uid, again.instance.actual) == (made.instance.uid, GROWN)
    with pytest.raises(ConflictError):
        await pool.allocate("acme", request(LESS), "k")


async def test_one_that_cannot_be_finished_makes_way_for_another(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1")
    made = await pool.allocate("acme", request(), "k")
    cluster._put(dataclasses.replace(cluster.pods[made.instance.uid], bounds=BOUNDS, actual=BOUNDS))
    await trio.testing.wait_all_tasks_blocked()
    cluster.fail_resizes = [RefusedError(InternalError("no"))]
    with pytest.raises(CapacityError, match="could not be resized"):
        await pool.allocate("acme", request(), "k")
    assert cluster.leased() == []
    again: Ready = await pool.allocate("acme", request(), "k")
    assert again.instance.uid != made.instance.uid
    assert again.instance.bounds == GROWN


async def test_another_class_of_nodes_is_another_request(autojump_clock, bed):
    cluster, pool = bed
    cluster.pool(bounds=BOUNDS, node_class="big")
    await placeholders(cluster, "n1")
    await pool.allocate("acme", request(Amounts(), node_class="big"), "k")
    with pytest.raises(ConflictError):
        await pool.allocate("acme", request(Amounts()), "k")


async def test_who_asked_for_nothing_has_the_same_fingerprint_as_ever(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1")
    made = await pool.allocate("acme", request(Amounts(), names_pool=False), "k")
    named = await pool.allocate("acme", request(Amounts(), names_pool=True), "k")
    assert named.instance.uid == made.instance.uid
    assert "resources" not in made.instance.request


# --- what counts as done ---


@pytest.mark.parametrize(
    ("actual", "wanted", "done"),
    [
        (None, GROWN, False),
        (BOUNDS, GROWN, False),
        (GROWN, GROWN, True),
        # The kernel keeps cpu requests in coarser steps.
        (Bounds(Amounts(499, GI), GROWN.limits), GROWN, True),
        (Bounds(Amounts(100)), Bounds(Amounts(200)), False),
        (Bounds(Amounts(200)), Bounds(Amounts(200)), True),
    ],
)
def test_done(actual, wanted, done):
    one = Instance(namespace="n", name="p", uid="u", version="1", pool="r", state="leased")
    assert resizing.is_done(dataclasses.replace(one, actual=actual), wanted) is done


async def test_a_pool_that_went_away_meanwhile_gives_what_it_has_or_nothing(autojump_clock, bed):
    cluster, pool = bed
    await placeholders(cluster, "n1")
    [pod] = cluster.pods.values()
    pool._roster._specs.clear()
    assert await pool._fulfilment.resizing.begin(pod, LESS) is None
    with pytest.raises(resizing.NotResizedError):
        await pool._fulfilment.resizing.begin(pod, MORE)
