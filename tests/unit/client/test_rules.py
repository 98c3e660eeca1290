"""The pure parts: patience, head and tail, faults."""

from __future__ import annotations

import logging
import pickle
import socket

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandman
from sandman import errors, names, problems, wire
from sandman._core import faults
from sandman._core.output import HeadTail
from sandman._core.retry import (
    ANSWER_S,
    LONGEST_PAUSE_S,
    WARNING_EACH_S,
    Patience,
    Repeat,
    Voice,
)
from sandman.client import CommandError, FileInfo, Stderr, Stdout


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_head_and_tail(pieces: list[bytes], limit: int) -> None:
    kept = HeadTail(limit)
    kept._room = limit + 8  # cut often
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces)
    tail = limit // 2
    expected = whole if len(whole) <= limit else whole[: limit - tail] + whole[len(whole) - tail :]
    assert kept.value() == expected
    assert (kept.total, kept.truncated) == (len(whole), len(whole) > limit)


@given(
    st.sampled_from(Repeat), st.booleans(), st.sampled_from(list(problems.by_reason().values())),
    st.floats(0, 0.999), st.none() | st.floats(0, 100),
)  # fmt: skip
def test_patience(repeat, sent, kind, dice, retry_after) -> None:
    patience = Patience(repeat, until=50.0)
    error = kind("x", retry_after=retry_after)
    now = 0.0
    while (pause := patience.pause(error, sent=sent, now=now, dice=dice)) is not None:
        is_unknown = repeat is Repeat.SAFE and kind is errors.OutcomeUnknownError
        assert error.retryable or is_unknown
        assert not (sent and repeat is Repeat.UNSENT)
        assert pause >= (retry_after or 0)
        assert 0 < pause <= max(LONGEST_PAUSE_S, 1.25 * (retry_after or 0))
        now += pause
        assert now < 50


def out_of_reach(silent_s: object) -> errors.UnreachableError:
    return errors.UnreachableError("x", facts={names.FACT_SILENT_S: silent_s})


def test_patience_with_a_sandbox_counts_from_when_it_was_last_heard_of() -> None:
    patience = Patience.begin(Repeat.SAFE, now=100.0, whole_s=30.0)
    assert patience.left(100.0) == 30.0 - ANSWER_S
    assert patience.pause(out_of_reach(2.0), sent=True, now=100.0, dice=0.0) is not None
    assert patience.until == 128.0
    # What is left is too little for another look that would tell more.
    assert patience.pause(out_of_reach(2.0), sent=True, now=125.0, dice=0.0) is None
    assert patience.pause(errors.UnreachableError("x"), sent=True, now=125.0, dice=0.0) is not None
    assert patience.left(1000.0) == 0.0


@pytest.mark.parametrize("said", [None, "26", [1], {}])
def test_a_silence_that_makes_no_sense_is_passed_over(said: object) -> None:
    patience = Patience.begin(Repeat.SAFE, now=0.0, whole_s=30.0)
    assert patience.pause(out_of_reach(said), sent=True, now=0.0, dice=0.0) is not None
    assert patience.until == 30.0


def test_pauses_double_up_to_the_longest() -> None:
    patience = Patience(Repeat.SAFE, until=1e9)
    error = errors.CapacityError("x")
    pauses = [patience.pause(error, sent=True, now=0, dice=0.0) for _ in range(30)]
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert set(pauses[10:]) == {LONGEST_PAUSE_S / 2}


def test_a_command_error_is_one_of_the_tree_and_survives_pickling() -> None:
    result = wire.ExecResult(137, signal=9, oom_killed=True, stderr=b"x" * 5000 + b"last")
    error = CommandError.of("make", result, "box-1")
    assert isinstance(error, errors.SandmanError)
    assert "want of memory (exit code 137)" in str(error)
    assert str(error).endswith("last")
    assert len(str(error)) < 2200
    again = pickle.loads(pickle.dumps(error))
    assert (again.result, again.sandbox, str(again)) == (result, "box-1", str(error))
    # A peer that names these reasons makes an error, not a crash.
    for reason in ("command_failed", "configuration"):
        assert problems.from_problem({"reason": reason, "detail": "d"}).detail == "d"


def test_events_of_different_streams_differ() -> None:
    assert Stdout(b"x") != Stderr(b"x")


def test_a_file_answer_may_say_its_mode_in_octal_or_as_a_number() -> None:
    assert FileInfo.from_json({"mode": "0755"}).mode == 0o755
    assert FileInfo.from_json({"mode": 420}).mode == 0o644


@pytest.mark.parametrize(
    ("error", "says", "lasting"),
    [
        (httpx.ConnectTimeout("x"), "does not accept connections in time", False),
        (httpx.ReadTimeout("x"), "fell silent", False),
        (httpx.RemoteProtocolError("odd"), "broke: odd", False),
        (httpx.ReadError(""), "broke: ReadError", False),
    ],
)
def test_failures_of_the_way(error: Exception, says: str, lasting: bool) -> None:
    fault = faults.from_transport(error, "https://g")
    assert says in str(fault)
    assert fault.retryable is not lasting


def test_a_resolvers_answer_is_found_among_causes_and_groups() -> None:
    def connect_error(inner: BaseException) -> httpx.ConnectError:
        error = httpx.ConnectError("all attempts failed")
        error.__cause__ = ExceptionGroup("attempts", [OSError("x"), inner])
        return error

    never = faults.from_transport(
        connect_error(socket.gaierror(socket.EAI_NONAME, "no")), "https://g"
    )
    later = faults.from_transport(
        connect_error(socket.gaierror(socket.EAI_AGAIN, "no")), "https://g"
    )
    assert (never.retryable, later.retryable) == (False, True)


def test_names_are_lazy() -> None:
    assert sandman.Client is sandman.client.Client
    assert sandman.SyncClient is sandman.sync.Client


def test_a_fault_that_meets_many_calls_is_one_warning() -> None:
    voice, fault = Voice(), errors.UnreachableError("x")
    levels = [voice.level(fault, now) for now in (0.0, 0.0, WARNING_EACH_S - 0.1, WARNING_EACH_S)]
    assert levels == [logging.WARNING, logging.INFO, logging.INFO, logging.WARNING]
    assert Voice().level(errors.CapacityError("full"), 0.0) == logging.INFO
