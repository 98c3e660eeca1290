"""How many sandboxes a tenant may have at once: counted once each, whatever they are just doing."""

from __future__ import annotations

import pytest
import trio

from gateway.model import Ending, Share
from sandman.errors import QuotaError
from tests.fakes.cluster import BASE, FakeCluster
from tests.unit.gateway.test_pool import running, settle, want

TWO = Share(concurrent=2)


async def test_a_tenant_with_all_it_may_have_is_refused_at_once_and_others_are_not(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    async with running(cluster) as pool:
        for _ in range(2):
            await pool.allocate("acme", want(), None, share=TWO)
        begun = trio.current_time()
        with pytest.raises(QuotaError, match="2 sandboxes at once") as caught:
            await pool.allocate("acme", want(), None, share=TWO)
        assert trio.current_time() == begun
        assert caught.value.facts["limit"] == caught.value.facts["used"] == 2
        assert caught.value.retry_after
        await pool.allocate("zeta", want(), None, share=TWO)
        await pool.allocate("acme", want(), None, share=Share(concurrent=3))


async def test_of_many_at_once_as_many_are_served_as_may_be(autojump_clock):
    cluster = FakeCluster()
    for _ in range(6):
        cluster.placeholder()
    made, refused = [], []

    async def one(pool) -> None:
        try:
            made.append(await pool.allocate("acme", want(), None, share=Share(concurrent=4)))
        except QuotaError as error:
            refused.append(error)

    async with running(cluster) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(one, pool)
            # Claimed, and not yet ready: counted as asked for, and not a second time as a pod.
            await trio.sleep(0.1)
            assert len(cluster.leased()) == 2
            for _ in range(4):
                nursery.start_soon(one, pool)
        assert (len(made), len(refused)) == (4, 2)


async def test_what_was_released_or_has_ended_makes_room(autojump_clock):
    cluster = FakeCluster()
    for _ in range(4):
        cluster.placeholder()
    async with running(cluster) as pool:
        first = await pool.allocate("acme", want(image=BASE), None, share=TWO)
        second = await pool.allocate("acme", want(image=BASE), None, share=TWO)
        cluster.end(first.instance.uid, Ending("oom", "it used too much"))
        await settle()
        await pool.allocate("acme", want(image=BASE), None, share=TWO)
        cluster.remove(second.instance.uid, Ending("released", "its caller let go"))
        await settle()
        await pool.allocate("acme", want(image=BASE), None, share=TWO)
        with pytest.raises(QuotaError):
            await pool.allocate("acme", want(image=BASE), None, share=TWO)


async def test_the_same_key_again_is_no_second_sandbox(autojump_clock):
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        only = Share(concurrent=1)
        first = await pool.allocate("acme", want(), "k", share=only)
        again = await pool.allocate("acme", want(), "k", share=only)
        assert again.instance.id == first.instance.id
