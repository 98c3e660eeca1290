"""Who belongs to a command, by the kernel's table alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from daemon import (
    kernel,
    outcome,
    stop,
    tree,
)
from tests.unit.daemon.harness import wait_until

if TYPE_CHECKING:
    import pytest


def row(pid: int, parent: int, session: int = 1, born: float = 100.0) -> tree.Row:
    """A process."""
    return tree.Row(pid, parent, session, born)


class TestTree:
    life = tree.Life(10, b"mine", 50.0, None)
    me = os.getpid()

    def find(
        self,
        *rows: tree.Row,
        others: tuple[tree.Life, ...] = (),
        known: dict[int, float] | None = None,
        tags: dict[int, bytes] | None = None,
    ) -> set[int]:
        marks = tags or {}
        return tree.members({r.pid: r for r in rows}, self.life, others, known or {}, marks.get)

    def test_descendants_sessions_and_tags(self) -> None:
        rows = [row(10, self.me, 10), row(11, 10, 10), row(12, 11, 12), row(13, 1, 10)]
        rows += [row(14, 1, 14), row(15, 14, 15), row(16, 1, 12), row(17, 1, 17)]
        assert self.find(*rows, tags={14: b"mine", 17: b"other"}) == {10, 11, 12, 13, 14, 15, 16}

    def test_an_orphan_without_marks_is_ours_when_nobody_else_ran(self) -> None:
        orphan = row(20, self.me, 20)
        assert self.find(orphan) == {20}
        ended = tree.Life(30, b"other", 10.0, 40.0)
        assert self.find(orphan, others=(ended,)) == {20}
        running = tree.Life(30, b"other", 10.0, None)
        assert self.find(orphan, others=(running,)) == set()
        overlapping = tree.Life(30, b"other", 60.0, 110.0)
        assert self.find(orphan, others=(overlapping,)) == set()
        later = tree.Life(30, b"other", 120.0, None)
        assert self.find(orphan, others=(later,)) == {20}

    def test_an_orphan_that_took_its_mark_off_is_spared_for_no_other(self) -> None:
        rows = {20: row(20, self.me, 20), 21: row(21, self.me, 21)}
        running = tree.Life(30, b"other", 10.0, None)

        def find(other: tree.Life) -> set[int]:
            return tree.members(rows, self.life, [other], {}, {20: b"x"}.get, {20}.__contains__)

        assert find(running) == {20}
        assert find(running._replace(tag=b"")) == set()

    def test_what_is_only_just_starting_is_no_orphan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        us = row(self.me, 1, 5)
        assert self.find(us, row(20, self.me, 5)) == set()
        assert self.find(us, row(20, self.me, 20)) == {20}
        monkeypatch.setattr(tree, "_is_starting", {20}.__contains__)
        assert self.find(us, row(20, self.me, 20)) == set()

    def test_an_orphan_from_before_is_not_ours(self) -> None:
        assert self.find(row(20, self.me, 20, born=40.0)) == set()

    def test_an_orphan_in_anothers_session_is_not_ours(self) -> None:
        ended = tree.Life(30, b"other", 10.0, 40.0)
        assert self.find(row(20, self.me, 30), others=(ended,)) == set()
        assert self.find(row(30, self.me, 30), others=(ended,)) == set()

    def test_who_was_known_stays_known(self) -> None:
        rows = (row(20, 1, 20), row(21, 20, 20))
        assert self.find(*rows, known={20: 100.0, 99: 100.0}) == {20, 21}

    def test_who_got_the_number_of_one_that_was_known_is_another(self) -> None:
        assert self.find(row(20, 1, 20), row(21, 20, 20), known={20: 99.0}) == set()

    def test_who_got_the_number_of_an_ended_session_is_another(self) -> None:
        ended = self.life._replace(ended=60.0)
        rows = {20: row(20, 1, 10, born=200.0), 21: row(21, 1, 10, born=55.0)}
        assert tree.members(rows, ended, (), {}, {21: b"mine"}.get) == {21}

    def test_rows_of_odd_names(self) -> None:
        script = "exec > /proc/self/comm; printf 'a) R 1 (b'; kill -STOP $$"
        with subprocess.Popen(["bash", "-c", script], start_new_session=True) as child:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert ") R 1 (" in Path(f"/proc/{child.pid}/stat").read_text()
            found = (tree.snapshot() or {})[child.pid]
            child.kill()
        assert (found.parent, found.session) == (os.getpid(), child.pid)
        assert abs(found.born - tree.now()) < 20

    def test_without_proc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_path: str) -> list[str]:
            raise FileNotFoundError

        monkeypatch.setattr(os, "listdir", refuse)
        assert tree.snapshot() is None
        kernel.hide_descriptors()

    def test_what_cannot_be_read_has_no_tag(self) -> None:
        assert tree.tag_of(2**22) is None
        assert tree.tag_of(os.getpid()) is None


class Lonely:
    """A process of which /proc says nothing."""

    is_terminal = False

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.end: object | None = None
        self.life = tree.Life(pid, b"x", 0.0, None)


def test_a_tree_is_ended_blindly_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "snapshot", lambda: None)
    argv = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done"]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        lonely = Lonely(child.pid)
        ending = stop.Stop(lonely, list, 0.0)  # type: ignore[arg-type]
        ending.step(0.0)
        ending.step(1.0)
        assert not ending.is_done
        ending.step(5.0)
        assert child.wait(5) == -9
        lonely.end = object()
        assert wait_until(lambda: ending.step(5.1) or ending.is_done)


def test_what_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "snapshot", lambda: {7: row(7, 1, 7)})
    monkeypatch.setattr(stop, "send", lambda _pid, _number: None)
    ending = stop.Stop(Lonely(7), list, 0.0)  # type: ignore[arg-type]
    ending.step(0.0)
    ending.step(5.0)
    assert not ending.is_done
    ending.step(7.1)
    assert ending.is_done
    assert outcome.exit_of(Lonely(7)) == (137, 9)  # type: ignore[arg-type]
