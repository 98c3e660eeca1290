"""Queue and calls on the real cluster: batches, gangs, requests that outlive a call, limits of a tenant."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from gateway.cases import LINGER_S
from gateway.model import Share
from sandman.errors import QuotaError
from tests.cluster.tenants import client_of, known, tenant

if TYPE_CHECKING:
    import sandman as sdk


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    sandman.wait_nothing_leased(60)


async def test_a_batch_comes_as_each_is_ready_and_all_are_released(sandman):
    async with sandman.client() as client:
        async with client.sandboxes(8, image=sandman.image("busybox"), wait_s=50) as batch:
            ids = []
            async for box in batch:
                ids.append(box.id)
                assert (await box.exec(["true"])).ok
        assert len(set(ids)) == 8
        assert await client.list() == []


async def test_a_gang_is_had_as_a_whole_twice_over(sandman):
    """Two at once: one after the other, and none of them holds a half."""
    image, done = sandman.image("busybox"), []

    async def gang(client: sdk.Client) -> None:
        async with client.sandboxes(4, gang=True, image=image, wait_s=50) as batch:
            done.append(len({box.id async for box in batch}))

    async with sandman.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(gang, client)
        nursery.start_soon(gang, client)
    assert done == [4, 4]


async def test_a_request_outlives_its_call_and_a_sandbox_that_nobody_fetches_goes(sandman):
    made = sandman.installation
    body = {"image": sandman.image("busybox"), "wait_s": 0}
    headers = {"authorization": f"Bearer {made.token}", "idempotency-key": f"q-{time.time()}"}
    extensions = {"sni_hostname": made.server_name}
    trust = ssl.create_default_context(cafile=made.ca)
    async with httpx.AsyncClient(base_url=made.url, verify=trust, timeout=60) as client:
        for fetch in (True, False):
            queued = await client.post(
                "/v1/sandboxes", json=body, headers=headers, extensions=extensions
            )
            assert queued.status_code == 202, queued.text
            if fetch:
                ready = await client.get(
                    queued.headers["location"],
                    params={"wait_s": 50},
                    headers=headers,
                    extensions=extensions,
                )
                assert ready.status_code == 201, ready.text
                await client.delete("/v1/requests", headers=headers, extensions=extensions)
                sandman.wait_nothing_leased(20)
    with trio.fail_after(20):
        while not sandman.leased():
            await trio.sleep(0.2)
    await trio.sleep(LINGER_S)
    sandman.wait_nothing_leased(20)


async def test_limits_of_a_tenant_are_told_at_once(sandman):
    image = sandman.image("busybox")
    with tenant(sandman, "few", Share(concurrent=2, rate=50.0)) as token:
        async with client_of(sandman, token) as client:
            await known(client)
            begun = time.monotonic()
            async with client.sandboxes(3, gang=True, image=image) as batch:
                with pytest.raises(QuotaError, match="2 sandboxes at once") as caught:
                    await anext(batch)
            assert (caught.value.retryable, caught.value.facts["asked"]) == (False, 3)
            async with client.sandboxes(2, image=image, wait_s=50) as batch:
                assert len({box.id async for box in batch}) == 2
                with pytest.raises(QuotaError) as caught:
                    await client.create(image=image, wait_s=1)
                assert caught.value.facts["used"] == 2
            assert time.monotonic() - begun < 50
    with tenant(sandman, "slow", Share(rate=0.1)) as token:
        async with client_of(sandman, token) as client:
            await known(client)
            async with client.sandbox(image=image):
                with pytest.raises(QuotaError) as caught:
                    await client.create(image=image, wait_s=1)
                assert 5 < (caught.value.retry_after or 0) <= 10
