"""The client's batches against the real routes, through a replica that hands them on."""

from __future__ import annotations

import anyio
import pytest
import trio

from sandman.client import Client
from sandman.errors import CapacityError, QuotaError
from tests.flow.conftest import SERVER_NAME
from tests.flow.test_gateway import follower, replica
from tests.flow.test_requests import full_bed, more, until

__all__ = ["full_bed"]


def client_of(bed, url: str, **options) -> Client:
    return Client(
        url, bed.credentials.texts["acme"], ca=bed.trust, server_name=SERVER_NAME, **options
    )


@pytest.mark.parametrize("through", ["allocator", "replica"])
async def test_a_batch_is_had_waited_for_and_released(full_bed, through):
    bed = full_bed
    more(bed, 2)
    async with replica(bed, follower(bed)) as other:
        url = bed.url if through == "allocator" else str(other.base_url).rstrip("/")
        async with client_of(bed, url) as client:
            async with client.sandboxes(3, run="r") as batch:
                first = [(await anext(batch)).id, (await anext(batch)).id]
                more(bed)
                ids = {*first, (await anext(batch)).id}
                assert await anext(batch, None) is None
                assert len(ids) == 3
                assert {pod.id for pod in bed.cluster.leased()} > ids
            assert len(bed.cluster.leased()) == 1
            await until(lambda: not bed.desk._cases)


async def test_a_gang_that_waits_in_vain_holds_nothing(full_bed):
    bed = full_bed
    more(bed, 2)
    async with client_of(bed, bed.url) as client:
        async with client.sandboxes(3, gang=True, wait_s=0.5) as batch:
            with pytest.raises(CapacityError):
                await anext(batch)
            assert len(batch.errors) == 3
        await until(lambda: not bed.desk._cases)
        assert len(bed.cluster.leased()) == 1
        async with client.sandboxes(4, gang=True) as batch:
            with pytest.raises(QuotaError, match="no gang of 4"):
                await anext(batch)


async def test_left_in_the_middle_everything_is_given_up(full_bed):
    bed = full_bed
    more(bed)
    async with client_of(bed, bed.url) as client:
        with trio.move_on_after(10.0) as limit:
            async with client.sandboxes(3) as batch:
                await anext(batch)
                limit.cancel()
                await anext(batch)
        await until(lambda: not bed.desk._cases)
        assert len(bed.cluster.leased()) == 1


async def test_a_client_that_waits_in_vain_gives_its_place_up(full_bed):
    bed, told = full_bed, []
    async with client_of(bed, bed.url, on_retry=told.append) as client:
        with pytest.raises(CapacityError, match="number 1 in the queue"):
            await client.create(wait_s=0.3)
        await until(lambda: not bed.desk._cases)
        with anyio.move_on_after(0.3):
            await client.create()
        await until(lambda: not bed.desk._cases)
    assert bed.pool._allocation.statistics().waiting == 0
