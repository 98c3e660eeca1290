"""What a gateway before left half prepared, and its key: asked for again, by several at once."""

from __future__ import annotations

import contextlib

import pytest
import trio

from gateway.model import Ready
from gateway.wants import Queued
from sandman import names
from sandman.errors import UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_desk import NONE_MADE, at_rest, counter
from tests.unit.gateway.test_pool import running, settle, want
from tests.unit.gateway.test_preparation import STEPS


async def half_prepared(count: int) -> FakeCluster:
    """A cluster in which a gateway died while it prepared the sandbox of key `k`, and so many placeholders."""
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.call_s = 20.0
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(pool.allocate, "acme", want(prepare=STEPS), "k")
        await trio.sleep(5.0)
        cluster.fail_discards = [UnreachableError("killed: nothing of it cleans up")] * 3
        nursery.cancel_scope.cancel()
    cluster.fail_discards = []
    cluster.call_s = 1.0
    cluster.tell_anew()
    for _ in range(count):
        cluster.placeholder()
    return cluster


def leased(cluster: FakeCluster) -> list[str]:
    return [uid for uid, one in cluster.pods.items() if one.state == names.STATE_LEASED]


@pytest.mark.parametrize("pause", [0.0, 0.5, 1.5])
async def test_all_who_ask_by_its_key_get_the_one_that_is_made_anew(autojump_clock, pause):
    cluster = await half_prepared(3)
    [half] = leased(cluster)
    made: list[Ready | Queued] = []
    async with counter(cluster) as one:

        async def ask() -> None:
            made.append(await one.ask("k", prepare=STEPS))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
                await trio.sleep(pause)
        assert len(made) == 3
        assert {answer.instance.uid for answer in made} == set(leased(cluster))
        assert len(leased(cluster)) == 1
        assert half not in cluster.pods
        await settle()
        at_rest(one)


async def test_it_waits_like_any_other_request_and_is_asked_for_again(autojump_clock):
    cluster = await half_prepared(0)
    async with counter(cluster, NONE_MADE) as one:
        queued = await one.ask("k", prepare=STEPS, wait_s=0.5)
        assert isinstance(queued, Queued)
        assert leased(cluster) == []
        cluster.placeholder()
        made = await one.ask("k", prepare=STEPS, wait_s=60.0)
        assert isinstance(made, Ready)
        assert leased(cluster) == [made.instance.uid]


async def test_one_of_several_that_was_half_prepared_is_made_anew(autojump_clock):
    cluster = FakeCluster()
    for _ in range(2):
        cluster.placeholder()
    cluster.call_s = 20.0
    async with counter(cluster) as one:
        with trio.move_on_after(5.0):
            cluster.fail_discards = [UnreachableError("killed")] * 9
            await one.group("k", count=2, prepare=STEPS)
        with contextlib.suppress(BaseException):
            one.desk._nursery.cancel_scope.cancel()
    cluster.fail_discards = []
    cluster.call_s = 1.0
    assert len(leased(cluster)) == 2
    cluster.tell_anew()
    for _ in range(2):
        cluster.placeholder()
    async with counter(cluster) as one:
        told, left, _ = await one.group("k", count=2, prepare=STEPS, wait_s=60.0)
        assert left == []
        assert {made.instance.uid for made in told.values()} == set(leased(cluster))
        assert len(leased(cluster)) == 2
        await settle()
        at_rest(one)
