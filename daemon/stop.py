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
"""After the last KILL. What lives longer hangs in the kernel, and nobody can end it."""
STUBBORN_S = 60.0
"""After the first KILL. Who starts processes faster than this daemon, which gets one of many shares of
the processor, can look for them; the caller is then told, though not all of them are gone."""
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.1
_ROUNDS = 50
"""A fork bomb may outrun the freezing or the killing for some rounds; the next step begins anew."""
_LOOKS = 3
_SETTLE_S = 0.005
"""For forks that were under way when all were stopped: their children are stopped, too, once there."""
reaches_all = os.getpid() == 1
"""Whether all processes that this one can signal are its sandbox's; not so before a pod's own command, as
`serve` says then."""


class Stop:
    """The end of one command, under way."""

    def __init__(self, process: Process, others: Callable[[], list[tree.Life]], now: float) -> None:
        self.is_done = False
        self.next_at = now
        self._process = process
        self._others = others
        self._kill_at = now + TERM_GRACE_S
        self._killed: set[int] = set()
        self._killed_at = now
        """When something was found that had not been killed yet."""
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
            self._kill(alive, now)
        else:
            self._ask({pid: born for pid, born in alive.items() if pid not in self._told})
        self._plan(now)

    def _plan(self, now: float) -> None:
        if self._process.end is not None:
            self._kill_at = min(self._kill_at, now + SURVIVORS_S)
        is_late = now >= max(self._kill_at, self._killed_at) + GIVE_UP_S
        if is_late or now >= self._kill_at + STUBBORN_S:
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

    def _kill(self, alive: Iterable[int], now: float) -> None:
        found = kill_frozen(alive, self._members)
        if found - self._killed:
            self._killed_at = now
        self._killed |= found

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


def kill_frozen(alive: Iterable[int], look: Callable[[], Iterable[int] | None]) -> set[int]:
    """Stop until nobody new is found, then kill all, until nobody new is found after that, either; who
    was killed.

    A process that is within a fork when it is stopped stops behind it. On a busy machine it may stay there
    for long, and its child is there only after everybody was found.
    """
    killed: set[int] = set()
    frozen: set[int] = set()
    fresh = set(alive)
    for _ in range(_ROUNDS):
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        frozen |= fresh
        fresh = set(look() or ()) - frozen - killed
        if fresh:
            continue
        for pid in frozen:
            send(pid, signal.SIGKILL)
        killed |= frozen
        frozen = set()
        fresh = set(look() or ()) - killed
        if not fresh:
            return killed
    for pid in frozen | fresh:
        send(pid, signal.SIGKILL)
    return killed | frozen | fresh | _kill_all_stopped(look)


def _kill_all_stopped(look: Callable[[], Iterable[int] | None]) -> set[int]:
    """Stop everything in this container for a moment, and kill them then.

    One process that starts its successor and ends, again and again, is always gone when it is found. To
    signal all at once is the only thing that reaches it, and only process 1 can know that all are its own.
    """
    if not reaches_all:
        return set()
    at_rest = tree.stopped()
    found: set[int] = set()
    try:
        send(-1, signal.SIGSTOP)
        for _ in range(_LOOKS):
            found |= set(look() or ())
            time.sleep(_SETTLE_S)
        for pid in found:
            send(pid, signal.SIGKILL)
    finally:
        send(-1, signal.SIGCONT)
    for pid in at_rest - found:
        send(pid, signal.SIGSTOP)
    return found


def kill_now(process: Process, others: list[tree.Life]) -> None:
    """Kill a command's tree without a grace."""

    def look() -> set[int]:
        return tree.members(tree.snapshot() or {}, process.life, others)

    leader = {process.pid} if process.end is None else set()  # else its number may be another's
    kill_frozen(look() | leader, look)


def kill_everything(boot_id: str, spared: int = 0) -> None:
    """Kill all that is below this daemon, for its own end where it is not PID 1.

    Args:
        boot_id: of this daemon.
        spared: the pod's own command. Then only what bears the mark of a command of ours is killed, for
            an orphan without it may be the pod's own.
    """

    def look() -> set[int]:
        return tree.descendants(tree.snapshot() or {}, os.getpid(), boot_id, spared)

    kill_frozen(look(), look)
