"""How many placeholders a pool should have: the rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.autoscale import (
    AHEAD_S,
    HOLD_DOWN_S,
    SMOOTH_S,
    WAVE,
    Demand,
    Rate,
    Window,
    target,
    wanted,
)

counts = st.integers(0, 5000)
demands = st.builds(Demand, counts, counts, counts, counts, st.floats(0, 200))


def demand(**changes) -> Demand:
    values = {"free": 0, "in_use": 0, "waiting": 0, "forecast": 0, "rate": 0.0} | changes
    return Demand(**values)


def test_without_demand_the_least_is_wanted():
    assert wanted(demand(), 4) == 4
    assert wanted(demand(rate=0.01), 4) == 4
    assert wanted(demand(), 0) == 0


def test_who_waits_what_is_reserved_and_the_claims_of_the_next_seconds_are_wanted():
    assert wanted(demand(waiting=100, forecast=20), 4) == 120
    assert wanted(demand(rate=3.0), 4) == 3 * AHEAD_S
    assert wanted(demand(waiting=3), 4) == 4


def test_up_at_once_in_waves():
    assert target(demand(), 300, 4, 10_000) == 300
    assert target(demand(), 3000, 4, 10_000) == WAVE
    assert target(demand(free=WAVE), 3000, WAVE, 10_000) == 2 * WAVE
    # Half of the wave is up: half of one more may come.
    assert target(demand(free=500), 3000, WAVE, 10_000) == WAVE + 500


def test_a_wave_lowers_nothing():
    assert target(demand(free=10), 5000, 4000, 10_000) == 4000


def test_at_the_maximum_claims_lower_it():
    assert target(demand(in_use=90), 50, 50, 100) == 10
    assert target(demand(in_use=100), 50, 10, 100) == 0
    assert target(demand(in_use=150), 50, 0, 100) == 0


def test_what_was_wanted_once_stays_wanted_for_a_while():
    window = Window(0.0, 10)
    assert window.add(1.0, 4) == 10
    assert window.add(HOLD_DOWN_S, 4) == 10
    assert window.add(HOLD_DOWN_S + 1.0, 50) == 50
    assert window.add(HOLD_DOWN_S * 2, 4) == 50
    assert window.add(HOLD_DOWN_S * 2 + 1.1, 4) == 4


def test_the_rate_follows_and_fades():
    rate = Rate(0.0)
    for second in range(1, 61):
        rate.add(float(second), 5)
    assert rate.value == pytest.approx(5.0, rel=0.01)
    assert rate.add(60.0, 9) == rate.value
    for second in range(61, 121):
        rate.add(float(second), 0)
    assert rate.value < 5.0 * math.exp(-55 / SMOOTH_S)


@given(demands, counts, counts, counts)
def test_never_over_the_maximum_and_never_down_but_to_what_was_wanted(one, most_wanted, now, most):
    to = target(one, most_wanted, now, most)
    assert to >= 0
    assert to + one.in_use <= max(most, one.in_use)
    if to < now:
        assert to == min(most_wanted, max(0, most - one.in_use))
    if to > now:
        assert to <= most_wanted
        assert to <= max(now, one.free + WAVE)


@given(demands, counts)
def test_never_under_the_least(one, least):
    assert wanted(one, least) >= least


@given(st.lists(st.tuples(st.floats(0, 100), counts), max_size=60))
def test_the_window_is_the_most_of_the_last_while(steps):
    window, now, seen = Window(0.0, 7), 0.0, [(0.0, 7)]
    for pause, value in steps:
        now += pause
        seen.append((now, value))
        expected = max(value for at, value in seen if now - at <= HOLD_DOWN_S)
        assert window.add(now, value) == expected
