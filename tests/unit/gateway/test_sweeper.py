"""Sweeps over a cluster in memory, in virtual time: hours pass in milliseconds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import trio

from gateway.leases import CALLS_S, Activity
from gateway.model import Terms
from gateway.provider import Synced
from gateway.sweeper import EVERY_S, Sweeper
from sandman.errors import UnreachableError
from tests.fakes.cluster import FakeCluster, FakeDaemons
from tests.unit.gateway.test_roster import leased, roster

if TYPE_CHECKING:
    from sandman import wire

OWN = Terms(ttl_s=100.0)
OF_RUN = Terms(ttl_s=100.0, of_run=True)
HOUR_S = 3600.0


class Runs:
    """Heartbeats that reach the API server; the watch tells of them unless it hangs."""

    def __init__(self, ledger) -> None:
        self.ledger = ledger
        self.stored: dict[tuple[str, str], float] = {}
        self.hangs = False
        self.is_silent = False
        self.living: set[tuple[str, str]] = set()
        self.confirmed = 0

    def beat(self, tenant: str, run: str) -> None:
        self.stored[tenant, run] = trio.current_time()
        if not self.hangs:
            self.ledger.beat(tenant, run, trio.current_time())

    async def confirm(self, key) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_silent:
            raise UnreachableError("the API server does not tell")
        self.confirmed += 1
        at = self.stored.get((key.tenant, key.run))
        if at is not None and at > self.ledger.runs().get((key.tenant, key.run), -1.0):
            self.ledger.beat(key.tenant, key.run, at)

    async def tidy(self, living, now) -> None:
        await trio.lowlevel.checkpoint()
        self.living = living


class Caller:
    """Uses a sandbox, as its daemon sees it."""

    def __init__(self, bed: Bed, uid: str) -> None:
        self.bed, self.uid = bed, uid
        self.used = self.active = trio.current_time()

    def calls(self) -> None:
        self.used = self.active = trio.current_time()

    def told(self) -> Activity:
        now = trio.current_time()
        return Activity(now - self.used, None, now - self.active)


class Bed:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.pool()
        self.roster = roster()
        self.ledger = self.roster.ledger
        self.daemons = FakeDaemons(self.cluster)
        self.asked = 0
        self.daemons.info = self.info
        self.runs = Runs(self.ledger)
        self.leads = True
        self.in_hand: set[str | None] = set()
        self.callers: dict[str, Caller] = {}
        self.ends: list[tuple[str, str]] = []
        self.roster.registry.on_end = lambda one, end: self.ends.append((one.name, end.reason))
        self.sweeper = Sweeper(
            self.roster, self.daemons, self.cluster, self.runs, is_leader=lambda: self.leads,
            in_hand=self.in_hand, grace_s=600.0,
        )  # fmt: skip

    async def info(self, instance) -> wire.Info:
        self.asked += 1
        caller = self.callers.get(instance.uid)
        if caller is not None:
            self.cluster.activity[instance.uid] = caller.told()
        return await self.cluster.info(instance)

    def sandbox(self, **changes):
        """One that was handed over."""
        pod = self.cluster.placeholder()
        self.cluster.claims[pod.uid] = f"c-{pod.uid}"
        self.callers[pod.uid] = Caller(self, pod.uid)
        return self.cluster._put(
            leased(uid=pod.uid, name=pod.name, claim_id=f"c-{pod.uid}", **changes)
        )

    async def watch(self) -> None:
        async for news in self.cluster.receive:
            self.roster.apply(news)

    def lives(self, one) -> bool:
        return one.uid in self.cluster.pods

    async def until_gone(self, one) -> float:
        """When it was gone."""
        while self.lives(one):
            await trio.sleep(0.5)
        return trio.current_time()


@contextlib.asynccontextmanager
async def sweeping():
    bed = Bed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.watch)
        nursery.start_soon(bed.sweeper.run)
        bed.cluster.send.send_nowait(Synced())
        # A leader of long standing.
        await trio.sleep(200.0)
        yield bed
        nursery.cancel_scope.cancel()


async def test_who_says_nothing_is_gone_within_a_sweep_and_its_daemon_was_asked(autojump_clock):
    async with sweeping() as bed:
        begun = trio.current_time()
        one, stays = bed.sandbox(terms=OWN), bed.sandbox()
        gone = await bed.until_gone(one)
        assert 100.0 <= gone - begun <= 100.0 + EVERY_S + 1
        assert bed.ends == [(one.name, "expired")]
        assert bed.roster.registry.ending(one.id)[1].detail == "nobody renewed its lease for 100 s"
        assert bed.lives(stays)


async def test_a_sweep_that_took_long_is_followed_by_the_next_at_once(autojump_clock):
    """Five thousand whose callers vanished together are minutes of writes: what lapses meanwhile is not to wait besides."""
    async with sweeping() as bed:
        reclaim = bed.cluster.reclaim

        async def slowly(*what):
            await trio.sleep(1.0)
            return await reclaim(*what)

        bed.cluster.reclaim = slowly
        many = [bed.sandbox(terms=OWN) for _ in range(300)]
        await trio.sleep(EVERY_S + 1)
        late = bed.sandbox(terms=OWN)
        gone = max([await bed.until_gone(one) for one in many])
        assert 0 < await bed.until_gone(late) - gone < EVERY_S / 2


async def test_two_hours_of_calls_through_another_replica_keep_it(autojump_clock):
    """This one never hears of them but from the daemon."""
    async with sweeping() as bed:
        one = bed.sandbox(terms=OWN)
        for _ in range(80):
            await trio.sleep(90.0)
            bed.callers[one.uid].calls()
        assert bed.lives(one)
        used = trio.current_time()
        assert 100.0 <= await bed.until_gone(one) - used <= 100.0 + EVERY_S + 1
        # It was not asked more often than it had to be.
        assert bed.asked <= 2 * 80 + 10


@pytest.mark.parametrize("pause", [50.0, 95.0, 99.0])
async def test_two_hours_of_heartbeats_keep_a_run_and_write_nothing(autojump_clock, pause):
    async with sweeping() as bed:
        mine = [bed.sandbox(terms=OF_RUN, run="r1") for _ in range(3)]
        other = bed.sandbox(terms=OF_RUN, run="r2")
        begun = trio.current_time()
        while trio.current_time() - begun < 2 * HOUR_S:
            bed.runs.beat("acme", "r1")
            await trio.sleep(pause)
        assert all(map(bed.lives, mine))
        assert not bed.lives(other)
        assert [write for write in bed.cluster.writes if write[0] == "renew"] == []
        last = bed.runs.stored["acme", "r1"]
        for one in mine:
            assert await bed.until_gone(one) - last <= 100.0 + EVERY_S + 1
        assert {reason for _, reason in bed.ends} == {"expired"}


async def test_a_watch_that_hangs_ends_no_run(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(terms=OF_RUN, run="r1")
        bed.runs.hangs = True
        for _ in range(20):
            await trio.sleep(60.0)
            bed.runs.beat("acme", "r1")
        assert bed.lives(one)
        assert bed.runs.confirmed > 5


async def test_a_run_whose_heartbeat_cannot_be_looked_for_goes_on(autojump_clock):
    """The watch hangs, and the one read fails of which a deletion would depend."""
    async with sweeping() as bed:
        one, own = bed.sandbox(terms=OF_RUN, run="r1"), bed.sandbox(terms=OWN)
        bed.runs.hangs = bed.runs.is_silent = True
        for _ in range(20):
            await trio.sleep(60.0)
            bed.runs.beat("acme", "r1")
        assert bed.lives(one)
        assert not bed.lives(own)
        bed.runs.is_silent = False
        assert await bed.until_gone(one) > bed.runs.stored["acme", "r1"] + 100.0


async def test_one_that_does_not_answer_has_half_a_lease_more(autojump_clock):
    async with sweeping() as bed:
        begun = trio.current_time()
        one = bed.sandbox(terms=OWN)
        bed.cluster.silent.add(one.uid)
        assert 150.0 <= await bed.until_gone(one) - begun <= 150.0 + EVERY_S + 1


async def test_an_idle_one_goes_and_one_that_works_stays(autojump_clock):
    async with sweeping() as bed:
        terms = Terms(idle_s=600.0)
        idle, busy = bed.sandbox(terms=terms), bed.sandbox(terms=terms)
        silent = bed.sandbox(terms=terms)
        bed.cluster.silent.add(silent.uid)
        bed.callers[busy.uid].told = lambda: Activity(1e4, None, 0.0)
        begun = trio.current_time()
        assert 600.0 <= await bed.until_gone(idle) - begun <= 600.0 + EVERY_S + 1
        await trio.sleep(2 * HOUR_S)
        assert bed.lives(busy)
        # Of one that does not answer nobody knows whether it is idle.
        assert bed.lives(silent)
        assert bed.ends == [(idle.name, "idle")]


async def test_the_longest_life_ends_the_busiest(autojump_clock):
    async with sweeping() as bed:
        begun = trio.current_time()
        one = bed.sandbox(terms=Terms(ttl_s=100.0, max_s=300.0), expires_at=begun + 300.0)
        bed.callers[one.uid].told = lambda: Activity(0.0, None, 0.0)
        gone = await bed.until_gone(one) - begun
        assert 300.0 + CALLS_S <= gone <= 300.0 + CALLS_S + EVERY_S + 1


async def test_a_call_between_question_and_end_saves_it(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(terms=OWN)
        reclaim = bed.cluster.reclaim

        async def renewed_first(instance, ending):
            bed.cluster.reclaim = reclaim
            await bed.cluster.renew(instance, 0.0)
            return await reclaim(instance, ending)

        bed.cluster.reclaim = renewed_first
        await trio.sleep(150.0)
        assert bed.lives(one)
        assert bed.ends == []
        await trio.sleep(100.0)
        assert not bed.lives(one)


async def test_what_fails_is_done_in_the_next_sweep(autojump_clock):
    async with sweeping() as bed:
        one = bed.sandbox(terms=OWN)
        bed.cluster.fail_reclaims = [UnreachableError("away")] * 2
        begun = trio.current_time()
        gone = await bed.until_gone(one) - begun
        assert 100.0 + EVERY_S <= gone <= 100.0 + 3 * EVERY_S + 1


async def test_only_the_leader_sweeps_and_a_new_one_gives_time(autojump_clock):
    async with sweeping() as bed:
        bed.leads = False
        one = bed.sandbox(terms=OWN)
        await trio.sleep(1000.0)
        assert bed.lives(one)
        assert bed.asked == 0
        bed.leads = True
        begun = trio.current_time()
        assert 60.0 <= await bed.until_gone(one) - begun <= 60.0 + 2 * EVERY_S + 1
        assert repr(bed.sweeper).startswith("<Sweeper since=1")


async def test_an_older_daemon_that_does_not_tell_has_half_a_lease_more(autojump_clock):
    async with sweeping() as bed:
        begun = trio.current_time()
        one = bed.sandbox(terms=Terms(ttl_s=100.0, idle_s=10.0))
        bed.callers[one.uid].told = lambda: Activity(None, None, None)
        assert 150.0 <= await bed.until_gone(one) - begun <= 150.0 + EVERY_S + 1
