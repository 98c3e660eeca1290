"""Which fault earns another attempt: bounded, and never free for what the sandbox may have caused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import errors, problems, wire
from sandman.evaluation import faults
from sandman.wire import ExecResult

LOST = faults.infrastructure("evicted", "")
OWN = faults.own("oom", "")
WRONG = faults.settings("grading", "")


def test_each_kind_has_its_own_bound():
    assert faults.again([LOST] * 3, retries=3)
    assert not faults.again([LOST] * 4, retries=3)
    assert faults.again([OWN], own_retries=1)
    assert not faults.again([OWN] * 2, own_retries=1)
    assert not faults.again([OWN], own_retries=0)
    assert faults.again([OWN, LOST, LOST, LOST], retries=3, own_retries=1)
    assert not faults.again([LOST, LOST, OWN, LOST, OWN], retries=3, own_retries=1)
    assert not faults.again([WRONG])
    assert not faults.again([])


@given(st.lists(st.sampled_from([LOST, OWN, WRONG])), st.integers(0, 5), st.integers(0, 5))
def test_whatever_comes_the_attempts_are_bounded(stream, retries, own_retries):
    met: list[faults.Fault] = []
    for fault in stream:
        met.append(fault)
        if not faults.again(met, retries, own_retries):
            break
    assert len(met) <= retries + own_retries + 1
    assert sum(fault is OWN for fault in met) <= own_retries + 1


def test_a_fault_is_whose_the_error_says():
    evicted = faults.of(errors.EvictedError("for its own disk", cause=errors.SANDBOX))
    assert (evicted.reason, evicted.cause) == ("evicted", "sandbox")
    assert faults.of(errors.EvictedError()).cause == "infrastructure"
    assert faults.of(errors.QuotaError("full", retry_after=5.0)).retry_after == 5.0


def test_every_reason_is_reported_for_what_it_is():
    """An error of the caller that time does not mend is one of the run's settings; nothing is ever a failed test."""
    for reason, cls in problems.by_reason().items():
        if cls.__module__ != errors.__name__:
            continue
        fault = faults.of(cls("x"))
        expected = cls.cause != errors.CALLER or cls.retryable
        assert fault.is_infrastructure == expected, reason
        assert faults.again([fault]) == expected, reason
    assert faults.of(errors.ImageNotFoundError("x")).is_infrastructure is False
    assert faults.of(errors.QuotaError("x")).is_infrastructure


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (ExecResult(1), None),
        (ExecResult(0, oom_killed=True), None),
        (ExecResult(137, signal=9, oom_killed=True), "sandbox"),
        (ExecResult(124, timed_out=True), "sandbox"),
        (ExecResult(126, start_error=wire.NO_ROOM), "sandbox"),
        (ExecResult(126, start_error=wire.BUSY), "infrastructure"),
        (ExecResult(127, start_error=wire.NOT_FOUND), "caller"),
        (ExecResult(126, start_error=wire.TOO_LONG), "caller"),
    ],
)
def test_a_command_that_did_not_come_to_its_end_says_nothing(result, cause):
    found = faults.of_result(result, "git")
    assert (found and found.cause) == cause


def test_before_the_patch_is_there_nothing_is_its_doing():
    own = errors.EvictedError("for its own disk", cause=errors.SANDBOX)
    assert faults.of(own).cause == "sandbox"
    assert faults.of(own, begun=False).cause == "infrastructure"
    assert faults.of(errors.ImageNotFoundError("x"), begun=False).cause == "caller"
