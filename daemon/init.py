"""PID 1's first duty: to wait for every child, and no child twice.

A command is reaped by its owner, who polls it. One thread reaps what else there is: orphans, of which
the main thread is told by SIGCHLD, and what has no owner; where the kernel has no pidfd to poll, all. It
looks first, without reaping, and leaves alone what has started and is not yet registered.
All reap under the lock that covers registering. So a command that ends at once is registered when it is
reaped, and no other code can take its status: with a second waiter that knew nothing of the first half
of all exit codes came back as 0 when it was tried.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from daemon import tree
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

try:
    from _sandman import is_starting as _is_starting
    from _sandman import starts as _starts
except ImportError:
    _is_starting = _starts = None  # a plain Python holds the lock from the start on: see `spawn`

_UNCLAIMED_S = 0.0005
"""Until the look after one that found a command whose starter has yet to come to the interpreter's lock."""
_FROZEN_S, _LOST_S = 1.0, 10.0
"""A start takes milliseconds. One that takes this long somebody has stopped, and it goes on; one that takes
longer is stopped again and again, and killed."""
_NO_ROOM_S = 0.05
"""Until the look after one for which there was no memory."""
_IDLE_S = 2.0
"""A look without being told: what nobody owns any more, and should a SIGCHLD be lost."""


class Ended(NamedTuple):
    """How a child ended. `inherited_kib`: what of its peak it had of this daemon; 0: not known."""

    status: int
    usage: resource.struct_rusage
    inherited_kib: int = 0


class Reaper:
    """Waits for all children: our commands, and orphans that came to us."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a command is made known or forgotten."""
        self._watched: dict[int, tuple[Callable[[Ended], None], int]] = {}
        self.adopt: Callable[[bytes, resource.struct_rusage], None] | None = None
        """Called with the tag and usage of an orphan that has ended."""
        self._maybe_children = threading.Event()
        self._has_pidfd = _has_pidfd()
        self._begun: dict[int, float] = {}
        """Children between their start and their claim, and when they were first seen there."""
        self._unowned: set[int] = set()
        """Watched by nobody else: while there is one the reaper waits for it."""

    def start(self) -> None:
        """Wait from now on, in a thread of its own."""
        threading.Thread(target=self._run, name="reaper", daemon=True).start()

    def watch(
        self,
        pid: int,
        callback: Callable[[Ended], None],
        inherited_kib: int = 0,
        *,
        is_owned: bool = False,
    ) -> None:
        """Have this called when the child has ended; the caller holds `lock`.

        Args:
            pid: of the child.
            callback: called in the thread that reaps it.
            inherited_kib: see `Ended`.
            is_owned: somebody polls it, and calls `reap` when it has ended.
        """
        self._watched[pid] = (callback, inherited_kib)
        if not (is_owned and self._has_pidfd):
            self._unowned.add(pid)
            self._maybe_children.set()

    def attend(self, pid: int) -> None:
        """A watched child has no owner after all."""
        with self.lock:
            if pid in self._watched:
                self._unowned.add(pid)
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

        For who waits for this child alone: one switch of threads less on a command's way. One that has
        ended and cannot be reaped, since who traces it comes first, is waited for by the reaper from then on.
        """
        with self.lock:
            report = self._take(pid) if pid in self._watched else None
            if pid in self._watched:
                self._unowned.add(pid)
                self._maybe_children.set()
        if report is not None:
            report()

    def notice(self) -> None:
        """There may be a child to reap. The main thread's call, also when nothing happens for some time."""
        self._maybe_children.set()
        if _starts is not None:
            self._free_starts(_starts(), time.monotonic())

    def _free_starts(self, pids: list[int], now: float) -> None:
        """Get those moving that hang between their start and another program, with the thread that waits.

        None of them is reaped before its claim, so its number is its own.
        """
        self._begun = {pid: self._begun.get(pid, now) for pid in pids}
        for pid, begun in self._begun.items():
            if now - begun >= _FROZEN_S:
                try:
                    os.kill(pid, signal.SIGKILL if now - begun >= _LOST_S else signal.SIGCONT)
                except OSError:
                    continue  # it has just ended

    def _run(self) -> None:
        while True:
            try:
                self._maybe_children.clear()
                while self.reap_one():
                    pass
                self._maybe_children.wait(_IDLE_S)
            except (MemoryError, RuntimeError, OSError):
                # What runs in the sandbox has taken it all; it passes, and without this thread no
                # command would end. To say so might take memory, too.
                time.sleep(_NO_ROOM_S)

    def reap_one(self) -> bool:
        """Reap one child; waits while there is one without an owner. False: there is none to reap."""
        options = os.WEXITED | os.WNOWAIT
        if self._has_pidfd and not self._unowned:
            options |= os.WNOHANG
        try:
            peek = os.waitid(os.P_ALL, 0, options)
        except ChildProcessError:
            return False
        if peek is None:
            return False
        with self.lock:
            is_early = _is_starting is not None and _is_starting(peek.si_pid)
            report = None if is_early else self._take(peek.si_pid)
        if is_early:
            time.sleep(_UNCLAIMED_S)
        if report is not None:
            report()
        return True

    def _take(self, pid: int) -> Callable[[], None] | None:
        """Reap this child; whom to tell, without the lock. None: nobody."""
        adopt = self.adopt if pid not in self._watched else None
        tag = tree.tag_of(pid) if adopt is not None else None
        try:
            found, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return None  # it never became a program, and who started it has reaped it
        if not found:
            return None
        self._unowned.discard(pid)
        callback, inherited_kib = self._watched.pop(pid, (None, 0))
        if callback is not None:
            return lambda: callback(Ended(status, usage, inherited_kib))
        if adopt is not None and tag is not None:
            return lambda: adopt(tag, usage)
        return None


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
