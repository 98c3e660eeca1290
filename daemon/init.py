"""PID 1's first duty: the only waiter.

One thread waits for every child of this process. It looks first without reaping, then reaps under
the lock that also covers starting and registering a command. So a command that ends at once is
registered when it is reaped, and no other code can take its status: with a second waiter half of
all exit codes came back as 0 when it was tried.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from daemon import tree

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

_IDLE_S = 10.0
"""A look for orphans without being told of them, should a SIGCHLD be lost."""


class Ended(NamedTuple):
    """How a child ended. `inherited_kib`: what of its peak it had of this daemon; 0: not known."""

    status: int
    usage: resource.struct_rusage
    inherited_kib: int = 0


class Reaper:
    """Waits for all children: our commands, and orphans that came to us."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held from a command's fork until it is watched."""
        self._watched: dict[int, tuple[Callable[[Ended], None], int]] = {}
        self.adopt: Callable[[bytes, resource.struct_rusage], None] | None = None
        """Called with the tag and usage of an orphan that has ended."""
        self._maybe_children = threading.Event()

    def start(self) -> None:
        """Wait from now on, in a thread of its own."""
        threading.Thread(target=self._run, name="reaper", daemon=True).start()

    def watch(self, pid: int, callback: Callable[[Ended], None], inherited_kib: int = 0) -> None:
        """Have this called when the child has ended; the caller holds `lock` since its fork."""
        self._watched[pid] = (callback, inherited_kib)
        self._maybe_children.set()

    def signal(self, pid: int, number: int, callback: Callable[[Ended], None]) -> bool:
        """Signal a child that is watched with this callback; False: it has ended.

        Under the lock, so that its number cannot be another's by now.
        """
        with self.lock:
            if self._watched.get(pid, (None,))[0] != callback:
                return False
            os.kill(pid, number)
            return True

    def reap(self, pid: int) -> None:
        """Reap a watched child that has ended, unless the reaper's own thread was faster.

        For who waits for this child alone: one switch of threads less on a command's way.
        """
        with self.lock:
            if pid not in self._watched:
                return
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if not found:
                return
            callback, inherited_kib = self._watched.pop(pid)
        callback(Ended(status, usage, inherited_kib))

    def notice(self) -> None:
        """There may be a child to reap."""
        self._maybe_children.set()

    def _run(self) -> None:
        while True:
            self._maybe_children.clear()
            if not self.reap_one():
                self._maybe_children.wait(_IDLE_S)

    def reap_one(self) -> bool:
        """Wait for one child and reap it; False when there are no children at all."""
        try:
            peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return False
        if peek is None:
            return True
        with self.lock:
            is_orphan = self.adopt is not None and peek.si_pid not in self._watched
            tag = tree.tag_of(peek.si_pid) if is_orphan else None
            try:
                pid, status, usage = os.wait4(peek.si_pid, os.WNOHANG)
            except ChildProcessError:
                return True  # it never became a program, and who started it has reaped it
            callback, inherited_kib = self._watched.pop(pid, (None, 0))
        if callback is not None:
            callback(Ended(status, usage, inherited_kib))
        elif self.adopt is not None and tag is not None:
            self.adopt(tag, usage)
        return True
