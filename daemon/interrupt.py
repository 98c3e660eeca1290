"""Ends a session's command and spares its shell: Ctrl-C, a grace, then KILL for what the command started."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from daemon import tree
from daemon.stop import Look, kill_surely, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.process import Process
    from daemon.pty import Terminal

GIVE_UP_S = 2.0
"""After KILL. A shell that has not come back by then loops without a program that could be killed and
has Ctrl-C turned off: it goes, and the session with it."""
_ROUND_S = 0.1
_SUSPEND_S = 0.5
"""For the shell to see that its command was suspended, and to come back: mostly at once. Only what
ignores that, too, has it killed under its shell's eyes."""
_SLACK_S = 2 / float(os.sysconf("SC_CLK_TCK"))
"""/proc counts starts in ticks."""


class Interrupt:
    """The end of one command, under way; the owner calls `step` when its time has come."""

    def __init__(
        self,
        shell: Process,
        terminal: Terminal,
        others: Callable[[], list[tree.Life]],
        born: float,
        times: tuple[float, float],
    ) -> None:
        """`born`: when the command began, on the clock of `tree.now()`. `times`: now, and the grace."""
        now, grace_s = times
        self.has_killed = False
        self.must_end = False
        """The shell is beyond help."""
        self.next_at = now
        self._shell = shell
        self._terminal = terminal
        self._others = others
        self._born = born
        self._again_at = now + grace_s / 2
        self._kill_at = now + grace_s
        self._is_suspended = False
        self._look = Look(self._find)

    def step(self, now: float) -> None:
        """Send what is due."""
        send(self._shell.pid, signal.SIGCONT)  # a shell that was stopped does not come back
        if now < self._kill_at:
            # Twice: some take the first for a request and the second for an order.
            self._terminal.interrupt()
            self.next_at = self._again_at if now < self._again_at else self._kill_at
        elif not self._is_suspended:
            self._is_suspended = True
            if self._terminal.foreground != self._shell.pid:
                self._terminal.suspend()
                now += _SUSPEND_S
            self.next_at = now
        elif now < self._kill_at + _SUSPEND_S + GIVE_UP_S:
            self.kill()
            self.next_at = now + _ROUND_S
        else:
            self.must_end = True

    def kill(self) -> None:
        """KILL what the command started, and have the shell drop what is left of its line."""
        self.has_killed = True
        if tree.snapshot() is None:
            group = self._terminal.foreground
            if group not in {0, self._shell.pid}:
                os.killpg(group, signal.SIGKILL)
            return
        kill_surely(self._look() or (), self._look)
        if self._terminal.foreground == self._shell.pid:
            send(self._shell.pid, signal.SIGINT)

    @property
    def is_late(self) -> bool:
        """Whether Ctrl-C was not enough."""
        return self._is_suspended

    def _find(self, rows: dict[int, tree.Row]) -> set[int]:
        members = tree.members(rows, self._shell.life, self._others())
        return of_command(rows, members, self._shell.pid, self._born)


def of_command(rows: dict[int, tree.Row], members: set[int], shell: int, born: float) -> set[int]:
    """Those of a session's processes that the present command started.

    Older ones are jobs in the background, and so is what comes from them.
    """

    def is_older(pid: int) -> bool:
        while pid in members and pid != shell and pid in rows:
            if rows[pid].born < born - _SLACK_S:
                return True
            pid = rows[pid].parent
        return False

    return {pid for pid in members if pid != shell and not is_older(pid)}
