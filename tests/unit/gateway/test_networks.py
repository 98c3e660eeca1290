"""Egress profiles of sandboxes: asked for, refused, written, probed; over a cluster in memory, in virtual time."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio

from gateway import steps
from gateway.config import Settings
from gateway.model import Ending, SandboxRequest, Share
from gateway.networks import KNOWN_S
from sandman.errors import (
    DeletedError,
    NetworkDeniedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
    OomError,
)
from sandman.probes import Target
from tests.fakes.cluster import BASE, FakeCluster, make_pool
from tests.unit.gateway.test_profiles import policy

CANARY = Target("10.0.0.1", 443)
API = Target("10.96.0.1", 443)


class Bed:
    def __init__(self, **changes) -> None:
        self.cluster = FakeCluster()
        self.cluster.policies["ns"] = [policy("open")]
        self.cluster.opened["open"] = {CANARY}
        self.pool = make_pool(self.cluster, Settings(sandbox_namespaces=("ns",), **changes))
        self.networks = self.pool.networks
        self.networks.closed = {API: "the API server"}
        self.registry = self.pool._roster.registry

    async def allocate(self, share: Share | None = None, **changes):
        values = {"image": BASE, "pool": "root", "max_s": 600.0, "wait_s": 60.0}
        wanted = SandboxRequest(**(values | changes))
        return await self.pool.allocate("acme", wanted, None, share=share or Share())


@contextlib.asynccontextmanager
async def bedded(*, free: int = 2, networks=frozenset({"open"}), network="none", **changes):
    bed = Bed(**changes)
    for _ in range(free):
        bed.cluster.placeholder()
    bed.cluster.pool(networks=networks, network=network)
    bed.cluster.synced()
    async with trio.open_nursery() as nursery:
        bed.cluster.nursery = nursery
        nursery.start_soon(bed.pool.run, bed.cluster.receive)
        await trio.testing.wait_all_tasks_blocked()
        yield bed
        nursery.cancel_scope.cancel()


# --- with the allocation ---


async def test_nobody_who_asks_for_nothing_gets_a_network_or_pays_for_it(autojump_clock):
    async with bedded() as bed:
        made = await bed.allocate()
        assert made.instance.network == "none"
        assert (bed.cluster.profile_lists, bed.cluster.probed) == (0, [])


async def test_a_profile_is_written_by_the_one_write_of_the_claim(autojump_clock):
    async with bedded() as bed:
        made = await bed.allocate(network="open")
        assert made.instance.network == "open"
        assert [what for what, _ in bed.cluster.writes] == ["claim"]
        assert bed.cluster.probed == []


async def test_a_new_pod_has_it_from_the_start(autojump_clock):
    async with bedded(free=0, cold_max=1) as bed:
        made = await bed.allocate(network="open")
        assert (made.instance.tier, made.instance.network) == ("cold", "open")


async def test_a_pools_own_profile_is_had_by_naming_none(autojump_clock):
    async with bedded(networks=frozenset(), network="open") as bed:
        assert (await bed.allocate()).instance.network == "open"
        assert (await bed.allocate(network="none")).instance.network == "none"


async def test_what_the_pool_or_the_key_does_not_let_be_had(autojump_clock):
    async with bedded(networks=frozenset()) as bed:
        with pytest.raises(NetworkDeniedError, match="it lets: none"):
            await bed.allocate(network="open")
    async with bedded() as bed:
        with pytest.raises(NetworkDeniedError, match="this API key may use: none"):
            await bed.allocate(Share(networks=()), network="open")
        assert bed.cluster.writes == []
    # Nor by naming none, from a pool that has it for everybody.
    async with bedded(network="open") as bed:
        with pytest.raises(NetworkDeniedError, match="API key"):
            await bed.allocate(Share(networks=("model",)))
        assert (await bed.allocate(Share(networks=()), network="none")).instance.network == "none"


async def test_who_waits_for_it_gets_it_when_it_is_in_force(autojump_clock):
    async with bedded() as bed:
        bed.cluster.opened["open"] = set()

        async def plugin() -> None:
            await trio.sleep(3.0)
            bed.cluster.opened["open"] = {CANARY}

        bed.cluster.nursery.start_soon(plugin)
        begun = trio.current_time()
        made = await bed.allocate(network="open", network_wait=True)
        assert made.instance.network == "open"
        assert 3.0 <= trio.current_time() - begun < 3.5
        # The other placeholder is no other sandbox of anybody's, but its daemon must be out of reach.
        [_, targets] = bed.cluster.probed[-1]
        [daemon] = set(targets) - {CANARY, API}
        assert (daemon.port, daemon.address) != (21763, made.instance.address)
        assert daemon.port == 21763


async def test_also_who_is_to_have_none(autojump_clock):
    async with bedded() as bed:
        await bed.allocate(network_wait=True)
        assert set(bed.cluster.probed[0][1]) >= {CANARY, API}


async def test_its_steps_come_when_the_network_is_there(autojump_clock):
    async with bedded() as bed:
        order = []
        bed.cluster.answer = lambda *_: (order.append("step"), (200, b'{"exit_code": 0}'))[1]
        real = bed.networks.prove

        async def prove(*arguments):
            order.append("proved")
            return await real(*arguments)

        bed.networks.prove = prove
        prepare = steps.parse([{"exec": {"argv": ["make"]}}])
        made = await bed.allocate(network="open", network_wait=True, prepare=prepare)
        assert made.instance.network == "open"
        assert order == ["proved", "step", "proved"]


async def test_it_is_handed_to_nobody_when_it_does_not_come_to_be(autojump_clock):
    async with bedded() as bed:
        bed.cluster.leaks = {API}
        with pytest.raises(NetworkNotAppliedError, match="the API server should be closed"):
            await bed.allocate(network_wait=True)
        assert bed.cluster.leased() == []


async def test_a_key_that_is_used_again_waits_for_it_too(autojump_clock):
    async with bedded() as bed:
        wanted = SandboxRequest(
            image=BASE, pool="root", max_s=600.0, wait_s=60.0, network="open", network_wait=True
        )
        made = await bed.pool.allocate("acme", wanted, "k")
        probed = len(bed.cluster.probed)
        again = await bed.pool.allocate("acme", wanted, "k")
        assert again.instance.id == made.instance.id
        # Silence is asked for twice.
        assert len(bed.cluster.probed) == probed + 2


# --- which there are ---


async def test_a_burst_asks_once_and_who_applies_a_profile_waits_seconds(autojump_clock):
    async with bedded() as bed:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(bed.networks.check, "open")
        assert bed.cluster.profile_lists == 1
        with pytest.raises(NetworkUnsupportedError):
            await bed.networks.check("model")
        bed.cluster.policies["ns"].append(policy("model"))
        await trio.sleep(KNOWN_S)
        await bed.networks.check("model")
        assert bed.cluster.profile_lists == 2


async def test_none_needs_no_list_and_a_pools_own_is_its_operators(autojump_clock):
    async with bedded() as bed:
        await bed.networks.check(None)
        await bed.networks.check("none")
        assert bed.cluster.profile_lists == 0


async def test_a_profile_must_be_in_every_namespace(autojump_clock):
    async with bedded() as bed:
        bed.networks._settings = Settings(sandbox_namespaces=("ns", "other"))
        with pytest.raises(NetworkUnsupportedError):
            await bed.networks.check("open")


# --- at run time ---


async def test_a_change_is_written_once_and_proved(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        changed = await bed.networks.set(made, "open")
        told = await bed.networks.prove(changed, "open", 5.0)
        assert changed.network == "open"
        assert told[0] == {"what": str(CANARY), "expected": "open", "outcome": "reachable"}
        assert bed.cluster.writes.count(("network", made.name)) == 1


async def test_it_is_written_though_it_seems_to_be_there(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        # Through another replica, and this one's watch is behind.
        await bed.cluster.set_network(made, "open")
        await bed.networks.set(made, "none")
        assert bed.cluster.pods[made.uid].network == "none"


async def test_closing_is_proved_by_what_was_open(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate(network="open")).instance
        changed = await bed.networks.set(made, "none")
        # Its plugin is slow.
        bed.cluster.opened["none"] = {CANARY}
        with pytest.raises(
            NetworkNotAppliedError, match="what another profile opens should be closed"
        ):
            await bed.networks.prove(changed, "none", 5.0)
        bed.cluster.opened["none"] = set()
        await bed.networks.prove(changed, "none", 5.0)


async def test_one_silence_of_a_busy_node_closes_nothing(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate(network="open")).instance
        changed = await bed.networks.set(made, "none")
        bed.cluster.opened["none"] = {CANARY}
        bed.cluster.late_probes = 1
        with pytest.raises(NetworkNotAppliedError, match="should be closed"):
            await bed.networks.prove(changed, "none", 0.1)
        bed.cluster.opened["none"] = set()
        bed.cluster.late_probes = 1
        probed = len(bed.cluster.probed)
        await bed.networks.prove(changed, "none", 0.0)
        assert len(bed.cluster.probed) == probed + 2


async def test_what_cannot_be_used_is_not_written(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        bed.cluster.policies["ns"].append(policy("model", None))
        with pytest.raises(NetworkUnsupportedError, match="canary"):
            await bed.networks.set(made, "model")
        with pytest.raises(NetworkUnsupportedError):
            await bed.networks.set(made, "nonsense")
        assert ("network", made.name) not in bed.cluster.writes


async def test_it_ends_with_its_time_and_says_what_is_not_enforced(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        bed.cluster.opened["open"] = set()
        changed = await bed.networks.set(made, "open")
        begun = trio.current_time()
        with pytest.raises(NetworkNotAppliedError) as caught:
            await bed.networks.prove(changed, "open", 7.0)
        assert 7.0 <= trio.current_time() - begun < 8.0
        assert caught.value.retryable
        assert caught.value.facts["network"] == "open"


async def test_a_daemon_that_does_not_answer_proves_nothing(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        bed.cluster.silent.add(made.uid)
        with pytest.raises(NetworkNotAppliedError, match="did not answer"):
            await bed.networks.prove(made, "none", 2.0)


async def test_where_there_is_nothing_to_try_nothing_is_proved(autojump_clock):
    async with bedded(free=1) as bed:
        bed.cluster.policies["ns"] = []
        bed.networks.closed = {}
        made = (await bed.allocate()).instance
        with pytest.raises(NetworkNotAppliedError):
            await bed.networks.prove(made, "none", 1.0)
        assert bed.cluster.probed == []


async def test_a_daemon_from_before_there_were_probes(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        bed.cluster.fail_probes = [NotFoundError("there is no /v1/probe")]
        with pytest.raises(NetworkUnsupportedError, match="older"):
            await bed.networks.prove(made, "none", 2.0)


async def test_who_is_told_of_a_sandbox_that_ends_meanwhile_hears_why(autojump_clock):
    async with bedded() as bed:
        made = (await bed.allocate()).instance
        bed.cluster.silent.add(made.uid)
        bed.cluster.end(made.uid, Ending("oom", "no memory"))
        with pytest.raises(OomError):
            await bed.networks.prove(made, "none", 60.0)
        bed.cluster.remove(made.uid, Ending("oom", "no memory"))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OomError):
            await bed.networks.prove(made, "none", 60.0)
        unknown = dataclasses.replace(made, uid="another", name="another")
        with pytest.raises(DeletedError):
            bed.networks._raise_if_ended(unknown)
        with pytest.raises(DeletedError):
            await bed.networks.set(made, "open")


async def test_more_that_no_profile_opens(autojump_clock):
    metadata = Target("169.254.169.254", 80)
    async with bedded(network_closed=(metadata,)) as bed:
        bed.cluster.leaks = {metadata}
        made = (await bed.allocate()).instance
        with pytest.raises(NetworkNotAppliedError, match=r"169.254.169.254:80 should be closed"):
            await bed.networks.prove(made, "none", 1.0)
