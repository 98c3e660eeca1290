"""Names that were used once, in bounded memory."""

from __future__ import annotations

import random

from daemon.forgotten import MAX_FORGOTTEN, Forgotten


def test_names_are_kept_up_to_a_bound_the_oldest_go_first() -> None:
    names = [f"n{number}" for number in range(50)]
    random.Random(7).shuffle(names)
    kept = Forgotten(most=20)
    assert names[0] not in kept
    for count, name in enumerate(names, start=1):
        kept.add(name)
        kept.add(name)
        there = [one for one in names if one in kept]
        assert there == names[max(0, count - 20) : count]


def test_they_are_compact() -> None:
    kept = Forgotten()
    for number in range(2000):
        kept.add(f"an-exec-id-of-some-length-{number}")
    bytes_each = sum(a.itemsize * len(a) for a in (kept._sorted, kept._order)) / 2000
    assert bytes_each * MAX_FORGOTTEN <= 2_000_000


def test_a_hundred_thousand_are_kept_exactly() -> None:
    kept = Forgotten()
    for number in range(MAX_FORGOTTEN + 10):
        kept.add(str(number))
    assert "9" not in kept
    assert "10" in kept
    assert str(MAX_FORGOTTEN + 9) in kept
