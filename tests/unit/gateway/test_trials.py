"""Bursts for images that nobody has seen, and images that fail, through the pool in virtual time."""

from __future__ import annotations

import dataclasses

import pytest
import trio

from gateway import images, views
from gateway.config import Settings
from gateway.model import Ending, Tier
from gateway.provider import NodeSeen, PoolSeen, RefusedError
from gateway.references import parse_mirrors
from sandman.errors import (
    BadRequestError,
    CapacityError,
    DiedError,
    ImageDeniedError,
    ImageNotFoundError,
    ImagePullError,
    SandmanError,
)
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want

NEW = "registry.example/new:1"


async def burst(pool, count: int, **changes) -> list[object]:
    """What so many calls at once come to."""
    ends: list[object] = []

    async def one() -> None:
        try:
            ends.append(await pool.allocate("acme", want(**changes), None))
        except SandmanError as error:
            ends.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return ends


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("image_not_found", ImageNotFoundError), ("image_denied", ImageDeniedError)],
)
async def test_a_burst_for_an_image_that_is_not_there_burns_one_placeholder(
    autojump_clock, reason, kind
):
    cluster = FakeCluster()
    for _ in range(8):
        cluster.placeholder()
    cluster.bad_images[NEW] = reason
    async with running(cluster) as pool:
        begun = trio.current_time()
        ends = await burst(pool, 200, image=NEW)
        assert [type(one) for one in ends] == [kind] * 200
        assert trio.current_time() - begun < 1
        assert len(cluster.pulls) == 1
        assert len({id(one) for one in ends}) == 200, "each has its own"
        assert sum(one.sandbox is not None for one in ends) <= 1
        # And at once, without a placeholder, for as long as it is remembered.
        later = trio.current_time()
        assert isinstance((await burst(pool, 1, image=NEW))[0], kind)
        assert trio.current_time() == later
        assert len(cluster.pulls) == 1
        # Another image is served all the while, and this one once it was pushed and the time is over.
        await pool.allocate("acme", want(), None)
        del cluster.bad_images[NEW]
        await trio.sleep(images.PERMANENT_S)
        assert (await pool.allocate("acme", want(image=NEW), None)).instance.image == NEW


async def test_a_burst_without_placeholders_makes_one_pod_and_no_more(autojump_clock):
    cluster = FakeCluster()
    cluster.bad_images[NEW] = "image_not_found"
    async with running(cluster) as pool:
        ends = await burst(pool, 50, image=NEW)
        assert {type(one) for one in ends} == {ImageNotFoundError}
        assert [kind for kind, _ in cluster.writes].count("create") == 1


async def test_a_burst_for_a_new_image_that_runs_is_served_after_its_canary(autojump_clock):
    cluster = FakeCluster()
    for _ in range(8):
        cluster.placeholder()
    async with running(cluster) as pool:
        ends = await burst(pool, 8, image=NEW)
        assert [one.instance.tier for one in ends] == [Tier.SWAP] * 8
        assert len({one.instance.uid for one in ends}) == 8
        queued = sorted(one.timings.queued_ms for one in ends)
        assert queued[0] < 100 <= queued[1]


async def test_a_throttled_pull_goes_to_another_node_and_then_succeeds(autojump_clock):
    cluster = FakeCluster()
    for node in ("n1", "n1", "n2", "n3"):
        cluster.placeholder(node=node)
    cluster.bad_images[NEW], cluster.fail_pulls[NEW] = "image_pull", 2
    async with running(cluster) as pool:
        ends = await burst(pool, 2, image=NEW)
        assert [one.instance.image for one in ends] == [NEW, NEW]
        assert sorted(node for _, node in cluster.pulls[:3]) == ["n1", "n2", "n3"]
        assert len(cluster.pulls) == 4


async def test_one_that_is_throttled_for_long_is_retryable_for_all_and_left_alone(autojump_clock):
    cluster = FakeCluster()
    for _ in range(8):
        cluster.placeholder()
    cluster.bad_images[NEW] = "image_pull"
    async with running(cluster) as pool:
        ends = await burst(pool, 100, image=NEW)
        assert {type(one) for one in ends} == {ImagePullError}
        assert all(one.retryable and one.facts["pull"] == "throttled" for one in ends)
        assert {one.retry_after for one in ends} == {images.TROUBLE_S}
        assert len(cluster.pulls) == images.TRIES
        assert cluster.leased() == []
        [told] = await burst(pool, 1, image=NEW)
        assert 0 < told.retry_after <= images.TROUBLE_S
        assert len(cluster.pulls) == images.TRIES
        await trio.sleep(images.TROUBLE_S)
        await burst(pool, 1, image=NEW)
        assert len(cluster.pulls) == 2 * images.TRIES


async def test_who_waits_but_briefly_hears_of_the_image_and_not_of_the_time(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    cluster.bad_images[NEW] = "image_pull"
    async with running(cluster) as pool:
        with pytest.raises(ImagePullError):
            await pool.allocate("acme", want(image=NEW, wait_s=0.5), None)


async def test_one_whose_first_process_dies_is_not_started_two_hundred_times(autojump_clock):
    class Dying(FakeCluster):
        async def explain(self, instance):
            await trio.lowlevel.checkpoint()

    cluster = Dying()
    for _ in range(8):
        cluster.placeholder()
    cluster.bad_images[NEW] = "image_not_found"
    async with running(cluster) as pool:
        ends = await burst(pool, 200, image=NEW)
        assert {type(one) for one in ends} == {DiedError}
        assert len(cluster.pulls) == 1
        assert sum("first sandbox tried" in one.detail for one in ends) == 199


async def test_a_canary_that_is_cancelled_makes_room_for_the_next(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    async with running(cluster) as pool:
        cluster.delay_after = 5.0
        made = []

        async def call() -> None:
            made.append(await pool.allocate("acme", want(image=NEW), None))

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def first() -> None:
                with scope:
                    await pool.allocate("acme", want(image=NEW), None)

            nursery.start_soon(first)
            await trio.sleep(0.01)
            nursery.start_soon(call)
            await trio.sleep(0.01)
            assert [kind for kind, _ in cluster.writes] == ["claim"]
            scope.cancel()
        assert len(made) == 1
        assert len(cluster.leased()) == 1


async def test_the_api_servers_refusal_of_an_image_is_told_to_all(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    refusal = RefusedError(BadRequestError("the API server refuses the image: x", field="image"))
    cluster.fail_claims = [refusal]
    async with running(cluster) as pool:
        ends = await burst(pool, 20, image=NEW)
        assert {type(one) for one in ends} == {BadRequestError}
        assert cluster.pulls == []


async def test_the_attempts_of_one_call_are_limited_whatever_they_fail_of(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    cluster.bad_images[NEW] = "image_pull"
    async with running(cluster, Settings(claim_attempts=1)) as pool:
        with pytest.raises(ImagePullError):
            await pool.allocate("acme", want(image=NEW), None)
        assert len(cluster.pulls) == 1


async def test_the_digest_is_told_when_the_node_keeps_what_it_has(autojump_clock):
    digest = "registry.example/task@sha256:1"
    for keeps, told in ((True, digest), (False, None)):
        cluster = FakeCluster()
        seen = cluster.placeholder(pool="other", image=TASK)
        cluster.placeholder()
        async with running(cluster) as pool:
            cluster._put(dataclasses.replace(seen, image_digest=digest))
            spec = pool._roster.pools["root"]
            cluster.send.send_nowait(PoolSeen(dataclasses.replace(spec, keeps_images=keeps)))
            await settle()
            made = await pool.allocate("acme", want(), None)
            assert made.instance.tier == Tier.SWAP
            assert made.instance.image_digest == told


async def test_an_image_is_pulled_from_its_mirror_and_the_pools_own_is_not(autojump_clock):
    cluster = FakeCluster()
    cluster.known_images.append("mirror.example/hub/library/debian:12")
    for _ in range(2):
        cluster.placeholder()
    rules = parse_mirrors(["docker.io=mirror.example/hub", "registry.example=mirror.example/r"])
    async with running(cluster, Settings(image_mirrors=rules)) as pool:
        made = await pool.allocate("acme", want(image="debian:12"), None)
        assert made.instance.image == "mirror.example/hub/library/debian:12"
        shown = views.sandbox(made.instance)
        assert (shown["image"], shown["image_pulled"]) == ("debian:12", made.instance.image)
        made = await pool.allocate("acme", want(image=BASE), None)
        assert (made.instance.tier, made.instance.image) == (Tier.WARM, BASE)
        odd = dataclasses.replace(made.instance, request={"image": 7})
        assert views.sandbox(odd)["image"] == BASE


async def test_another_tenants_pool_does_not_exist(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(pool="own")
    async with running(cluster) as pool:
        cluster.pool("own", tenants=frozenset({"acme"}))
        cluster.pool("nobodys", tenants=frozenset())
        await settle()
        await pool.allocate("acme", want(pool="own"), None)
        for name in ("own", "nobodys", "never was"):
            with pytest.raises(BadRequestError, match=r"there are: root$") as caught:
                await pool.allocate("zeta", want(pool=name), None)
            assert caught.value.field == "pool"


async def test_when_a_node_goes_what_it_held_is_not_known_any_more(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        assert pool._allocation.images.holders(TASK)
        cluster.send.send_nowait(NodeSeen("n1", closed=False, gone=True))
        await settle()
        assert not pool._allocation.images.holders(TASK)


async def test_a_lost_canary_stays_the_canary(autojump_clock):
    cluster = FakeCluster()
    first = cluster.placeholder()
    for _ in range(3):
        cluster.placeholder()
    cluster.bad_images[NEW] = "image_not_found"
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        ends = []

        async def calls() -> None:
            ends.extend(await burst(pool, 10, image=NEW))

        cluster.delay_before = 0.5
        nursery.start_soon(calls)
        await trio.sleep(0.1)
        cluster.remove(first.uid, Ending("evicted", "the node put the pod out"))
        await trio.sleep(5)
        assert {type(one) for one in ends} == {ImageNotFoundError}
        assert len(cluster.pulls) == 1


async def test_losing_every_placeholder_is_still_capacity(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster, Settings(cold_max=0)) as pool:
        with pytest.raises(CapacityError):
            await pool.allocate("acme", want(image=NEW, wait_s=1.0), None)
