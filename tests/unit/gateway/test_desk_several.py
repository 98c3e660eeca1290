"""The desk: several sandboxes of one call, and gangs."""

from __future__ import annotations

import trio

from gateway.cases import LINGER_S
from gateway.desk import PROGRESS_S
from gateway.fulfilment import LOOKS_APART_S
from gateway.model import DEFAULT_SHARE, Ready
from gateway.pool import SETTLE_EVERY_S
from gateway.provider import RefusedError
from sandman.errors import (
    ImageNotFoundError,
    QuotaError,
    UnreachableError,
)
from tests.fakes.cluster import TASK, FakeCluster
from tests.unit.gateway.test_desk import NONE_MADE, at_rest, counter
from tests.unit.gateway.test_pool import settle, want

# --- several ---


async def test_each_is_told_as_soon_as_it_is_ready(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(image=TASK)
    async with counter(cluster) as one:
        begun, at = trio.current_time(), {}
        members = await one.desk.open("acme", want(count=3), None, DEFAULT_SHARE)

        async def tell(member, outcome) -> None:
            await trio.lowlevel.checkpoint()
            assert isinstance(outcome, Ready)
            at[outcome.instance.tier] = trio.current_time() - begun

        async def pause(count: int) -> None:
            raise AssertionError(count)

        assert await one.desk.follow(members, 60.0, tell, pause) == []
        assert at["warm"] < 0.1 < at["cold"]
        await settle()
        at_rest(one)


async def test_the_same_key_gives_the_same_ones_and_makes_what_is_missing(autojump_clock):
    cluster = FakeCluster()
    for _ in range(2):
        cluster.placeholder()
    async with counter(cluster, NONE_MADE) as one:
        told, left, _ = await one.group("k", count=3, wait_s=2.0)
        assert sorted(told) == [0, 1]
        [(member, stands)] = left
        assert (member.index, stands.place, stands.is_waiting) == (2, 1, True)
        cluster.placeholder()
        again, left, _ = await one.group("k", count=3, wait_s=2.0)
        assert (sorted(again), left) == ([0, 1, 2], [])
        for index, made in told.items():
            assert again[index].instance.id == made.instance.id
        assert len(cluster.leased()) == 3
        await settle()
        at_rest(one)


async def test_in_longer_silence_it_is_told_how_many_are_not_decided(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster, NONE_MADE) as one:
        _, left, pauses = await one.group(count=2, wait_s=2.5 * PROGRESS_S)
        assert (len(left), pauses) == (2, [2, 2])


async def test_one_that_fails_does_not_fail_the_others(autojump_clock):
    cluster = FakeCluster()
    cluster.fail_claims = [RefusedError(ImageNotFoundError("no such image"))]
    for _ in range(3):
        cluster.placeholder()
    async with counter(cluster, NONE_MADE) as one:
        told, _, _ = await one.group(count=3)
        kinds = sorted(type(outcome).__name__ for outcome in told.values())
        assert kinds == ["ImageNotFoundError", "Ready", "Ready"]


async def test_a_caller_that_goes_away_keeps_what_it_was_told_of(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(image=TASK)
    async with counter(cluster) as one:
        with trio.move_on_after(0.3):
            await one.group(count=3)
        await trio.sleep(1.0)
        assert [pod.tier for pod in cluster.leased()] == ["warm"]
        at_rest(one)


async def test_a_call_that_breaks_before_its_stream_began_is_given_up(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster) as one:
        await one.desk.open("acme", want(count=3), None, DEFAULT_SHARE)
        await trio.sleep(LINGER_S + 1.0)
        assert cluster.leased() == []
        at_rest(one)


async def test_a_sandbox_of_the_key_that_does_not_answer_is_an_error_of_its_own(autojump_clock):
    cluster = FakeCluster()
    async with counter(cluster) as one:
        told, _, _ = await one.group("k", count=2)
        await settle()
        cluster.up_at[told[0].instance.uid] = float("inf")
        again, _, _ = await one.group("k", count=2, wait_s=1.0)
        assert isinstance(again[1], Ready)
        assert isinstance(again[0], UnreachableError)


# --- gangs ---


async def test_a_gang_is_told_of_when_all_are_ready(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(image=TASK)
    async with counter(cluster) as one:
        told, left, _ = await one.group(count=3, gang=True, wait_s=0.3)
        assert (told, len(left)) == ({}, 3)
        await trio.sleep(LINGER_S + 1.0)
        assert cluster.leased() == []
        told, left, _ = await one.group("k", count=3, gang=True)
        assert (sorted(told), left) == ([0, 1, 2], [])
        again, _, _ = await one.group("k", count=3, gang=True, wait_s=0.0)
        ids = [{i: made.instance.id for i, made in found.items()} for found in (told, again)]
        assert ids[0] == ids[1]
        at_rest(one)


async def test_a_member_that_fails_releases_the_others(autojump_clock):
    cluster = FakeCluster()
    cluster.wanted = 3
    for _ in range(3):
        cluster.placeholder()
    cluster.fail_claims = [RefusedError(ImageNotFoundError("no such image"))]
    async with counter(cluster, NONE_MADE) as one:
        cluster.delay_before = 0.1
        told, _, _ = await one.group(count=3, gang=True)
        assert [type(outcome) for outcome in told.values()] == [ImageNotFoundError] * 3
        await trio.sleep(2 * SETTLE_EVERY_S + LOOKS_APART_S)
        assert cluster.leased() == []
        at_rest(one)


async def test_one_ready_before_another_fails_is_released_with_it(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder(image=TASK)
    create = cluster.create

    async def refuse(*arguments):
        await trio.sleep(1.0)
        raise RefusedError(QuotaError("the namespace is full"))

    cluster.create = refuse
    async with counter(cluster) as one:
        told, _, _ = await one.group(count=2, gang=True)
        assert [type(outcome) for outcome in told.values()] == [QuotaError] * 2
        assert cluster.leased() == []
        cluster.create = create
        told, _, _ = await one.group(count=2, gang=True)
        assert len(told) == 2


async def test_two_gangs_that_do_not_fit_together_follow_each_other(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    served = []
    cluster.wanted = 4
    async with counter(cluster, NONE_MADE) as one:

        async def gang() -> None:
            told, left, _ = await one.group(count=3, gang=True, wait_s=30.0)
            served.append((trio.current_time(), len(told), len(left)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gang)
            nursery.start_soon(gang)
            await trio.sleep(5.0)
            assert len(cluster.leased()) == 3
            for _ in range(2):
                cluster.placeholder()
        assert [counts for _, *counts in sorted(served)] == [[3, 0], [3, 0]]
        assert len(cluster.leased()) == 6
