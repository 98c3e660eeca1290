"""Who may lead: the decision by itself, and candidates whose clocks and network do their worst."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import candidacy
from gateway.candidacy import Action, Candidacy, Timing
from sandman.service import kube
from tests.unit.gateway.fake_leases import T0, Server

# --- the decision --------------------------------------------------------------------------------


def lease_of(holder: str | None, *, duration: int | None = 6, version: str = "1") -> kube.Lease:
    return kube.Lease(
        metadata=kube.ObjectMeta(uid="u", resource_version=version),
        spec=kube.LeaseSpec(holder_identity=holder, lease_duration_seconds=duration),
    )


@pytest.mark.parametrize(
    ("lease", "now", "action"),
    [
        (None, 0, Action.CREATE),
        (lease_of(None), 0, Action.TAKE),
        (lease_of(""), 0, Action.TAKE),
        (lease_of("me"), 0, Action.RENEW),
        (lease_of("me"), 100, Action.RENEW),
        (lease_of("other"), 5.9, Action.WAIT),
        (lease_of("other"), 6, Action.TAKE),
        (lease_of("other", duration=15), 14.9, Action.WAIT),
        (lease_of("other", duration=15), 15, Action.TAKE),
        (lease_of("other", duration=1), 5.9, Action.WAIT),
        (lease_of("other", duration=None), 5.9, Action.WAIT),
    ],
)
def test_decisions(lease, now, action):
    assert candidacy.decide(now, lease, 0, "me", 6) is action


def test_addresses():
    identity = candidacy.make_identity("pod", "[fd00::1]:8443", "0a1b2c3d")
    assert identity == "pod_0a1b2c3d@[fd00::1]:8443"
    assert candidacy.address_of(identity) == "[fd00::1]:8443"
    assert candidacy.address_of("somebody-else") == ""


def test_another_clock_in_the_lease_decides_nothing():
    """renewTime of a past or future century: only changes count."""
    me = Candidacy("me", Timing())
    for version, stamp in enumerate(["1999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"]):
        lease = kube.Lease(
            metadata=kube.ObjectMeta(uid="u", resource_version=str(version)),
            spec=kube.LeaseSpec(holder_identity="other", renew_time=stamp),
        )
        me.observe(version * 5.0, lease)
        assert me.action(version * 5.0 + 5.9) is Action.WAIT
    assert me.action(11.0) is Action.TAKE


@pytest.mark.parametrize("timing", [{"renew_s": 4}, {"fence_s": 6}, {"renew_s": 5, "fence_s": 4}])
def test_seconds_that_are_not_safe_are_refused(timing):
    with pytest.raises(ValueError, match="does not hold"):
        Timing(**timing)


# --- never two -----------------------------------------------------------------------------------


class Simulation:
    """Candidates with clocks of their own, a server, and a network that delays and loses at will.

    A heap of (true time, …) runs the same turns as `Election`: look or write, then a pause; a call
    is given up after `call_s`, and may arrive even so.
    """

    def __init__(self, seed: int, timing: Timing, people: int = 3) -> None:
        self.luck = random.Random(seed)
        self.server = Server()
        self.timing = timing
        self.now = 0.0
        self.order = itertools.count()
        self.events: list = []
        self.rates = [self.luck.uniform(0.8, 1.2) for _ in range(people)]
        self.offsets = [self.luck.uniform(-1e6, 1e6) for _ in range(people)]
        self.cores = [Candidacy(f"c{index}", timing) for index in range(people)]
        self.must_look = [True] * people
        self.waiting: dict[int, int] = {}
        self.elected: list[int] = []
        for index in range(people):
            self.after(self.luck.uniform(0, 3), self.turn, index)

    def clock(self, index: int) -> float:
        return self.offsets[index] + self.rates[index] * self.now

    def after(self, true_s: float, act, *args) -> None:
        heapq.heappush(self.events, (self.now + true_s, next(self.order), act, args))

    def pause(self, index: int, local_s: float, act, *args) -> None:
        self.after(local_s / self.rates[index], act, *args)

    def run(self, true_s: float) -> None:
        while self.events and self.events[0][0] < true_s:
            self.now, _, act, args = heapq.heappop(self.events)
            act(*args)

    def delay(self) -> float:
        return self.luck.choice([0.001, 0.01, 0.5, self.luck.uniform(0, 12)])

    def turn(self, index: int) -> None:
        core = self.cores[index]
        looks = self.must_look[index] or core.holder != core.me
        action = core.action(self.clock(index))
        call = ("look", None) if looks else ("claim", core.claim(T0))
        if looks and self.luck.random() < 0.5 and action in {Action.TAKE, Action.CREATE}:
            call = ("create" if action is Action.CREATE else "claim", core.claim(T0))
        number = next(self.order)
        self.after(self.delay(), self.arrive, index, call, number, self.clock(index))
        self.waiting[index] = number
        self.pause(index, self.timing.call_s, self.give_up, index, number)

    def give_up(self, index: int, number: int) -> None:
        if self.waiting.get(index) == number:
            self.must_look[index] = True
            del self.waiting[index]
            self.pause(index, self.timing.poll_s, self.turn, index)

    def arrive(self, index: int, call, number: int, sent: float) -> None:
        kind, body = call
        try:
            if kind == "look":
                answer = self.server.lease
            else:
                act = self.server.create if kind == "create" else self.server.patch
                answer = act(body)
        except kube.KubeError as error:
            answer = error
        if self.luck.random() > 0.1:
            self.after(self.delay(), self.answered, index, kind, answer, number, sent)

    def answered(self, index: int, kind: str, answer, number: int, sent: float) -> None:
        if self.waiting.get(index) != number:
            return
        del self.waiting[index]
        core, now = self.cores[index], self.clock(index)
        self.must_look[index] = isinstance(answer, kube.KubeError)
        if not self.must_look[index]:
            if kind == "look":
                core.observe(now, answer)
            else:
                core.granted(sent, now, answer)
                self.check(index)
        if core.is_leader(now) and self.luck.random() < 0.05:
            self.release(index)
        wait = self.timing.renew_s if core.is_leader(now) else self.timing.poll_s
        self.pause(index, wait, self.turn, index)

    def release(self, index: int) -> None:
        self.cores[index].stand_down()
        with contextlib.suppress(kube.KubeError):
            self.server.patch(self.cores[index].release(T0))

    def check(self, index: int) -> None:
        leaders = [
            core.me for other, core in enumerate(self.cores) if core.is_leader(self.clock(other))
        ]
        assert len(leaders) <= 1, (self.now, leaders)
        if leaders and self.elected[-1:] != [index]:
            self.elected.append(index)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_there_are_never_two_leaders(seed):
    Simulation(seed, Timing()).run(300)


def test_the_simulation_does_elect_and_does_change_leaders():
    changes = 0
    for seed in range(30):
        simulation = Simulation(seed, Timing())
        simulation.run(300)
        changes += len(simulation.elected)
    assert changes > 60


def test_the_check_of_two_leaders_can_fail():
    """With a fence as late as the Lease's end the property must break: clocks differ."""
    assert any(_breaks(seed, Timing(fence_s=5.9)) for seed in range(300))


def _breaks(seed: int, timing: Timing) -> bool:
    try:
        Simulation(seed, timing).run(300)
    except AssertionError:
        return True
    return False
