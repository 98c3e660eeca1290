"""Whether network policies are enforced at all, as placeholders find it; over a cluster in memory, in virtual time."""

from __future__ import annotations

import contextlib

import pytest
import trio

from gateway.enforcement import AGAIN_S, EVERY_S, FIRST_S, EnforcementWatch
from gateway.profiles import Enforcement
from sandman import names
from sandman.errors import NetworkNotAppliedError, UnreachableError
from tests.unit.gateway.test_networks import API, bedded


@contextlib.asynccontextmanager
async def watched(**changes):
    async with bedded(**changes) as bed:
        watch = EnforcementWatch(bed.pool._roster, bed.networks, ("ns",))
        bed.cluster.nursery.start_soon(watch.run)
        yield bed


async def test_a_cluster_that_enforces_is_found_to(autojump_clock):
    async with watched() as bed:
        await trio.sleep(FIRST_S + 1)
        assert bed.networks.enforced == {"ns": True}
        looks = len(bed.cluster.probed)
        await trio.sleep(EVERY_S * 3)
        assert len(bed.cluster.probed) == looks + 3


async def test_one_that_does_not_is_believed_the_second_time(autojump_clock):
    async with watched() as bed:
        bed.cluster.leaks = {API}
        await trio.sleep(FIRST_S + 1)
        assert bed.networks.enforced == {}
        await trio.sleep(AGAIN_S)
        assert bed.networks.enforced == {"ns": False}
        bed.cluster.leaks = set()
        await trio.sleep(AGAIN_S)
        assert bed.networks.enforced == {"ns": True}


async def test_a_pod_that_was_open_for_a_moment_is_no_cluster(autojump_clock):
    async with watched() as bed:
        bed.cluster.leaks = {API}
        await trio.sleep(FIRST_S + 1)
        bed.cluster.leaks = set()
        await trio.sleep(AGAIN_S + EVERY_S)
        assert bed.networks.enforced == {"ns": True}


async def test_where_there_is_nobody_to_ask_nobody_knows(autojump_clock):
    async with watched(free=0) as bed:
        await trio.sleep(EVERY_S)
        assert bed.networks.enforced == {}
        bed.cluster.placeholder()
        await trio.sleep(2 * FIRST_S)
        assert bed.networks.enforced == {"ns": True}


async def test_a_look_that_fails_says_nothing(autojump_clock):
    async with watched(free=1) as bed:
        bed.cluster.fail_profiles = [UnreachableError("the API server is away")]
        await trio.sleep(FIRST_S + 1)
        assert bed.networks.enforced == {}
        bed.cluster.silent.update(bed.cluster.pods)
        await trio.sleep(FIRST_S + 1)
        assert bed.networks.enforced == {}


async def test_no_sandbox_where_enforcement_is_a_condition_and_is_not_met(autojump_clock):
    async with watched(network_enforcement=Enforcement.REQUIRE) as bed:
        await bed.allocate()
        bed.cluster.leaks = {API}
        bed.cluster.placeholder()
        await trio.sleep(FIRST_S + AGAIN_S + 1)
        with pytest.raises(NetworkNotAppliedError, match="not enforced in ns"):
            await bed.allocate()
        bed.cluster.leaks = set()
        await trio.sleep(AGAIN_S)
        await bed.allocate()


async def test_else_it_is_only_told(autojump_clock):
    async with watched() as bed:
        bed.cluster.leaks = {API}
        await trio.sleep(FIRST_S + AGAIN_S + 1)
        assert bed.networks.enforced == {"ns": False}
        await bed.allocate()


async def test_one_in_use_or_open_is_not_looked_from(autojump_clock):
    async with watched(free=1) as bed:
        made = await bed.allocate(network="open")
        await trio.sleep(EVERY_S)
        assert bed.cluster.probed == []
        assert made.instance.state == names.STATE_LEASED
