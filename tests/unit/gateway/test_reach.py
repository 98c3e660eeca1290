"""The one limit for all that is tried on behalf of a call: pure arithmetic."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import reach
from gateway.config import Settings
from sandman import names
from sandman.errors import BadRequestError

WITHIN = names.HEADER_WITHIN.lower().encode()
LOSS_S = Settings().loss_s
SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([], reach.REACH_S),
        ([(WITHIN, b"8.5")], 8.5),
        ([(b"x", b"1"), (WITHIN, b"1e9")], reach.REACH_S),
        ([(WITHIN, b"inf")], reach.REACH_S),
        ([(WITHIN, b"0")], reach.LEAST_S),
    ],
)
def test_a_caller_may_ask_for_less_time_and_not_for_more(given, seconds):
    assert reach.until(100.0, given) == 100.0 + seconds


@pytest.mark.parametrize("text", [b"", b"soon", b"-1", b"nan", b"\xff", b"1 2"])
def test_a_limit_that_makes_no_sense_is_refused(text):
    with pytest.raises(BadRequestError) as caught:
        reach.until(0.0, [(WITHIN, text)])
    assert caught.value.field == names.HEADER_WITHIN


@given(SECONDS, SECONDS, st.none() | SECONDS, st.booleans())
def test_whatever_was_spent_nobody_hears_later_than_the_limit(call, spent, silent, sent):
    """From the call, or from the last sign of a sandbox that it had reached."""
    until = reach.until(call, [])
    now = call + spent
    since = None if silent is None else now - silent
    assert now <= reach.search_until(now, until, LOSS_S, since, sent=sent) <= now + LOSS_S
    dialled = reach.dial_until(call, until, LOSS_S)
    end = reach.search_until(dialled, until, LOSS_S, call, sent=False)
    assert end - call == pytest.approx(reach.REACH_S)
    begin = now - reach.SILENCE_S
    end = reach.search_until(now, until, LOSS_S, begin, sent=True)
    assert end - begin <= reach.REACH_S + 1e-6 * max(1.0, now)


@given(st.floats(0, reach.REACH_S))
def test_of_little_time_half_is_for_the_reason(left):
    dialled = reach.dial_until(0.0, left, LOSS_S)
    assert left / 2 <= dialled <= left
    assert reach.dial_until(left + 1, left, LOSS_S) == left + 1


def test_silence_is_told_from_a_word_of_the_other_end():
    def broken(cause: OSError) -> Exception:
        error, between = ValueError("outer"), ValueError("between")
        error.__cause__, between.__context__ = between, cause
        return error

    for number in (errno.ETIMEDOUT, errno.EHOSTUNREACH):
        assert reach.last_sign(broken(OSError(number, "x")), 50.0) == 50.0 - reach.SILENCE_S
    for number in (errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE):
        assert reach.last_sign(broken(OSError(number, "x")), 50.0) is None
