"""Ends a command with all that it started: TERM (in a terminal HUP, too), a grace, KILL.

`Stop` is a state machine whose owner calls `step` when its time has come, so that the same thread
goes on moving the command's last output meanwhile. Before KILL all members are stopped, round by
round until a round finds no new one: what is stopped cannot fork away from the list.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from daemon import tree
from sandman.wire import TERM_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from daemon.process import Process

SURVIVORS_S = 0.5
"""What is left of the grace once the leader has ended: the answer is due within a second."""
GIVE_UP_S = 2.0
"""After KILL. What lives longer hangs in the kernel, and nobody can end it."""
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.1
_ROUNDS = 50
"""A fork bomb may outrun the freezing for some rounds; the next step begins anew."""


class Stop:
    """The end of one command, under way."""

    def __init__(self, process: Process, others: Callable[[], list[tree.Life]], now: float) -> None:
        self.is_done = False
        self.next_at = now
        self._process = process
        self._others = others
        self._kill_at = now + TERM_GRACE_S
        self._give_up_at = self._kill_at + GIVE_UP_S
        self._wait = _FIRST_LOOK_S
        self._told: dict[int, float] = {}

    def step(self, now: float) -> None:
        """Look who is left and send what is due."""
        alive = self._members()
        if alive is None:
            self._step_blindly(now)
        elif not alive:
            # What they have used is known when they are reaped, which the reaper is about to.
            self.is_done = not any(map(tree.is_unreaped, self._told))
        elif now >= self._kill_at:
            kill_frozen(alive, self._members)
        else:
            self._ask({pid: born for pid, born in alive.items() if pid not in self._told})
        self._plan(now)

    def _plan(self, now: float) -> None:
        if self._process.end is not None:
            self._kill_at = min(self._kill_at, now + SURVIVORS_S)
            self._give_up_at = min(self._give_up_at, self._kill_at + GIVE_UP_S)
        if now >= self._give_up_at:
            self.is_done = True
        self.next_at = now + self._wait
        if now < self._kill_at:
            self.next_at = min(self.next_at, self._kill_at)
        self._wait = min(self._wait * 1.5, _LAST_LOOK_S)

    def _members(self) -> dict[int, float] | None:
        """Pids, and when they were born."""
        rows = tree.snapshot()
        if rows is None:
            return None
        found = tree.members(rows, self._process.life, self._others(), self._told)
        return {pid: rows[pid].born for pid in found}

    def _ask(self, fresh: dict[int, float]) -> None:
        # The leader first: a shell whose child ends before it has seen its own TERM takes that for
        # the child's normal end, and says so.
        if self._process.pid in fresh and not self._told:
            fresh = {self._process.pid: fresh[self._process.pid]}
        for pid in fresh:
            if self._process.is_terminal:
                send(pid, signal.SIGHUP)  # an interactive shell heeds no TERM
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)  # a stopped process would get it never
        self._told |= fresh

    def _step_blindly(self, now: float) -> None:
        """Without /proc: the group is all that can be reached."""
        number = int(signal.SIGKILL) if now >= self._kill_at else int(signal.SIGTERM)
        if self._told and number == signal.SIGTERM:
            number = 0
        self._told[self._process.pid] = 0.0
        try:
            if self._process.is_terminal and number == signal.SIGTERM:
                os.killpg(self._process.pid, signal.SIGHUP)
            os.killpg(self._process.pid, number)
        except OSError:
            self.is_done = self._process.end is not None


def end_survivors(process: Process, others: Callable[[], list[tree.Life]]) -> None:
    """End what a command that is over left running in the background. Blocks meanwhile."""
    stop = Stop(process, others, time.monotonic())
    while not stop.is_done:
        stop.step(time.monotonic())
        time.sleep(max(0.0, stop.next_at - time.monotonic()))


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone, or be another user's where the daemon lacks the right."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def kill_frozen(alive: Iterable[int], look: Callable[[], Iterable[int] | None]) -> None:
    """Stop until nobody new is found, then kill all."""
    frozen: set[int] = set()
    fresh = set(alive)
    for _ in range(_ROUNDS):
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        frozen |= fresh
        fresh = set(look() or ()) - frozen
        if not fresh:
            break
    for pid in frozen | fresh:
        send(pid, signal.SIGKILL)


def kill_now(process: Process, others: list[tree.Life]) -> None:
    """Kill a command's tree without a grace."""

    def look() -> set[int]:
        return tree.members(tree.snapshot() or {}, process.life, others)

    leader = {process.pid} if process.end is None else set()  # else its number may be another's
    kill_frozen(look() | leader, look)


def kill_everything(boot_id: str) -> None:
    """Kill all that this daemon's commands started, for its own end where it is not PID 1."""

    def look() -> set[int]:
        return tree.descendants(tree.snapshot() or {}, os.getpid(), boot_id)

    kill_frozen(look(), look)
