"""Quantities as the API server reads and writes them (k8s.io/apimachinery/pkg/api/resource)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import quantities


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("2", 2000), ("500m", 500), ("0.5", 500), (".5", 500), ("2.", 2000), (2, 2000), (0.25, 250), ("1e3", 1_000_000),
        ("1E-3", 1), ("1k", 1_000_000), ("100u", 1), ("1n", 1), ("0", 0), ("0.0001", 1), (1e-05, 1),
    ],
)  # fmt: skip
def test_processors(value, amount):
    assert quantities.millicores(value) == amount


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("128974848", 128974848), ("129e6", 129_000_000), ("129M", 129_000_000), ("123Mi", 123 * 1024**2),
        ("4Gi", 4 * 1024**3), ("1.5Gi", 3 * 1024**3 // 2), ("128974848000m", 128974848), ("1Ti", 1024**4),
        (4096, 4096), ("1Ei", 1024**6), ("1E", 10**18), ("0.1Ki", 103),
    ],
)  # fmt: skip
def test_memory(value, amount):
    assert quantities.bytes_of(value) == amount


@pytest.mark.parametrize(
    "value",
    ["", " 1", "1 ", "-1", "+1", "1ki", "1mi", "1Gib", "1GB", "Gi", ".", "1e", "1e1000", "1e3Ki", "0x10", "1,5", "1_000",
     "٣", "nan", "inf", float("nan"), float("inf"), -1, True, None, [], {}, "1" * 33, "1\n", pytest.param(10**5000, id="huge")],
)  # fmt: skip
def test_what_is_none(value):
    assert quantities.millicores(value) is None
    assert quantities.bytes_of(value) is None


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_what_is_written_is_read_again(amount):
    assert quantities.millicores(quantities.cpu_text(amount)) == amount
    assert quantities.bytes_of(quantities.memory_text(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0"), (1536 * 1024**2, "1536Mi"), (4 * 1024**3, "4Gi"), (1000, "1000")]
)
def test_memory_is_written_in_the_largest_whole_unit(amount, text):
    assert quantities.memory_text(amount) == text
