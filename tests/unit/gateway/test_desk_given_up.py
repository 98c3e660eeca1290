"""Requests that their callers give up, and who asks for them meanwhile."""

from __future__ import annotations

import pytest
import trio

from gateway import cases
from gateway.cases import LINGER_S
from gateway.model import Ready
from gateway.wants import key_label
from sandman.errors import (
    NotFoundError,
)
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_desk import NONE_MADE, at_rest, counter
from tests.unit.gateway.test_pool import settle


async def test_a_request_is_given_up_by_its_caller(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        queued = await one.ask("k", wait_s=0.1)
        await one.desk.drop("zeta", [queued.id])
        assert len(cluster.leased()) == 1
        await one.desk.drop("acme", [queued.id, "unknown"])
        assert cluster.leased() == []
        at_rest(one)


async def test_a_call_that_its_own_giving_up_has_overtaken_makes_nothing_that_stays(autojump_clock):
    """A caller that goes away says so on another connection, which may be the faster one."""
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        await one.desk.drop("acme", [key_label("acme", "k")])
        with trio.move_on_after(0.1):
            await one.ask("k")
        await trio.sleep(1.0)
        assert cluster.leased() == []
        with trio.move_on_after(0.1):
            await one.group("k", count=2, wait_s=60.0)
        await trio.sleep(1.0)
        at_rest(one)


async def test_who_uses_the_key_of_what_was_given_up_is_served(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with counter(cluster) as one:
        label = key_label("acme", "k")
        await one.desk.drop("acme", [label])
        queued = await one.ask("k", wait_s=0.1)
        # It was told where it stands, so that it is there.
        await trio.sleep(LINGER_S / 2)
        assert isinstance(await one.ask("k"), Ready)
        await one.desk.drop("acme", [label])
        await trio.sleep(LINGER_S + 1.0)
        cluster.placeholder()
        with trio.move_on_after(0.1):
            await one.ask("k2")
        await trio.sleep(1.0)
        assert queued.id == label
        assert len(cluster.leased()) == 2


async def test_what_was_given_up_is_not_remembered_for_long_nor_without_end(
    autojump_clock, monkeypatch
):
    monkeypatch.setattr(cases, "DROPPED_MAX", 3)
    dropped = cases.Dropped()
    for number in range(4):
        dropped.add("acme", f"r{number}")
    assert [dropped.has("acme", f"r{n}") for n in range(4)] == [False, True, True, True]
    assert not dropped.has("zeta", "r3")
    await trio.sleep(LINGER_S)
    assert not dropped.has("acme", "r3")
    dropped.add("acme", "r4")
    assert len(dropped._until) == 1


async def test_who_asks_while_it_is_given_up_hears_so(autojump_clock):
    cluster = FakeCluster()
    heard = []
    async with counter(cluster, NONE_MADE) as one, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(NotFoundError, match="given up"):
                await one.ask("k")
            heard.append("gone")

        nursery.start_soon(call)
        await settle()
        [request] = one.desk._cases
        await one.desk.drop("acme", [request])
        nursery.cancel_scope.deadline = trio.current_time() + 1.0
    assert heard == ["gone"]


async def test_a_call_that_comes_while_its_case_is_given_up_waits_and_begins_anew(autojump_clock):
    """Else it would be given the sandbox that is being deleted."""
    cluster = FakeCluster()
    cluster.placeholder()
    cluster.placeholder()
    async with counter(cluster) as one:
        queued = await one.ask("k", wait_s=0.1)
        await trio.sleep(1.0)
        [doomed] = cluster.leased()
        one.desk._cases[queued.id].scope.cancel()
        made = await one.ask("k")
        assert made.instance.uid != doomed.uid
        assert [pod.uid for pod in cluster.leased()] == [made.instance.uid]
