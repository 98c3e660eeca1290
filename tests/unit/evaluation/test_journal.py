"""The journal is taken up where a run ended, also one that ended in the middle of a line."""

from __future__ import annotations

import errno
import json
import os

import pytest

from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.journal import NAME, Journal
from tests.unit.evaluation.samples import record


def write(place, *records) -> None:
    with Journal(place) as journal:
        for one in records:
            journal.append(one)


def read(place) -> list:
    with Journal(place) as journal:
        return list(journal.records.values())


def test_what_was_kept_is_there_again(tmp_path):
    first = record("unresolved", failed={"FAIL_TO_PASS": ("a",)}, attempts=({"reason": "evicted"},))
    last = record("resolved", repetition=1, facts={"wall_s": 1.5}, log={"bytes": 3})
    write(tmp_path, first)
    write(tmp_path, last)
    assert read(tmp_path) == [first, last]
    assert (tmp_path / NAME).read_text().count("\n") == 3


def test_the_latest_of_an_evaluation_counts(tmp_path):
    write(tmp_path, record("infrastructure", reason="evicted"), record("resolved"))
    assert [one.outcome for one in read(tmp_path)] == ["resolved"]


@pytest.mark.parametrize("rest", [b'{"record": {"key"', b"\xff\x00"])
def test_a_line_that_was_cut_off_is_not_there(tmp_path, rest):
    write(tmp_path, record())
    with (tmp_path / NAME).open("ab") as file:
        file.write(rest)
    write(tmp_path, record(repetition=1))
    assert [one.key.repetition for one in read(tmp_path)] == [0, 1]


def test_a_line_that_is_none_is_named(tmp_path):
    write(tmp_path, record())
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"record": {}}\n')
    with pytest.raises(TaskListError, match="line 3 is no line"):
        read(tmp_path)
    # It is let go of all the same.
    (tmp_path / NAME).write_text("")
    assert read(tmp_path) == []


def test_another_format_is_refused(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"format": 2}) + "\n")
    with pytest.raises(TaskListError, match="its format is 2"):
        read(tmp_path)


def test_one_run_at_a_time_has_a_directory(tmp_path):
    with (
        Journal(tmp_path) as journal,
        pytest.raises(TaskListError, match="another run has this directory"),
        Journal(tmp_path),
    ):
        pass
    journal = Journal(tmp_path)
    with journal:
        assert journal.records == {}


def test_members_of_later_versions_are_passed_over(tmp_path):
    body = record().to_json() | {"later": 1}
    (tmp_path / NAME).write_text(f'{{"format": 1}}\n{json.dumps({"record": body})}\n')
    assert read(tmp_path) == [record()]


def test_a_line_that_could_not_be_written_is_not_there(tmp_path, monkeypatch):
    """A full disk takes half of it, and there is room again for the next one."""
    write = os.write
    left = [20]

    def full(fd: int, data: bytes) -> int:
        if not left:
            return write(fd, data)
        if (most := left[0]) == 0:
            left.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] = 0
        return write(fd, data[:most])

    with Journal(tmp_path) as journal:
        journal.append(record())
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space"):
                journal.append(record(repetition=1))
            assert record(repetition=1).key not in journal.records
            journal.append(record(repetition=2))
    assert [one.key.repetition for one in read(tmp_path)] == [0, 2]
