"""The log of one stream: bounded, exact at its limit, readable by cursor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.outputs import OutputLog

pieces = st.lists(st.binary(max_size=40), max_size=30)


@given(pieces, st.integers(0, 100))
def test_head_tail_and_count(written: list[bytes], limit: int) -> None:
    log = OutputLog(limit)
    for piece in written:
        log.append(piece)
    whole = b"".join(written)
    assert log.total == len(whole)
    assert log.is_truncated == (len(whole) > limit)
    if len(whole) <= limit:
        assert log.kept == whole
    else:
        tail = limit // 2
        assert log.kept == whole[: limit - tail] + (whole[-tail:] if tail else b"")


@given(pieces, st.integers(0, 60), st.integers(1, 7))
def test_a_cursor_sees_what_is_kept_and_learns_what_is_not(
    written: list[bytes], limit: int, most: int
) -> None:
    log = OutputLog(limit)
    for piece in written:
        log.append(piece)
    cursor, seen, skipped = 0, b"", 0
    while cursor < log.total:
        found = log.read(cursor, most)
        assert found.cursor == cursor + found.skipped + len(found.data)
        assert len(found.data) <= most
        if found.cursor == cursor:
            break
        cursor, seen, skipped = found.cursor, seen + bytes(found.data), skipped + found.skipped
    assert seen == log.kept
    assert skipped + len(seen) == log.total


@given(st.lists(st.binary(max_size=64), max_size=50))
def test_a_reader_at_each_write_misses_nothing(written: list[bytes]) -> None:
    log = OutputLog(128)
    cursor, seen = 0, b""
    for piece in written:
        log.append(piece)
        while cursor < log.total:
            found = log.read(cursor, 64)
            assert found.skipped == 0
            cursor, seen = found.cursor, seen + bytes(found.data)
            found.data.release()
    assert seen == b"".join(written)
