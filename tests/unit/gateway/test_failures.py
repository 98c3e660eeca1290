"""How many tokens that nobody knows an address may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import failures
from gateway.failures import BURST, EVERY_S, Failures, source_of


def test_a_burst_is_free_and_then_one_each_while():
    one = Failures()
    assert [one.count("a", 100.0) for _ in range(BURST)] == [0] * BURST
    assert one.count("a", 100.0) == EVERY_S
    assert one.wait("a", 100.0) == EVERY_S
    # Who comes again when he was told to is not refused again.
    assert one.count("a", 100.0 + EVERY_S) == 0
    assert one.count("a", 100.0 + EVERY_S) == EVERY_S


def test_another_address_is_not_held_up():
    one = Failures()
    for _ in range(10 * BURST):
        one.count("a", 0.0)
    assert (one.wait("b", 0.0), one.count("b", 0.0)) == (0, 0)


def test_who_goes_on_is_not_held_up_for_longer():
    one = Failures()
    for _ in range(10_000):
        one.count("a", 0.0)
    assert one.wait("a", EVERY_S) == 0


def test_all_is_forgotten_after_a_while():
    one = Failures()
    for _ in range(BURST):
        one.count("a", 0.0)
    later = BURST * EVERY_S
    assert [one.count("a", later) for _ in range(BURST)] == [0] * BURST


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(failures, "SOURCES_MAX", 3)
    one = Failures()
    for number in range(10):
        one.count(str(number), 0.0)
    assert len(one) == 3


@given(st.lists(st.floats(0, 20), max_size=200))
def test_no_more_fail_than_the_burst_and_the_rate_allow(pauses):
    one, now, free = Failures(), 0.0, 0
    for pause in pauses:
        now += pause
        free += one.count("a", now) == 0
    assert free <= BURST + now / EVERY_S + 1


@given(st.lists(st.floats(0, 20), max_size=60), st.floats(0, 5))
def test_the_wait_is_honest(pauses, pause):
    one, now = Failures(), 0.0
    for each in pauses:
        now += each
        one.count("a", now)
    now += pause
    wait = one.wait("a", now)
    assert wait == int(wait)
    assert one.count("a", now + wait) == 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "unknown"),
        ("", "unknown"),
        ("nonsense", "unknown"),
    ],
)
def test_an_address_stands_for_who_can_choose_it(address, source):
    assert source_of(address) == source
