"""Killing what forks faster than it is found."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from daemon import stop, tree
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, processes_with, wait_until
from tests.unit.daemon.test_init import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would be sent: no test may send one to everybody."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(stop, "send", lambda pid, number: found.append((pid, number)))
    return found


def looks(*found: set[int] | None) -> Callable[[], set[int] | None]:
    """What is found, look after look; then nothing."""
    rest: Iterator[set[int] | None] = iter(found)
    return lambda: next(rest, set())


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
    pids = iter(range(10, 10_000))
    assert len(stop.kill_frozen({1}, lambda: {next(pids)})) == stop._ROUNDS + 1
    assert all(pid > 0 for pid, _ in sent)


def test_all_are_stopped_at_once_where_they_can_be_reached(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "reaches_all", True)
    monkeypatch.setattr(stop, "_ROUNDS", 2)
    monkeypatch.setattr(tree, "stopped", lambda: {7, 14})
    pids = iter(range(10, 10_000))
    killed = stop.kill_frozen({1}, lambda: {next(pids)})
    assert 14 in killed
    everybody = [(i, number) for i, (pid, number) in enumerate(sent) if pid == -1]
    (first, _), (last, _) = everybody
    assert [number for _, number in everybody] == [signal.SIGSTOP, signal.SIGCONT]
    assert {number for _, number in sent[first + 1 : last]} == {signal.SIGKILL}
    # Who had been at rest before is so again.
    assert sent[last + 1 :] == [(7, signal.SIGSTOP)]


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
    pid = 7


def test_who_keeps_starting_others_is_given_up_late(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = iter(range(10, 10_000))
    monkeypatch.setattr(stop.Stop, "_members", lambda _self: {next(pids)})
    monkeypatch.setattr(stop, "_ROUNDS", 1)
    ending = stop.Stop(Lonely(), list, 0.0)  # type: ignore[arg-type]
    now = stop.TERM_GRACE_S
    while not ending.is_done:
        now += 1.0
        ending.step(now)
    assert now == stop.TERM_GRACE_S + stop.STUBBORN_S
    assert sent
