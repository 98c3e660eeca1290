"""Leases as `python -m gateway` puts them together: two replicas, an API server over real sockets, the real
daemon and the real client."""

from __future__ import annotations

import contextlib
import json

import pytest
import structlog.testing
import trio

from gateway import sweeper
from sandman import names
from tests.flow.test_whole import Bed, answers, bed, fast_clock, has_free, until

__all__ = ["bed", "fast_clock"]
# httpx leaves the generator of a request that is given up to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


def leased(bed: Bed) -> list[dict]:
    return [
        pod
        for pod in bed.server.all("pods")
        if pod["metadata"]["labels"][names.LABEL_STATE] == names.STATE_LEASED
    ]


def run_leases(bed: Bed) -> list[dict]:
    every = bed.server.all("leases")
    return [one for one in every if one["metadata"]["name"] != names.ALLOCATOR_LEASE]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(sweeper, "EVERY_S", 1.0)


async def test_heartbeats_through_another_replica_keep_a_run_and_silence_ends_it(
    bed, fast_clock, quick
):
    bed.give_keys()
    async with bed.server.links(2) as links, contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(bed.replica(links[0], "gw-1"))
        await has_free(one)
        await until(lambda: one.gateway.election.is_leader)
        two = await stack.enter_async_context(bed.replica(links[1], "gw-2"))
        await until(lambda: two.gateway.election.address and not two.gateway.not_ready())
        lines = stack.enter_context(structlog.testing.capture_logs())
        made = await answers(one.client, run="r1", lease={"ttl_s": 6, "run": True})
        assert made.status_code == 201, made.text
        for _ in range(4):
            await trio.sleep(3.0)
            beat = await two.client.post("/v1/runs/r1/heartbeat", json={"ttl_s": 6})
            assert beat.json() == {"run": "r1", "sandboxes": 1}
        assert len(leased(bed)) == 1
        [lease] = run_leases(bed)
        assert lease["spec"]["leaseDurationSeconds"] == 6
        beats = [write for write in bed.server.writes if write[2] == lease["metadata"]["name"]]
        assert [method for method, *_ in beats] == ["POST", *["PATCH"] * 3]
        silent = trio.current_time()
        await until(lambda: leased(bed) == [])
        assert trio.current_time() - silent >= 2.0
        for replica in (one, two):
            gone = await replica.client.get(f"/v1/sandboxes/{made.json()['id']}")
            assert (gone.status_code, gone.json()["reason"]) == (410, "expired")
        shown = (await two.client.get("/v1/sandboxes?state=ended&run=r1")).json()["sandboxes"]
        assert [one["ended"]["reason"] for one in shown] == ["expired"]
        told = [(line["action"], line.get("reason")) for line in lines if line["event"] == "audit"]
        assert told == [("allocation", None), ("reclaim", "expired")]
        text = (await one.client.get("/metrics")).text
        assert 'sandman_ended_total{cause="caller",reason="expired"} 1.0' in text


async def test_a_call_through_another_replica_keeps_an_own_lease_and_the_daemon_says_so(
    bed, fast_clock, quick
):
    bed.give_keys()
    async with bed.server.links(2) as links, contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(bed.replica(links[0], "gw-1"))
        await has_free(one)
        await until(lambda: one.gateway.election.is_leader)
        two = await stack.enter_async_context(bed.replica(links[1], "gw-2"))
        await until(lambda: two.gateway.election.address and not two.gateway.not_ready())
        made = (await answers(one.client, lease={"ttl_s": 6})).json()
        path = f"/v1/sandboxes/{made['id']}"
        for _ in range(4):
            await trio.sleep(2.5)
            ran = await two.client.post(f"{path}/exec", json={"argv": ["true"]})
            assert ran.status_code == 200, ran.text
        [pod] = leased(bed)
        kept = pod["metadata"]["annotations"]
        assert json.loads(kept[names.ANNOTATION_LEASE])["ttl_s"] == 6.0
        # Half of it is 3 s: it was written, and not at each call.
        writes = [write for write in bed.server.writes if write[:2] == ("PATCH", "pods")]
        assert names.ANNOTATION_RENEWED in kept
        assert len(writes) <= 1 + 4
        await until(lambda: leased(bed) == [])


async def test_a_claim_whose_gateway_died_before_the_handshake_is_given_up(
    bed, fast_clock, quick, monkeypatch
):
    monkeypatch.setattr("gateway.orphans.HANDOVER_S", 3.0)
    bed.give_keys()
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await has_free(one)

        def claimed(pod) -> None:
            pod["metadata"]["labels"][names.LABEL_STATE] = names.STATE_LEASED
            pod["metadata"]["labels"][names.LABEL_TENANT] = "acme"
            pod["metadata"]["annotations"][names.ANNOTATION_CLAIM] = '{"id":"lost"}'
            pod["metadata"]["annotations"][names.ANNOTATION_LEASE] = '{"expires_at":9e9}'

        bed.server.change("pods", "p1", claimed)
        await until(lambda: bed.server.all("pods") == [])
