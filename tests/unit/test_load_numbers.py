"""Numbers of a load test: what is added up in any order, on any number of workers, is the same."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import histogram
from loadtest.histogram import Histogram
from loadtest.record import Record

TIMES = st.floats(min_value=0.02, max_value=600_000, allow_nan=False)
SHARES = st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999, 1.0])


def of(values):
    found = Histogram()
    for value in values:
        found.add(value)
    return found


@given(st.lists(TIMES, min_size=1, max_size=200), SHARES)
def test_a_percentile_is_the_value_of_that_rank_within_a_hundredth(values, share):
    exact = sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]
    told = of(values).percentile(share)
    assert told == pytest.approx(exact, rel=0.0101)
    assert told <= max(values)


@given(st.lists(st.lists(TIMES, max_size=40), min_size=1, max_size=6), st.randoms(), SHARES)
def test_parts_add_up_to_the_whole_in_any_order(parts, dice, share):
    whole = of([value for part in parts for value in part])
    histograms = [of(part) for part in parts]
    dice.shuffle(histograms)
    merged = Histogram()
    for one in histograms:
        # As it comes from a worker.
        merged.merge(Histogram.of(json.loads(json.dumps(one.document()))))
    assert merged.counts == whole.counts
    assert merged.count == sum(map(len, parts))
    assert merged.percentile(share) == whole.percentile(share)
    assert merged.total_ms == pytest.approx(whole.total_ms)


@given(st.lists(TIMES, min_size=1, max_size=50))
def test_percentiles_never_fall(values):
    found = of(values)
    told = [found.percentile(share / 100) for share in range(1, 101)]
    assert told == sorted(told)


def test_of_nothing_nothing_is_told():
    assert Histogram().percentile(0.5) is None
    assert Histogram().mean_ms is None


@given(TIMES)
def test_a_bucket_holds_what_falls_into_it(value):
    middle = histogram.middle_of(histogram.bucket_of(value))
    assert middle == pytest.approx(value, rel=0.0101)


CALLS = st.sampled_from(["create", "exec"])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("took"), CALLS, TIMES, st.integers(100, 110)),
        st.tuples(st.just("stage"), CALLS, TIMES, st.integers(100, 110)),
        st.tuples(st.just("failed"), CALLS, st.sampled_from(["capacity", "oom"]), st.just("text"), st.integers(100, 110)),
        st.tuples(st.just("retried"), CALLS, st.sampled_from(["unreachable"])),
        st.tuples(st.just("got"), st.integers(0, 30).map(str), st.sampled_from(["warm", "cold"]), st.integers(100, 110)),
    ),
    max_size=60,
)  # fmt: skip


def told(record):
    """Sums of floats depend on the order of the last bit."""
    document = record.document()
    for table in (document["calls"], document["stages"]):
        for slots in table.values():
            for one in slots.values():
                one["total_ms"] = pytest.approx(one["total_ms"])
    return document


@given(st.lists(EVENTS, min_size=1, max_size=4), st.integers(1, 5))
def test_what_workers_drain_and_send_is_what_they_met(parts, each):
    whole, master = Record(), Record()
    for events in parts:
        worker = Record()
        for number, (name, *arguments) in enumerate(events):
            getattr(whole, name)(*arguments)
            getattr(worker, name)(*arguments)
            if number % each == 0:
                master.merge(Record.of(json.loads(json.dumps(worker.drain().document()))))
        master.merge(Record.of(worker.drain().document()))
        assert worker.document() == Record().document()
    assert told(whole) == master.document()


def test_a_sandbox_that_two_workers_were_given_is_a_double():
    one, two = Record(), Record()
    one.got("a", "warm", 1)
    two.got("a", "warm", 1)
    two.got("b", "warm", 1)
    one.merge(two)
    assert (one.doubles, len(one.handed)) == (1, 2)


def test_errors_are_counted_by_reason_and_the_first_text_of_each_is_kept():
    record = Record()
    record.failed("exec", "oom", "first", 1.5)
    record.failed("exec", "oom", "second", 2.5)
    record.failed("create", "capacity", "x" * 1000, 2.5)
    assert record.failures() == {"oom": 2, "capacity": 1}
    assert record.failures("exec") == {"oom": 2}
    assert record.texts == {"oom": "first", "capacity": "x" * 300}
