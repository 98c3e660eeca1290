"""One command of a session, from the line that the shell is given to the end of its output."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from daemon import script, tree

if TYPE_CHECKING:
    from daemon.pty import Terminal

BEGIN_S = 1.0
"""Ctrl-C would be lost on a shell that has yet to read its command; it gets so long for that."""
MARK_S = 5.0
"""For the mark behind the last output; it comes at once unless the machine is on its knees."""
_AGAIN_S = 0.01
"""Until the mark is tried again, when the terminal was full."""


class Command:
    """What the shell runs."""

    def __init__(self, command_id: str) -> None:
        self.id = command_id
        self.token = os.urandom(8).hex()
        self.born = tree.now()
        self.started = time.monotonic()
        self.has_begun = False
        self.status: int | None = None
        """Its exit code, once the shell has told."""
        self.interrupted = False
        self.is_back = False
        """The shell is done with it, or gone; what it wrote may still be on its way."""
        self.mark = os.urandom(16).hex().encode()
        """Comes behind all that it wrote."""
        self.late_at = math.inf
        """When the mark is not waited for any longer."""
        self._is_marked = False

    def hears(self, report: script.Report) -> bool:
        """Take what the shell says; whether it is back just now."""
        # not secret: it names the command, and nobody is told whether it was right
        if report.token != self.token or self.is_back:
            return False
        if report.word == script.BEGIN:
            self.has_begun = True
        elif report.word == script.END:
            self.status = report.status
        else:
            self.come_back(report.status if self.status is None else self.status)
        return self.is_back

    def come_back(self, status: int) -> None:
        """The shell is done with it."""
        self.is_back = True
        self.status = status
        self.late_at = time.monotonic() + MARK_S

    def put_mark(self, terminal: Terminal) -> None:
        """Behind its output, once."""
        self._is_marked = self._is_marked or terminal.mark(self.mark)

    @property
    def lost(self) -> bytes:
        """What the shell writes when the command has cut it off."""
        return script.lost(self.token)

    @property
    def next_at(self) -> float:
        """When to look after its mark."""
        return self.late_at if self._is_marked else time.monotonic() + _AGAIN_S

    def reachable_at(self, due: float) -> float:
        """When an interruption that is due then will not be lost."""
        return due if self.has_begun else max(due, self.started + BEGIN_S)
