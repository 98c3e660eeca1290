"""Calls about reservations while the allocator reads what is kept: whichever comes first."""

from __future__ import annotations

import pytest
import trio

from gateway import reserving
from gateway.reservations import LOOK_EVERY_S, READ_EVERY_S
from sandman.errors import NotFoundError, QuotaError
from tests.fakes.cluster import FakeCluster
from tests.fakes.store import FakeStore
from tests.unit.gateway.test_reservations import asked, placeholders, reserved, reserving_over


class SlowStore(FakeStore):
    """Answers a reading with what was kept when it was asked, or when it answers."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__()
        self.is_late = is_late
        self.reading = trio.Event()
        self.go_on = trio.Event()

    async def list(self):
        before = list(self.kept.values())
        self.reading.set()
        await self.go_on.wait()
        return list(self.kept.values()) if self.is_late else before


@pytest.mark.parametrize("is_late", [False, True])
async def test_one_that_is_ended_during_a_reading_is_gone(autojump_clock, is_late):
    cluster = FakeCluster()
    cluster.store = store = SlowStore(is_late=is_late)
    store.go_on.set()
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(count=1), None)
        store.go_on, store.reading = trio.Event(), trio.Event()
        await store.reading.wait()
        await bed.all.delete("acme", made.id)
        store.go_on.set()
        placeholders(cluster, 1)
        await trio.sleep(LOOK_EVERY_S / 2)
        with pytest.raises(NotFoundError):
            bed.all.get("acme", made.id)
        await trio.sleep(3.5 * LOOK_EVERY_S)
        assert reserved(cluster) == 0
        assert bed.all.of_tenant("acme") == []


async def test_one_that_is_ended_while_another_ends_takes_no_placeholder(autojump_clock):
    cluster = FakeCluster()
    async with reserving_over(cluster) as bed:
        over = await bed.all.create(asked(count=1, until=trio.current_time() + 5.5), None)
        other = await bed.all.create(asked(count=1), None)
        gone, delete = trio.Event(), cluster.store.delete

        async def slowly(reservation) -> None:
            if reservation.id == over.id:
                placeholders(cluster, 2)
                await gone.wait()
            await delete(reservation)

        cluster.store.delete = slowly
        await trio.sleep(7.5)
        await bed.all.delete("acme", other.id)
        gone.set()
        for _ in range(100):
            await trio.sleep(0.05)
            assert reserved(cluster) == 0


async def test_creations_at_once_come_no_further_than_the_limit(autojump_clock):
    cluster = FakeCluster()
    refused = []
    async with reserving_over(cluster) as bed:

        async def create() -> None:
            try:
                await bed.all.create(asked(), None)
            except QuotaError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(reserving.TENANT_MAX + 10):
                nursery.start_soon(create)
        assert len(cluster.store.kept) == reserving.TENANT_MAX
        assert len(refused) == 10
        await trio.sleep(READ_EVERY_S * 1.5)
        with pytest.raises(QuotaError):
            await bed.all.create(asked(), None)


async def test_a_creation_that_fails_counts_no_more(autojump_clock):
    cluster = FakeCluster()
    async with reserving_over(cluster) as bed:
        for _ in range(reserving.TENANT_MAX):
            cluster.store.faults = [QuotaError("the namespace is full")]
            with pytest.raises(QuotaError):
                await bed.all.create(asked(), None)
        assert (await bed.all.create(asked(), None)).count == 3
