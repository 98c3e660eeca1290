"""Killing what forks faster than it is found."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from daemon import stop, tree
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, processes_with, wait_until
from tests.unit.daemon.test_init import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would be sent: no test may send one to everybody. A daemon of the test before may be ending its
    commands still, in a thread of its own: what that sends is sent. And who is at rest on this machine, beside
    other tests, is none of these tests' business."""
    found: list[tuple[int, int]] = []
    here, really = threading.get_ident(), stop.send

    def send(pid: int, number: int) -> None:
        if threading.get_ident() == here:
            found.append((pid, number))
        else:
            really(pid, number)

    monkeypatch.setattr(stop, "send", send)
    monkeypatch.setattr(tree, "stopped", set)
    return found


class Looks(stop.Look):
    """What is found, look after look; then nothing. `unsure`: so many of them were no proof."""

    def __init__(self, found: Iterable[set[int] | None], unsure: int = 0) -> None:
        self._rest = iter(found)
        self._unsure = unsure
        self.count = 0

    def __call__(self) -> dict[int, float] | None:
        self.count += 1
        self.is_sure = self.count > self._unsure
        found = next(self._rest, set())
        return None if found is None else dict.fromkeys(found, 0.0)


def looks(*found: set[int] | None) -> Looks:
    return Looks(found)


def hopping() -> Looks:
    """Always another one."""
    return Looks({pid} for pid in itertools.count(10))


def test_all_are_stopped_before_any_is_killed(sent: list[tuple[int, int]]) -> None:
    assert stop.kill_frozen({1}, looks({1, 2}, {1, 2}, None)) == {1, 2}
    numbers = [number for _, number in sent]
    assert numbers == [signal.SIGSTOP] * 2 + [signal.SIGKILL] * 2


def test_who_comes_out_of_a_fork_after_the_kill_is_killed_too(sent: list[tuple[int, int]]) -> None:
    assert stop.kill_frozen({1}, looks({1}, {1, 2}, {2})) == {1, 2}
    assert sent[-2:] == [(2, signal.SIGSTOP), (2, signal.SIGKILL)]


def test_who_is_always_gone_when_it_is_found_is_left_where_all_cannot_be_reached(
    sent: list[tuple[int, int]],
) -> None:
    assert len(stop.kill_frozen({1}, hopping())) == stop._ROUNDS + 1
    assert all(pid > 0 for pid, _ in sent)


def test_all_are_stopped_at_once_where_they_can_be_reached(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "reaches_all", True)
    monkeypatch.setattr(stop, "_ROUNDS", 2)
    monkeypatch.setattr(tree, "stopped", lambda: {7, 14})
    killed = stop.kill_frozen({1}, hopping())
    assert 14 in killed
    everybody = [(i, number) for i, (pid, number) in enumerate(sent) if pid == -1]
    (first, _), (last, _) = everybody
    assert [number for _, number in everybody] == [signal.SIGSTOP, signal.SIGCONT]
    assert {number for _, number in sent[first + 1 : last]} == {signal.SIGKILL}
    # Who had been at rest before is so again.
    assert sent[last + 1 :] == [(7, signal.SIGSTOP)]


def test_a_look_that_may_have_missed_somebody_is_no_proof(sent: list[tuple[int, int]]) -> None:
    look = Looks([{1}, set(), set(), {2}, {2}], unsure=4)
    assert stop.kill_surely({1}, look) == {1, 2}
    assert sent[-1] == (2, signal.SIGKILL)
    assert look.is_sure


def test_when_no_look_is_proof_all_are_stopped_to_be_sure(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "reaches_all", True)
    found = (
        {5} if (-1, signal.SIGSTOP) in sent else {1} - {pid for pid, _ in sent}
        for _ in itertools.count()
    )
    look = Looks(found, unsure=1000)
    assert stop.kill_surely({1}, look) == {1, 5}
    first = sent.index((-1, signal.SIGSTOP))
    assert sent[first:] == [(-1, signal.SIGSTOP), (5, signal.SIGKILL), (-1, signal.SIGCONT)]


def test_an_end_is_not_over_before_a_look_is_proof(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = stop.Stop(Lonely(), list, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(ending, "_look", Looks([{7}, set(), {9}, {9}], unsure=3))
    for now, done in ((0.0, False), (0.1, False), (stop.TERM_GRACE_S, False), (6.0, True)):
        ending.step(now)
        assert ending.is_done == done
    assert (9, signal.SIGKILL) in sent
    assert (9, signal.SIGTERM) not in sent


def test_an_end_that_no_look_proves_is_made_sure_by_stopping_all(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "reaches_all", True)
    ending = stop.Stop(Lonely(), list, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(ending, "_look", Looks([set()] * (stop._DOUBTS + 1) + [{5}], unsure=1000))
    for _ in range(stop._DOUBTS + 1):
        assert not ending.is_done
        assert ending.next_at <= stop._DOUBT_S  # the answer waits for it
        ending.step(0.0)
    assert (5, signal.SIGKILL) in sent
    assert not ending.is_done
    ending.step(0.0)
    assert ending.is_done


@pytest.mark.parametrize("made", [False, True])
def test_a_look_is_proof_when_nobody_was_born_meanwhile(
    made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([b"7\n", b"8\n" if made else b"7\n"])
    monkeypatch.setattr(tree, "last_born", lambda: next(numbers))
    look = stop.Look(lambda _rows: set())
    assert look() == {}
    assert look.is_sure is not made


def test_who_was_born_is_told_by_the_kernel() -> None:
    before = tree.last_born()
    assert before.strip().isdigit()
    assert subprocess.run(["true"], check=False).returncode == 0
    assert tree.last_born() != before


def test_stopped_processes_are_found_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(tree.os, "listdir", refuse)
    assert tree.stopped() == set()


HOPPER = """
import os, sys, time
if os.fork():
    time.sleep(60)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


@needs_root
def test_14_who_hops_from_process_to_process_is_caught(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start(*IN_ITS_OWN_NAMESPACE)
    fresh.sh(f"exec -a {mark}-rests sleep 60 >/dev/null 2>&1 & kill -STOP $!")
    result = fresh.exec(argv=[sys.executable, "-S", "-c", HOPPER, mark], timeout_s=0.3)
    assert result.timed_out
    assert wait_until(lambda: processes_with(mark) == processes_with(f"{mark}-rests"))
    [rests] = processes_with(f"{mark}-rests")
    assert wait_until(lambda: _state(rests) == "T")


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


class Lonely:
    """A command whose leader does not end."""

    end = None
    is_terminal = False
    pid = 7


def test_who_keeps_starting_others_is_given_up_late(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "_ROUNDS", 1)
    ending = stop.Stop(Lonely(), list, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(ending, "_look", hopping())
    now = stop.TERM_GRACE_S
    while not ending.is_done:
        now += 1.0
        ending.step(now)
    assert now == stop.TERM_GRACE_S + stop.STUBBORN_S
    assert sent
