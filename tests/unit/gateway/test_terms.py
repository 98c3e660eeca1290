"""What an allocation makes of the terms of a lease, over a cluster in memory; in virtual time."""

from __future__ import annotations

import pytest
import trio

from gateway.model import Owner, Terms, Tier
from sandman.errors import BadRequestError
from sandman.wire import LeaseTerms
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_pool import running, want


async def test_a_daemon_is_told_the_lease_or_else_the_whole_life(autojump_clock):
    """However long its start took: it counts from when it hears of it."""
    cluster = FakeCluster()
    async with running(cluster) as pool:
        own = await pool.allocate("acme", want(terms=Terms(ttl_s=90.0, max_s=3600.0)), None)
        plain = await pool.allocate("acme", want(terms=Terms(max_s=3600.0)), None)
        assert own.instance.tier == plain.instance.tier == Tier.COLD
        assert cluster.leases[own.instance.uid] == [LeaseTerms(90.0, 600.0)]
        [told] = cluster.leases[plain.instance.uid]
        assert told.ttl_s == pytest.approx(3600.0, abs=0.01)


@pytest.mark.parametrize(
    ("image", "tier", "start_s"),
    [(None, Tier.WARM, 0.0), (BASE, Tier.WARM, 0.0), (TASK, Tier.SWAP, 330.0)],
)
async def test_what_a_start_may_take_is_written_where_there_is_one(
    autojump_clock, image, tier, start_s
):
    cluster, seen = FakeCluster(), []
    cluster.placeholder()
    claim = cluster.claim

    async def noting(instance, assignment):
        seen.append(assignment)
        return await claim(instance, assignment)

    cluster.claim = noting
    terms = Terms(ttl_s=60.0, idle_s=50.0, max_s=100.0, of_run=True)
    owner = Owner("ns", "job", "j1")
    async with running(cluster) as pool:
        begun = trio.current_time()
        made = await pool.allocate("acme", want(image=image, terms=terms, owner=owner, max_s=100.0), None)  # fmt: skip
        [assignment] = seen
        assert (made.instance.tier, assignment.start_s) == (tier, start_s)
        assert (assignment.terms, assignment.owner) == (terms, owner)
        assert assignment.expires_at == pytest.approx(begun + 100.0, abs=0.01)


async def test_a_sandbox_is_not_given_to_an_owner_elsewhere(autojump_clock):
    """The collector would not find it there, and delete the sandbox at once."""
    cluster = FakeCluster()
    cluster.placeholder()
    async with running(cluster) as pool:
        with pytest.raises(BadRequestError) as caught:
            await pool.allocate("acme", want(owner=Owner("elsewhere", "job", "j1")), None)
        assert caught.value.field == "owner.namespace"
        assert cluster.leased() == []
        # Its place is free again.
        assert (await pool.allocate("acme", want(), None)).instance.tier == Tier.SWAP
