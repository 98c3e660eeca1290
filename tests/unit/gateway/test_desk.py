"""Requests whose callers come and go, in virtual time: places kept, sandboxes kept, nothing left behind."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from gateway import views
from gateway.cases import LINGER_S, Case
from gateway.config import Settings
from gateway.desk import Desk
from gateway.model import DEFAULT_SHARE, Ready, Share
from gateway.wants import Queued
from sandman.errors import (
    BadRequestError,
    CapacityError,
    ConflictError,
    ImageNotFoundError,
    ImagePullError,
    InternalError,
    NotFoundError,
    QuotaError,
    UnreachableError,
)
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want
from tests.unit.gateway.test_pool_trouble import is_whole

if TYPE_CHECKING:
    from gateway.pool import Pool

NONE_MADE = Settings(cold_max=0)


class Counter:
    """A desk and its pool, and shorter ways to ask."""

    def __init__(self, desk: Desk, pool: Pool) -> None:
        self.desk = desk
        self.pool = pool
        self.is_allocator = True

    async def ask(self, key: str | None = None, tenant: str = "acme", **changes) -> Ready | Queued:
        return await self.desk.allocate(tenant, want(**changes), key, DEFAULT_SHARE)

    async def group(self, key: str | None = None, share: Share = DEFAULT_SHARE, **changes):
        """All that a stream tells: by index what came of each, and those that are not decided."""
        request = want(**changes)
        told: dict[int, object] = {}
        pauses: list[int] = []

        async def tell(member, outcome) -> None:
            await trio.lowlevel.checkpoint()
            told[member.index] = outcome

        async def pause(count: int) -> None:
            await trio.lowlevel.checkpoint()
            pauses.append(count)

        members = await self.desk.open("acme", request, key, share)
        left = await self.desk.follow(members, request.wait_s, tell, pause)
        return told, left, pauses


@contextlib.asynccontextmanager
async def counter(cluster: FakeCluster, limits: Settings | None = None):
    async with running(cluster, limits) as pool, trio.open_nursery() as nursery:
        one = Counter(None, pool)  # type: ignore[arg-type]
        one.desk = Desk(pool, lambda: one.is_allocator)
        await nursery.start(one.desk.run)
        yield one
        nursery.cancel_scope.cancel()


def at_rest(one: Counter) -> None:
    assert repr(one.desk) == "<Desk cases=0>"
    is_whole(one.pool)


# --- one sandbox ---


async def test_what_is_ready_in_time_is_handed_over(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        made = await one.ask()
        assert isinstance(made, Ready)
        await settle()
        at_rest(one)


async def test_who_waited_in_vain_is_told_its_place_and_keeps_it(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one:
        first = await one.ask(wait_s=5.0)
        second = await one.ask(wait_s=0.0, tenant="zeta")
        assert (first.is_waiting, first.place, second.place) == (True, 1, 2)
        cluster.placeholder(image=TASK)
        made = await one.desk.ask("acme", first.id, 5.0)
        assert isinstance(made, Ready)
        still = await one.desk.ask("zeta", second.id, 0.0)
        assert (still.id, still.place) == (second.id, 1)


async def test_who_waits_while_a_failed_pull_is_tried_again_is_told_of_it(autojump_clock):
    cluster = FakeCluster()
    for _ in range(3):
        cluster.placeholder()
    cluster.bad_images[TASK], cluster.fail_pulls[TASK] = "image_pull", 2
    async with counter(cluster) as one, trio.open_nursery() as nursery:
        nursery.start_soon(partial(one.ask, "k", image=TASK, wait_s=60.0))
        await settle()
        queued = await one.ask("k", image=TASK, wait_s=0.6)
        assert isinstance(queued, Queued)
        assert isinstance(queued.trouble, ImagePullError)
        told = views.queued(queued)["trouble"]
        assert (told["reason"], told["facts"]["pull"]) == ("image_pull", "throttled")
        made = await one.desk.ask("acme", queued.id, 30.0)
        assert isinstance(made, Ready)


async def test_a_request_is_its_tenants_alone_and_is_forgotten_once_it_was_answered(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one:
        queued = await one.ask(wait_s=0.0)
        for tenant, request in (("zeta", queued.id), ("acme", "nope")):
            with pytest.raises(NotFoundError, match="no request"):
                await one.desk.ask(tenant, request, 0.0)
        cluster.placeholder()
        assert isinstance(await one.desk.ask("acme", queued.id, 5.0), Ready)
        await settle()
        with pytest.raises(NotFoundError, match="repeat the call"):
            await one.desk.ask("acme", queued.id, 5.0)
        at_rest(one)


async def test_a_sandbox_that_comes_ready_meanwhile_is_kept_for_its_asker_for_a_while(
    autojump_clock,
):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        queued = await one.ask("k", wait_s=0.1)
        assert (queued.is_waiting, queued.place) == (False, None)
        await trio.sleep(LINGER_S - 1.0)
        assert len(cluster.leased()) == 1
        made = await one.ask("k", wait_s=0.0)
        assert isinstance(made, Ready)
        await trio.sleep(LINGER_S + 1.0)
        assert len(cluster.leased()) == 1
        again = await one.ask("k", wait_s=0.0)
        assert again.instance.id == made.instance.id
        at_rest(one)


async def test_nobody_comes_back_and_nothing_is_left(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        queued = await one.ask("k", wait_s=0.1)
        await trio.sleep(LINGER_S + 1.0)
        assert cluster.leased() == []
        at_rest(one)
        with pytest.raises(NotFoundError):
            await one.desk.ask("acme", queued.id, 1.0)
        anew = await one.ask("k")
        assert isinstance(anew, Ready)


async def test_a_ticket_that_nobody_asks_for_gives_up_its_place(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one:
        await one.ask(wait_s=0.0)
        assert one.pool._allocation.statistics().waiting == 1
        await trio.sleep(LINGER_S + 1.0)
        at_rest(one)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_caller_that_goes_away_takes_along_what_only_it_could_ask_for(autojump_clock, key):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        with trio.move_on_after(0.1):
            await one.ask(key)
        await trio.sleep(1.0)
        assert len(cluster.leased()) == (0 if key is None else 1)
        if key is not None:
            assert isinstance(await one.ask(key), Ready)
        await settle()
        at_rest(one)


async def test_of_two_callers_with_one_key_both_get_the_same(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.placeholder()
    made = []
    async with counter(cluster) as one:

        async def call() -> None:
            made.append(await one.ask("k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
        with pytest.raises(ConflictError):
            await one.ask("k", env=(("A", "2"),))
    assert made[0].instance.id == made[1].instance.id
    assert len(cluster.pods) == 2


async def test_the_key_of_a_request_that_waits_is_good_for_that_request_alone(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one:
        await one.ask("k", wait_s=0.0)
        for other in ({"env": (("A", "2"),)}, {"count": 2}, {"count": 2, "gang": True}):
            with pytest.raises(ConflictError):
                await one.group("k", wait_s=0.0, **other)
        await one.group("g", count=2, wait_s=0.0)
        for other in ({}, {"count": 3}, {"count": 2, "gang": True}):
            with pytest.raises(ConflictError):
                await one.group("g", wait_s=0.0, **other)


async def test_an_error_waits_for_its_asker_too(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.bad_images[TASK] = "image_not_found"
    async with counter(cluster) as one:
        queued = await one.ask("k", wait_s=0.0)
        await trio.sleep(5.0)
        with pytest.raises(ImageNotFoundError):
            await one.desk.ask("acme", queued.id, 0.0)
        await settle()
        at_rest(one)


async def test_a_fault_of_ours_is_told_and_ends_nothing_else(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.fail_claims = [ZeroDivisionError("a slip")]
    async with counter(cluster) as one:
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await one.ask()
        cluster.placeholder()
        assert isinstance(await one.ask(), Ready)


async def test_quota_queue_and_pool_are_told_at_once_whatever_wait_s(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, Settings(cold_max=0, queue_max=2)) as one:
        with pytest.raises(BadRequestError):
            await one.ask(pool="nope", wait_s=0.0)
        with pytest.raises(QuotaError):
            await one.group(share=Share(concurrent=1), count=2, wait_s=0.0)
        await one.ask(wait_s=0.0)
        with pytest.raises(CapacityError, match="full"):
            await one.group(count=2, wait_s=0.0)
        await one.ask(wait_s=0.0)
        with pytest.raises(CapacityError, match="full"):
            await one.ask(wait_s=0.0)


async def test_a_replica_that_is_the_allocator_no_more_keeps_nothing_for_later(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.ask, "held")
        await one.ask("k", wait_s=0.0)
        one.is_allocator = False
        await trio.sleep(1.5)
        assert repr(one.desk) == "<Desk cases=1>"
        nursery.cancel_scope.cancel()


async def test_before_it_runs_and_after_nothing_is_taken_in(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool:
        with pytest.raises(UnreachableError):
            await Desk(pool, lambda: True).allocate("acme", want(), None, DEFAULT_SHARE)
        is_whole(pool)
    async with counter(FakeCluster()) as one:
        desk = one.desk
    with pytest.raises(UnreachableError):
        await desk.allocate("acme", want(), None, DEFAULT_SHARE)


async def test_when_the_program_ends_what_was_kept_is_deleted(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        await one.ask("k", wait_s=0.1)
        await trio.sleep(1.0)
    assert cluster.leased() == []


async def test_the_wait_that_is_told_follows_place_and_pace(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one, trio.open_nursery() as nursery:
        queued = [await one.ask(wait_s=0.0, image=BASE) for _ in range(9)]
        assert [one.retry_after for one in queued] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        for _ in range(4):
            await trio.sleep(0.5)
            cluster.placeholder()
        await settle()
        last = await one.desk.ask("acme", queued[-1].id, 0.0)
        # Four were served in two seconds; it is the fifth now.
        assert (last.place, last.retry_after) == (5, pytest.approx(2.5, rel=0.01))
        nursery.cancel_scope.cancel()


def test_a_case_shows_what_became_of_each_once():
    async def main() -> None:
        await trio.lowlevel.checkpoint()
        case = Case("acme", {"a": None, "b": None}, can_return=True)  # type: ignore[dict-item]
        assert not case.is_ending
        for one in ("a", "b"):
            assert not case.told.is_set()
            with pytest.raises(NotFoundError):
                case.take(one)
        assert case.told.is_set()

    trio.run(main)
