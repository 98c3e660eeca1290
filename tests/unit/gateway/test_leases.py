"""Lease arithmetic: examples at every edge, and a machine of replicas, callers, daemon and clocks that do not
agree, in which no live lease may end and no lapsed one may stay."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gateway import leases
from gateway.leases import CALLS_S, RECOVERY_S, SKEW_S, Activity, Ledger, Verdict
from gateway.model import Terms
from tests.unit.gateway.test_roster import leased

LONG_AGO = -1e6
"""Since when a replica leads that always did."""
NEVER = Activity(1e9, None, 1e9)
"""A daemon that nobody ever called."""


def sandbox(**terms):
    changes = {k: terms.pop(k) for k in ("expires_at", "running", "renewed", "run") if k in terms}
    return leased(**{"running": True, **changes}, terms=Terms(**terms))


def ledger_of(one, at: float = 0.0, wall: float = 1000.0) -> Ledger:
    ledger = Ledger()
    ledger.saw(one, at, wall)
    return ledger


# --- ttl ---


def test_without_terms_it_lives():
    one = sandbox(expires_at=None)
    assert ledger_of(one).verdict(one.uid, 1e9, LONG_AGO) is Verdict.KEEP
    assert ledger_of(one).left(one.uid, 1e9) == math.inf


@pytest.mark.parametrize(
    ("now", "asked", "tried", "verdict"),
    [
        (99.9, None, None, Verdict.KEEP),
        (100.0, None, None, Verdict.ASK),
        (149.9, None, 149.9, Verdict.ASK),
        # Of one that does not answer nothing later can be unknown; but it is asked, however late.
        (150.0, None, 150.0, Verdict.LAPSED),
        (9999.0, None, 149.9, Verdict.ASK),
        (100.0, 100.0, None, Verdict.LAPSED),
        # What it said before does not tell of what came since.
        (100.0, 99.9, None, Verdict.ASK),
    ],
)
def test_a_lease_counts_from_ready_and_the_daemon_has_the_last_word(now, asked, tried, verdict):
    one = sandbox(ttl_s=100.0)
    ledger = ledger_of(one)
    if asked is not None:
        ledger.heard(one.uid, asked, asked, NEVER)
    if tried is not None:
        ledger.tried(one.uid, tried)
    assert ledger.verdict(one.uid, now, LONG_AGO) is verdict


def test_a_lease_does_not_run_before_the_sandbox_is_ready():
    starting = sandbox(ttl_s=100.0, running=False)
    ledger = ledger_of(starting)
    assert ledger.verdict(starting.uid, 5000.0, LONG_AGO) is Verdict.KEEP
    ledger.saw(dataclasses.replace(starting, running=True), 5000.0, 6000.0)
    assert ledger.verdict(starting.uid, 5099.9, LONG_AGO) is Verdict.KEEP
    assert ledger.verdict(starting.uid, 5100.0, LONG_AGO) is Verdict.ASK


@pytest.mark.parametrize(
    ("activity", "lapse"),
    [
        (Activity(30.0, None, 1e9), 190.0),
        (Activity(30.0, 10.0, 1e9), 210.0),
        (Activity(0.0, None, 0.0), 220.0),
        # A command that runs is no word of the caller's.
        (Activity(1e9, None, 0.0), 100.0),
        # An older daemon does not tell.
        (Activity(None, None, None), 100.0),
    ],
)
def test_what_the_daemon_tells_is_counted_back_from_its_answer(activity, lapse):
    one = sandbox(ttl_s=100.0)
    ledger = ledger_of(one)
    ledger.heard(one.uid, 119.0, 120.0, activity)
    assert ledger.left(one.uid, 0.0) == lapse


def test_calls_renewals_and_heartbeats_are_word_of_the_caller():
    one = sandbox(ttl_s=100.0, of_run=True, run="r")
    ledger = ledger_of(one)
    ledger.used(one.uid, 50.0)
    assert ledger.left(one.uid, 0.0) == 150.0
    ledger.renewed(one.uid, 60.0)
    assert ledger.left(one.uid, 0.0) == 160.0
    ledger.beat("acme", "r", 70.0)
    assert ledger.left(one.uid, 0.0) == 170.0
    assert ledger.heard_at(one.uid) == 70.0
    ledger.stopped("acme", "r")
    assert ledger.left(one.uid, 0.0) == 160.0
    ledger.beat("zeta", "r", 99.0)
    assert ledger.left(one.uid, 0.0) == 160.0


def test_an_own_lease_is_not_the_runs():
    one = sandbox(ttl_s=100.0, run="r")
    ledger = ledger_of(one)
    ledger.beat("acme", "r", 70.0)
    assert ledger.left(one.uid, 0.0) == 100.0


def test_a_renewal_that_another_replica_wrote_counts_from_when_it_is_seen():
    one = sandbox(ttl_s=100.0, renewed="1")
    ledger = ledger_of(one)
    ledger.saw(dataclasses.replace(one, version="2"), 50.0, 0.0)
    assert ledger.left(one.uid, 0.0) == 100.0
    ledger.saw(dataclasses.replace(one, renewed="2"), 50.0, 0.0)
    assert ledger.left(one.uid, 0.0) == 150.0


@pytest.mark.parametrize(("ttl_s", "first"), [(600.0, RECOVERY_S), (20.0, 20.0)])
def test_a_new_leader_gives_callers_time_to_be_heard(ttl_s, first):
    one = sandbox(ttl_s=ttl_s)
    ledger = ledger_of(one)
    ledger.heard(one.uid, 5000.0 + first, 5000.0 + first, NEVER)
    assert ledger.verdict(one.uid, 4999.9 + first, 5000.0) is Verdict.KEEP
    assert ledger.verdict(one.uid, 5000.0 + first, 5000.0) is Verdict.LAPSED


# --- what is written ---


@pytest.mark.parametrize(
    ("used", "must"), [(None, False), (49.0, False), (50.0, False), (50.1, True), (99.0, True)]
)
def test_a_renewal_is_written_when_less_than_half_is_left(used, must):
    one = sandbox(ttl_s=100.0)
    ledger = ledger_of(one)
    if used is not None:
        ledger.used(one.uid, used)
    assert ledger.to_write(one.uid, used or 99.0) == (0.0 if must else None)
    if must:
        ledger.saw(dataclasses.replace(one, renewed="2"), used, 0.0)
        assert ledger.to_write(one.uid, used) is None


def test_word_is_written_with_its_age_and_is_not_younger_for_it():
    """What the daemon told when it was asked is old by then."""
    one = sandbox(ttl_s=100.0)
    here, there = ledger_of(one), ledger_of(one)
    here.heard(one.uid, 100.0, 100.0, Activity(60.0001, None, 60.0))
    age = here.to_write(one.uid, 100.0)
    assert age == pytest.approx(60.0001)
    written = dataclasses.replace(one, renewed=leases.renewal(1e9, age))
    assert written.renewed == "1000000000.000 60"
    for ledger in (here, there):
        ledger.saw(written, 100.0, 0.0)
        assert ledger.left(one.uid, 0.0) == 140.0
        assert ledger.to_write(one.uid, 100.0) is None
    # What has lapsed meanwhile is not written.
    here.used(one.uid, 190.0)
    assert here.to_write(one.uid, 190.0) == 0.0
    assert here.to_write(one.uid, 290.0) is None


@pytest.mark.parametrize("text", ["", "x", "1 x", "1 -5", "1 nan", "1 inf", "2"])
def test_what_somebody_wrote_there_is_no_age(text):
    assert leases.age_of(text) == 0.0


def test_calls_write_nothing_where_heartbeats_do_or_nothing_runs_out():
    for one in (sandbox(ttl_s=100.0, of_run=True, run="r"), sandbox()):
        ledger = ledger_of(one)
        ledger.used(one.uid, 99.0)
        assert ledger.to_write(one.uid, 99.0) is None
    assert ledger.to_write("unknown", 0.0) is None


def test_a_thousand_busy_sandboxes_of_ten_minutes_write_at_most_four_times_a_second():
    one = sandbox(ttl_s=600.0)
    ledger, writes = ledger_of(one), 0
    for second in range(7200):
        ledger.used(one.uid, float(second))
        if ledger.to_write(one.uid, float(second)) is not None:
            writes += 1
            ledger.saw(dataclasses.replace(one, renewed=str(writes)), float(second), 0.0)
    assert writes * 1000 / 7200 <= 4.0


# --- idleness ---


@pytest.mark.parametrize(
    ("idle_s", "now", "verdict"),
    [
        (None, 99.9, Verdict.KEEP),
        (None, 100.0, Verdict.ASK),
        # Of one that does not answer nobody knows.
        (None, 1e6, Verdict.ASK),
        (1e9, 100.0, Verdict.IDLE),
        (0.0, 100.0, Verdict.KEEP),
        (99.0, 101.0, Verdict.KEEP),
        (99.0, 102.0, Verdict.ASK),
    ],
)
def test_idleness_is_what_the_daemon_says(idle_s, now, verdict):
    one = sandbox(idle_s=100.0)
    ledger = ledger_of(one)
    if idle_s is not None:
        ledger.heard(one.uid, 101.0, 101.0, Activity(1e9, None, idle_s))
    assert ledger.verdict(one.uid, now, LONG_AGO) is verdict


def test_a_call_is_activity_and_a_renewal_is_none():
    one = sandbox(idle_s=100.0)
    ledger = ledger_of(one)
    ledger.renewed(one.uid, 50.0)
    assert ledger.verdict(one.uid, 100.0, LONG_AGO) is Verdict.ASK
    ledger.used(one.uid, 50.0)
    assert ledger.verdict(one.uid, 149.0, LONG_AGO) is Verdict.KEEP


# --- the longest life ---


@pytest.mark.parametrize("skew", [-SKEW_S, 0.0, SKEW_S])
def test_who_saw_it_begin_needs_nobodys_clock(skew):
    one = sandbox(max_s=100.0, expires_at=1100.0)
    ledger = ledger_of(one, wall=1000.0 + skew)
    assert not ledger.is_over(one.uid, 99.9)
    assert ledger.is_over(one.uid, 100.0)
    assert ledger.verdict(one.uid, 99.0 + CALLS_S, LONG_AGO) is Verdict.KEEP
    assert ledger.verdict(one.uid, 100.0 + CALLS_S, LONG_AGO) is Verdict.OVER


@pytest.mark.parametrize("skew", [-SKEW_S, 0.0, SKEW_S])
def test_who_came_later_is_no_more_than_two_minutes_late(skew):
    """It has 40 s left in truth."""
    for one in (sandbox(max_s=100.0, expires_at=1100.0), sandbox(expires_at=1100.0)):
        ledger = ledger_of(one, wall=1060.0 + skew)
        assert 40.0 <= ledger.left(one.uid, 0.0) <= 40.0 + 2 * SKEW_S


def test_the_life_of_one_that_took_long_to_start_begins_when_it_runs():
    lease = {"expires_at": 1100.0, "max_s": 100.0, "start_s": 330.0}
    assert leases.ends_at(lease, None) == 1430.0
    assert leases.ends_at(lease, 1000.0) == 1100.0
    assert leases.ends_at(lease, 1200.0) == 1300.0
    # A warm one ran before; a node's clock that is ahead gives no more than a start may take.
    assert leases.ends_at(lease, 10.0) == 1100.0
    assert leases.ends_at(lease, 9999.0) == 1430.0
    assert leases.ends_at({"expires_at": 7.0}, 3.0) == 7.0
    assert leases.ends_at({}, 3.0) is None
    starting = sandbox(max_s=100.0, expires_at=1430.0, running=False)
    ledger = ledger_of(starting)
    running = dataclasses.replace(starting, running=True, expires_at=1300.0)
    ledger.saw(running, 200.0, 1200.0)
    assert ledger.left(running.uid, 200.0) == 100.0


def test_of_what_is_not_known_nothing_follows():
    ledger = Ledger()
    ledger.used("x", 1.0)
    ledger.renewed("x", 1.0)
    ledger.heard("x", 1.0, 1.0, NEVER)
    ledger.tried("x", 1.0)
    assert ledger.verdict("x", 1.0, LONG_AGO) is Verdict.KEEP
    assert (ledger.heard_at("x"), ledger.left("x", 1.0), ledger.is_over("x", 1.0)) == (
        None, math.inf, False,
    )  # fmt: skip
    assert repr(ledger) == "<Ledger sandboxes=0 runs=0>"
