"""PID 1's duties: the only waiter, and the meaning of SIGTERM.

One thread waits for every child of this process. It looks first without reaping, then reaps under
the lock that also covers starting and registering a command. So a command that ends at once is
registered when it is reaped, and no other code can take its status: with a second waiter half of
all exit codes came back as 0 when it was tried.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

_IDLE_S = 10.0
"""A look for orphans without being told of them, should a SIGCHLD be lost."""
_LOOK_S = 5.0
_ENDING = (signal.SIGTERM, signal.SIGINT)
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Restored at each start of a command."""


class Ended(NamedTuple):
    """How a child ended."""

    status: int
    usage: resource.struct_rusage


class Reaper:
    """Waits for all children: our commands, and orphans that came to us."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held from a command's fork until it is watched."""
        self._watched: dict[int, Callable[[Ended], None]] = {}
        self._maybe_children = threading.Event()

    def start(self) -> None:
        """Wait from now on, in a thread of its own."""
        threading.Thread(target=self._run, name="reaper", daemon=True).start()

    def watch(self, pid: int, callback: Callable[[Ended], None]) -> None:
        """Have this called when the child has ended; the caller holds `lock` since its fork."""
        self._watched[pid] = callback
        self._maybe_children.set()

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
            try:
                pid, status, usage = os.wait4(peek.si_pid, os.WNOHANG)
            except ChildProcessError:
                return True  # it never became a program, and who started it has reaped it
            callback = self._watched.pop(pid, None)
        if callback is not None:
            callback(Ended(status, usage))
        return True


def block_signals() -> list[int]:
    """Let the main thread take the signals that end the daemon, by `serve_signals`.

    They are blocked in all threads, since who started it inherits this. Only a start as another user
    must unblock them for a moment; one that comes then lands in the list that this returns, and where
    it came from is not known.
    """
    asked: list[int] = []
    for number in _ENDING:
        signal.signal(number, lambda caught, _frame: asked.append(caught))
    signal.pthread_sigmask(signal.SIG_SETMASK, {*_ENDING, signal.SIGCHLD})
    return asked


def ignore_children() -> None:
    """First act of every thread that starts commands: SIGCHLD is for the main thread alone.

    Where it is not blocked the kernel drops it. The reaper waits for our own commands anyhow; the main
    thread would be woken in vain at the end of each. Orphans come to the main thread.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def reset_signals() -> None:
    """Give up ignored signals that were inherited, or commands would inherit them in turn.

    Python's own are another matter: see PYTHON_IGNORES.
    """
    for number in signal.valid_signals():
        if number not in PYTHON_IGNORES and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def serve_signals(reaper: Reaper, asked: list[int]) -> None:
    """Return when the daemon shall end; called by the main thread after `block_signals`.

    As PID 1 a signal counts only from outside: the kubelet's comes from no process that we can see,
    so its pid is 0. A command that signals everything it can, or just process 1, changes nothing.
    One of unknown origin is passed over then, too, except from before any command could run: to be
    killed after the grace is better than to let a command end its sandbox.
    """
    is_first = os.getpid() == 1
    if asked:
        return
    while is_first or not asked:
        info = signal.sigtimedwait((*_ENDING, signal.SIGCHLD), _LOOK_S)
        if info is None:
            continue
        if info.si_signo == signal.SIGCHLD:
            reaper.notice()
        elif not is_first or info.si_pid == 0:
            return
