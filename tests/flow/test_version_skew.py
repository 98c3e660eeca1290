"""Daemons of other versions behind today's gateway: one minor version apart works, both ways; more is refused by name.

The daemons are real processes. From the gateway's side a newer daemon is what an older gateway would see of ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import trio

from gateway import versions
from gateway.model import Ending
from sandman import grants, wire
from sandman.errors import BadRequestError, NotFoundError
from tests.flow.conftest import KEYS, LocalDaemon, RealDaemonCluster, made_bed
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.flow.conftest import Bed

WORKS = ["0.0.7", "0.1.0", "0.1.9", "0.2.0"]


@contextlib.asynccontextmanager
async def skewed(version: str, **settings) -> AsyncIterator[Bed]:
    port = free_port()
    digest = grants.token_digest(grants.daemon_token(KEYS["k1"], "ns", "nonce-1"))
    daemon = LocalDaemon(port, digest, "tests.fakes.skewed", version)
    daemon.port = port
    try:
        async with made_bed(RealDaemonCluster(daemon), daemon, **settings) as bed:
            yield bed
    finally:
        daemon.stop()


async def told(bed: Bed, line: str) -> None:
    """Wait until metrics have this line."""
    with trio.fail_after(10):
        while line not in (await bed.client.get("/metrics")).text:
            await trio.sleep(0.02)


@pytest.mark.parametrize("version", WORKS)
async def test_one_minor_version_apart_all_of_it_works(version):
    async with skewed(version) as bed:
        await bed.vetted(1)
        made = await bed.allocate(image="registry.example/other:1", lease={"ttl_s": 120})
        base, who = f"/v1/sandboxes/{made['id']}", bed.as_("acme")
        info = (await bed.client.get(f"{base}/info", headers=who)).json()
        assert info["version"] == version
        answer = await bed.client.post(f"{base}/exec", json={"argv": ["echo", "x"]}, headers=who)
        result = wire.ExecResult.from_json(answer.json())
        assert (result.exit_code, result.stdout) == (0, b"x\n")
        put = await bed.client.put(
            f"{base}/files?path=/tmp/skew-{bed.daemon.port}", content=b"y", headers=who
        )
        assert put.status_code == 200
        got = await bed.client.get(f"{base}/files?path=/tmp/skew-{bed.daemon.port}", headers=who)
        assert got.content == b"y"
        # A daemon without leases cannot be told, which costs nobody the renewal.
        renewed = await bed.client.post(f"{base}/renew", headers=who)
        assert renewed.status_code == 200
        gone = await bed.client.delete(
            f"{base}/files?path=/tmp/skew-{bed.daemon.port}", headers=who
        )
        assert gone.is_success
        assert (await bed.client.delete(base, headers=who)).status_code == 204


@pytest.mark.parametrize("version", ["0.3.0", "1.1.0", "next"])
async def test_further_apart_no_placeholder_is_given(version):
    async with skewed(version, vetted=False) as bed:
        await told(bed, 'sandman_pool_skewed{pool="root"} 1.0')
        assert "sandman_free_vetted 0.0" in (await bed.client.get("/metrics")).text
        # So that nobody asks it again, or is about to.
        [uid] = bed.cluster.pods
        bed.cluster.remove(uid, Ending("deleted", "somebody deleted it"))
        await told(bed, 'sandman_pool_skewed{pool="root"} 0.0')
        with trio.fail_after(10):
            while any(entry.users for entry in bed.upstream._open.values()):
                await trio.sleep(0.02)


async def test_a_gateway_that_was_upgraded_too_far_still_serves_what_is_in_use(monkeypatch):
    async with skewed("0.1.0") as bed:
        made = await bed.allocate()
        monkeypatch.setattr(versions, "OWN", "0.3.0")
        bed.proxy._boots.clear()
        answer = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/exec", json={"argv": ["true"]}, headers=bed.as_("acme")
        )
        assert wire.ExecResult.from_json(answer.json()).exit_code == 0


@pytest.mark.parametrize(("version", "can"), [("0.0.7", False), ("0.1.0", True), ("0.2.0", True)])
async def test_the_older_daemon_is_one_without_leases(version, can):
    """What is switched is switched: else the tests above would show nothing."""
    async with skewed(version) as bed:
        await bed.vetted(1)
        [instance] = bed.cluster.pods.values()
        claim = wire.Claim("c1", lease=wire.LeaseTerms(60.0))
        if can:
            await bed.upstream.claim(instance, claim)
            await bed.upstream.renew(instance, 60.0, asked=True)
        else:
            with pytest.raises(BadRequestError) as caught:
                await bed.upstream.claim(instance, claim)
            assert caught.value.field == "lease"
            await bed.upstream.claim(instance, claim._replace(lease=None))
            with pytest.raises(NotFoundError):
                await bed.upstream.renew(instance, 60.0, asked=True)
        info = await bed.upstream.info(instance)
        assert info.claim_id == "c1"
        assert (info.renewed_s is not None) is can
