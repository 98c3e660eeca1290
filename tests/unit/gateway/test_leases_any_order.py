"""Leases under any order of calls, renewals, heartbeats, skews and sweeps: no live one ends, no lapsed one stays."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway import leases
from gateway.leases import RECOVERY_S, SKEW_S, Activity, Ledger, Verdict
from gateway.model import Terms
from tests.unit.gateway.test_leases import LONG_AGO
from tests.unit.gateway.test_roster import leased

# --- any sequence of all of it ---

SWEEP_S = 5.0
LOOK_S = 5.0
TTL_S, IDLE_S = 60.0, 90.0


class Replica:
    def __init__(self, offset: float, skew: float) -> None:
        self.offset, self.skew = offset, skew
        self.ledger = Ledger()

    def now(self, time: float) -> float:
        return time + self.offset

    def wall(self, time: float) -> float:
        return 1e6 + time + self.skew


class Leases(RuleBasedStateMachine):
    """Two replicas before one sandbox. The truth (`word`, `active`) is kept apart from what they know."""

    skews = st.floats(-SKEW_S, SKEW_S)

    @initialize(skews=st.tuples(skews, skews), of_run=st.booleans(), idle=st.booleans())
    def begin(self, skews, of_run, idle) -> None:
        self.time = 0.0
        self.terms = Terms(ttl_s=TTL_S, idle_s=IDLE_S if idle else None, max_s=1e5, of_run=of_run)
        self.replicas = [Replica(100.0 * n, skew) for n, skew in enumerate(skews)]
        self.pod = leased(running=True, run="r", expires_at=1e6 + 1e5 + skews[0], terms=self.terms)
        self.word = self.active = self.used = self.renewed = 0.0
        self.open: list[Replica] = []
        self.runs = False
        self.answers = True
        self.leader, self.since = self.replicas[0], LONG_AGO
        self.ended: Verdict | None = None
        self.tell()

    def tell(self) -> None:
        for one in self.replicas:
            one.ledger.saw(self.pod, one.now(self.time), one.wall(self.time))

    def write(self, one: Replica, age: float) -> None:
        text = leases.renewal(one.wall(self.time), age)
        self.pod = dataclasses.replace(self.pod, renewed=text)
        self.tell()

    def keep(self, one: Replica) -> None:
        age = one.ledger.to_write(self.pod.uid, one.now(self.time))
        if age is not None:
            self.write(one, age)

    def call(self, one: Replica) -> None:
        self.word = self.used = self.active = self.time
        one.ledger.used(self.pod.uid, one.now(self.time))
        self.keep(one)

    which = st.integers(0, 1)
    living = precondition(lambda self: self.ended is None)
    reachable = precondition(lambda self: self.ended is None and self.answers)

    @reachable
    @rule(n=which)
    def calls(self, n) -> None:
        self.call(self.replicas[n])

    @reachable
    @rule(n=which)
    def opens(self, n) -> None:
        self.call(self.replicas[n])
        self.open.append(self.replicas[n])

    @precondition(lambda self: self.open)
    @rule()
    def closes(self) -> None:
        self.call(self.open.pop())

    @living
    @rule(n=which)
    def renews(self, n) -> None:
        one = self.replicas[n]
        self.word = self.time
        one.ledger.renewed(self.pod.uid, one.now(self.time))
        if self.answers:
            self.renewed = self.time
            self.keep(one)
        else:
            self.write(one, 0.0)

    @living
    @rule()
    def beats(self) -> None:
        if self.terms.of_run:
            self.word = self.time
        for one in self.replicas:
            one.ledger.beat("acme", "r", one.now(self.time))

    @reachable
    @rule()
    def starts_or_ends_a_command(self) -> None:
        self.runs = not self.runs
        self.active = self.time

    @precondition(lambda self: self.ended is None and not self.open)
    @rule()
    def falls_silent_or_comes_back(self) -> None:
        self.answers = not self.answers

    @living
    @rule(seconds=st.floats(0.0, 3 * TTL_S))
    def nobody_looks_for_a_while(self, seconds) -> None:
        """A sweep that takes long, or a machine that is held up; open calls keep being noticed."""
        if not self.open:
            self.pass_by(seconds, sweep=False)

    @rule()
    def nothing_happens(self) -> None:
        assert self.time >= 0.0

    @living
    @rule(n=which)
    def another_leads(self, n) -> None:
        if self.leader is not self.replicas[n]:
            self.leader, self.since = self.replicas[n], self.replicas[n].now(self.time)

    @living
    @rule(looks=st.integers(1, 14), shift=st.floats(0.0, 0.999))
    def time_passes(self, looks, shift) -> None:
        for _ in range(looks):
            self.pass_by(LOOK_S)
            if self.ended is not None:
                return
        self.pass_by(shift * LOOK_S, sweep=False)

    def pass_by(self, seconds: float, *, sweep: bool = True) -> None:
        self.time += seconds
        for one in self.open:
            self.word = self.used = self.active = self.time
            one.ledger.used(self.pod.uid, one.now(self.time))
            self.keep(one)
        if self.runs:
            self.active = self.time
        if sweep:
            self.sweep()

    def sweep(self) -> None:
        one, now = self.leader, self.leader.now(self.time)
        verdict = one.ledger.verdict(self.pod.uid, now, self.since)
        if verdict is Verdict.ASK and self.answers:
            told = Activity(
                self.time - self.used,
                self.time - self.renewed if self.renewed else None,
                self.time - self.active,
            )
            one.ledger.heard(self.pod.uid, now, now, told)
        elif verdict is Verdict.ASK:
            one.ledger.tried(self.pod.uid, now)
        if verdict is Verdict.ASK:
            verdict = one.ledger.verdict(self.pod.uid, now, self.since)
        if verdict not in {Verdict.KEEP, Verdict.ASK}:
            self.ended = verdict
            self.judge(verdict)
        elif self.answers:
            self.must_live(now)

    def judge(self, verdict: Verdict) -> None:
        """What has ended had lapsed, with a grain for the numbers' own rounding."""
        if verdict is Verdict.LAPSED:
            assert self.time >= self.word + TTL_S - 1e-6
        else:
            assert verdict is Verdict.IDLE
            assert self.time >= self.active + IDLE_S - 1e-6

    def must_live(self, now: float) -> None:
        """What a sweep has left has not lapsed."""
        recovering = now < self.since + RECOVERY_S + 1e-6
        assert recovering or self.time <= self.word + TTL_S + 1e-6
        if self.terms.idle_s is not None:
            assert self.time <= self.active + IDLE_S + 1e-6

    @invariant()
    def what_callers_are_told_is_no_promise_that_is_broken(self) -> None:
        if getattr(self, "ended", None) is None and hasattr(self, "leader"):
            for one in self.replicas:
                assert one.ledger.left(self.pod.uid, one.now(self.time)) <= TTL_S + 1e-6


Leases.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestLeases = Leases.TestCase
