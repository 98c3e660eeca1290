"""Ends a command with all that it started: TERM (in a terminal HUP, too), a grace, KILL.

`Stop` is a state machine whose owner calls `step` when its time has come, so that the same thread
goes on moving the command's last output meanwhile. TERM is for those who were there when the end began:
who handles it may start programs to clean up. Before KILL all members are stopped, round by round until a
round finds no new one: what is stopped cannot fork away from the list.
"""

from __future__ import annotations

import os
import signal
import time

from daemon import tree
from sandman.records import TYPE_CHECKING
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
_DOUBTS = 3
"""Looks in a row that found nobody and are no proof of it. Then all are stopped for a moment, to be sure:
a neighbour that starts hundreds a second feels it, but not at each end of a command."""
_DOUBT_S = 0.005
"""Between such looks: the answer waits for them."""
_LOOKS = 3
_SETTLE_S = 0.005
"""For forks that were under way when all were stopped: their children are stopped, too, once there."""
reaches_all = os.getpid() == 1
"""Whether all processes that this one can signal are its sandbox's; not so before a pod's own command, as
`serve` says then."""


class Look:
    """Finds who is alive.

    That takes a millisecond or more, and who starts its successor and ends, again and again, may be
    missed. To have found nobody proves something only if nobody at all was born meanwhile.

    Args:
        find: of these processes, those that are looked for.
    """

    def __init__(self, find: Callable[[dict[int, tree.Row]], set[int]]) -> None:
        self._find = find
        self.is_sure = False
        """Whether the last look missed nobody; so, too, where no look can find anybody."""

    def __call__(self) -> dict[int, float] | None:
        """Pids, and when they were born; None where /proc cannot be read."""
        before = tree.last_born()
        rows = tree.snapshot()
        self.is_sure = rows is None
        if rows is None:
            return None
        found = self._find(rows)  # reads more of /proc: who is gone by then has no marks
        self.is_sure = before == tree.last_born()
        return {pid: rows[pid].born for pid in found}


class Stop:
    """The end of one command, under way."""

    def __init__(self, process: Process, others: Callable[[], list[tree.Life]], now: float) -> None:
        self.is_done = False
        self.next_at = now
        self._process = process
        self._others = others
        self._look = Look(self._find)
        self._doubts = 0
        self._kill_at = now + TERM_GRACE_S
        self._killed: set[int] = set()
        self._killed_at = now
        """When something was found that had not been killed yet."""
        self._wait = _FIRST_LOOK_S
        self._to_ask: dict[int, float] | None = None
        """Who was there at the first look, and has yet to be told; None: nobody looked."""
        self._known: dict[int, float] = {}
        self._is_told = False

    def step(self, now: float) -> None:
        """Look who is left and send what is due."""
        alive = self._look()
        self._doubts = 0 if alive or self._look.is_sure else self._doubts + 1
        if alive is None:
            self._step_blindly(now)
        elif not alive:
            self._step_alone()
        elif now >= self._kill_at:
            self._kill(alive, now)
        else:
            self._ask(alive)
        self._known |= alive or {}
        self._plan(now)

    def _step_alone(self) -> None:
        """Nobody was found."""
        if self._doubts > _DOUBTS:
            if _kill_all_stopped(self._look):
                return
        elif self._doubts:
            return
        # What they have used is known when they are reaped, which the reaper is about to.
        self.is_done = not any(map(tree.is_unreaped, self._known))

    def _plan(self, now: float) -> None:
        if self._process.end is not None:
            self._kill_at = min(self._kill_at, now + SURVIVORS_S)
        is_late = now >= max(self._kill_at, self._killed_at) + GIVE_UP_S
        if is_late or now >= self._kill_at + STUBBORN_S:
            self.is_done = True
        if self._doubts:
            self.next_at = now + _DOUBT_S
            return
        self.next_at = now + self._wait
        if now < self._kill_at:
            self.next_at = min(self.next_at, self._kill_at)
        self._wait = min(self._wait * 1.5, _LAST_LOOK_S)

    def _find(self, rows: dict[int, tree.Row]) -> set[int]:
        return tree.members(rows, self._process.life, self._others(), self._known)

    def _kill(self, alive: Iterable[int], now: float) -> None:
        found = kill_frozen(alive, self._look)
        if found - self._killed:
            self._killed_at = now
        self._killed |= found

    def _ask(self, alive: dict[int, float]) -> None:
        # The leader first: a shell whose child ends before it has seen its own TERM takes that for
        # the child's normal end, and says so.
        if self._to_ask is None:
            self._to_ask = dict(alive)
            due = [self._process.pid] if self._process.pid in alive else list(alive)
        else:
            due = list(self._to_ask)
        for pid in due:
            if self._to_ask.pop(pid) != alive.get(pid):
                continue
            if self._process.is_terminal:
                send(pid, signal.SIGHUP)  # an interactive shell heeds no TERM
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)  # a stopped process would get it never

    def _step_blindly(self, now: float) -> None:
        """Without /proc: the group is all that can be reached."""
        number = int(signal.SIGKILL) if now >= self._kill_at else int(signal.SIGTERM)
        if self._is_told and number == signal.SIGTERM:
            number = 0
        self._is_told = True
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


def kill_surely(alive: Iterable[int], look: Look) -> set[int]:
    """As `kill_frozen`, and then look until it is certain that nobody is left."""
    killed = kill_frozen(alive, look)
    for _ in range(_DOUBTS):
        if look.is_sure:
            return killed
        killed |= kill_frozen(look() or (), look)
    return killed | _kill_all_stopped(look)


def kill_frozen(alive: Iterable[int], look: Look) -> set[int]:
    """Stop until nobody new is found, then kill all, until nobody new is found after that, either; who
    was killed.

    A process that is within a fork when it is stopped stops behind it. On a busy machine it may stay there
    for long, and its child is there only after everybody was found.
    """
    killed: set[int] = set()
    frozen: set[int] = set()
    fresh = set(alive)
    if not fresh:
        return killed
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


def _kill_all_stopped(look: Look) -> set[int]:
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
    look = Look(lambda rows: tree.members(rows, process.life, others))
    leader = {process.pid} if process.end is None else set()  # else its number may be another's
    kill_surely(leader.union(look() or ()), look)


def kill_everything(boot_id: str, spared: int = 0) -> None:
    """Kill all that is below this daemon, for its own end where it is not PID 1.

    Args:
        boot_id: of this daemon.
        spared: the pod's own command. Then only what bears the mark of a command of ours is killed, for
            an orphan without it may be the pod's own.
    """
    look = Look(lambda rows: tree.descendants(rows, os.getpid(), boot_id, spared))
    kill_surely(look() or (), look)
