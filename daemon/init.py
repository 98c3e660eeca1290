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
        unblock_signals()
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


def block_signals() -> None:
    """Let this thread, the main one, and no other take SIGTERM and SIGCHLD, by `serve_signals`.

    The kernel prefers the main thread for a signal that it waits for. All other threads have nothing
    blocked, since what they start inherits their mask.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGCHLD})


def unblock_signals() -> None:
    """First act of every other thread."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reset_signals() -> None:
    """Give up ignored signals that were inherited, or commands would inherit them in turn.

    Python's own, SIGPIPE and SIGXFSZ, are restored at each start of a command.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals():
        if number not in python_ignores and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def serve_signals(reaper: Reaper) -> None:
    """Return when the daemon shall end; called by the main thread after `block_signals`.

    As PID 1 SIGTERM counts only from outside: the kubelet's comes from no process that we can see,
    so its pid is 0. A command that signals everything it can, or just process 1, changes nothing.
    """
    is_first = os.getpid() == 1
    asked: list[int] = []
    # The net for a SIGTERM that another thread took: its origin is not known then. To be stopped by
    # SIGKILL after the grace is better than to let a command end its sandbox, so PID 1 passes over.
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    while is_first or not asked:
        info = signal.sigtimedwait((signal.SIGTERM, signal.SIGCHLD), _LOOK_S)
        if info is None:
            continue
        if info.si_signo == signal.SIGCHLD:
            reaper.notice()
        elif not is_first or info.si_pid == 0:
            return
