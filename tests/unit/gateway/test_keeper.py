"""Calls and renewals through one replica: what is remembered, told to the daemon, written on the pod; in virtual
time."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio

from gateway.keeper import LOOK_S, Keeper
from gateway.model import Place, Terms
from sandman.errors import SandmanError, UnreachableError
from tests.fakes.cluster import FakeCluster, FakeDaemons
from tests.unit.gateway.test_roster import leased, roster

OWN = Terms(ttl_s=100.0)


class Bed:
    def __init__(self, **changes) -> None:
        self.cluster = FakeCluster()
        self.roster = roster()
        pod = self.cluster.placeholder()
        one = leased(uid=pod.uid, name=pod.name, **changes)
        self.one = self.cluster._put(one)
        self.keeper = Keeper(
            self.roster, FakeDaemons(self.cluster), self.cluster, lambda: 1e6 + trio.current_time()
        )
        self.ledger = self.roster.ledger

    async def watch(self) -> None:
        async for news in self.cluster.receive:
            self.roster.apply(news)

    @property
    def left(self) -> float:
        return self.ledger.left(self.one.uid, trio.current_time())

    def renewals(self) -> int:
        return sum(what == "renew" for what, _ in self.cluster.writes)


@contextlib.asynccontextmanager
async def keeping(**changes):
    bed = Bed(**changes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.watch)
        nursery.start_soon(bed.keeper.run)
        await trio.testing.wait_all_tasks_blocked()
        yield bed
        nursery.cancel_scope.cancel()


async def test_calls_write_once_in_half_a_lease(autojump_clock):
    async with keeping(terms=OWN) as bed:
        for _ in range(1000):
            bed.keeper.use(bed.one)
            await trio.sleep(1.0)
        # 2 in each 100 s; a look later than at the half at most.
        assert 18 <= bed.renewals() <= 20
        assert bed.left > 98.0


async def test_an_open_call_is_word_for_as_long_as_it_is_open(autojump_clock):
    async with keeping(terms=OWN) as bed:
        bed.keeper.use(bed.one)
        with bed.roster.registry.during(bed.one.uid, trio.CancelScope()):
            await trio.sleep(1000.0)
            assert bed.left > 98.0
            assert bed.renewals() >= 18
        await trio.sleep(99.0)
        assert bed.left < 2.0
        assert repr(bed.keeper).startswith("<Keeper touched=0")


async def test_nothing_is_written_for_who_needs_no_word_or_has_heartbeats(autojump_clock):
    for terms in (Terms(), Terms(ttl_s=100.0, of_run=True)):
        async with keeping(terms=terms, run="r") as bed:
            for _ in range(300):
                bed.keeper.use(bed.one)
                await trio.sleep(1.0)
            assert bed.renewals() == 0


async def test_a_write_that_failed_is_made_at_the_next_look(autojump_clock):
    async with keeping(terms=OWN) as bed:
        failures = [UnreachableError("away")]
        renew = bed.cluster.renew

        async def failing(instance, age):
            if failures:
                raise failures.pop()
            await renew(instance, age)

        bed.cluster.renew = failing
        await trio.sleep(60.0)
        bed.keeper.use(bed.one)
        await trio.sleep(2.5 * LOOK_S)
        assert bed.renewals() == 1
        assert not failures
        # What stands there is as old as it was when it was written.
        assert bed.left == pytest.approx(100.0 - 2.5 * LOOK_S)


async def test_a_renewal_is_told_to_the_daemon_and_seldom_written(autojump_clock):
    async with keeping(terms=OWN) as bed:
        for _ in range(10):
            await trio.sleep(10.0)
            await bed.keeper.renew(bed.one)
            assert bed.left == 100.0
        assert bed.cluster.told == [(bed.one.name, 100.0, True)] * 10
        assert bed.renewals() <= 2


@pytest.mark.parametrize("trouble", ["silent", "old"])
async def test_what_the_daemon_cannot_be_told_is_written(autojump_clock, trouble):
    async with keeping(terms=OWN) as bed:
        bed.cluster.silent = {bed.one.uid} if trouble == "silent" else set()
        bed.cluster.knows_no_leases = trouble == "old"
        await trio.sleep(10.0)
        await bed.keeper.renew(bed.one)
        assert bed.renewals() == 1
        assert bed.left == 100.0


async def test_there_is_nothing_to_renew_where_nothing_runs_out(autojump_clock):
    async with keeping() as bed:
        await bed.keeper.renew(bed.one)
        assert (bed.cluster.told, bed.cluster.writes) == ([], [])


async def test_callers_are_shown_when_it_ends_unless_it_is_renewed(autojump_clock):
    terms = Terms(ttl_s=100.0, max_s=150.0)
    async with keeping(terms=terms, expires_at=trio.current_time() + 150.0) as bed:
        wall = lambda: 1e6 + trio.current_time()  # noqa: E731
        assert bed.keeper.as_of_now(bed.one).expires_at == wall() + 100.0
        await trio.sleep(90.0)
        bed.keeper.use(bed.one)
        shown = bed.keeper.as_of_now(bed.one)
        assert (shown.expires_at, shown.ending) == (pytest.approx(wall() + 60.0), None)
        assert not bed.keeper.is_over(bed.one)
        await trio.sleep(60.0)
        assert bed.keeper.is_over(bed.one)
        over = bed.keeper.as_of_now(bed.one)
        assert over.ending.reason == "expired"
        assert bed.keeper.as_of_now(over) is over
        unknown = dataclasses.replace(bed.one, uid="other")
        assert bed.keeper.as_of_now(unknown) is unknown


async def test_of_an_attachment_nothing_is_written(autojump_clock):
    """Its name and uid are a Lease's, and the pod is not ours: its daemon alone is told."""
    async with keeping(terms=OWN) as bed:
        place = Place("web-1", "app", 21763, "b")
        attached = dataclasses.replace(bed.one, place=place)
        bed.keeper.use(attached)
        assert "touched=0" in repr(bed.keeper)
        await trio.sleep(90.0)
        assert bed.left == pytest.approx(10.0)
        await bed.keeper.renew(attached)
        assert bed.left == 100.0
        assert "touched=0" in repr(bed.keeper)
        bed.cluster.silent = {bed.one.uid}
        with pytest.raises(UnreachableError, match="could not be told"):
            await bed.keeper.renew(attached)
        bed.cluster.silent, bed.cluster.knows_no_leases = set(), True
        with pytest.raises(SandmanError):
            await bed.keeper.renew(attached)
        await trio.sleep(90.0)
        assert bed.renewals() == 0


async def test_an_attachment_is_not_shown_to_outlive_what_was_agreed_on(autojump_clock):
    async with keeping(terms=OWN) as bed:
        attached = dataclasses.replace(bed.one, place=Place("web-1", "app", 21763, "b"))
        assert bed.keeper.as_of_now(attached).expires_at == pytest.approx(1e6 + 100.0)
        soon = dataclasses.replace(attached, expires_at=1.0)
        assert bed.keeper.as_of_now(soon).expires_at == 1.0
        unseen = dataclasses.replace(attached, uid="of-a-lease", expires_at=5e6)
        assert bed.keeper.as_of_now(unseen) == unseen
