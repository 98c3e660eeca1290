"""Wrap mode: the pod's own command as this daemon's child, for workloads that are somebody's production.

To the cluster it must look as if the command were process 1 itself: its output is the container's, a
signal to process 1 is a signal to it, and its end is the container's end, with the same exit code.
Nothing of Sandman may stop it: what cannot be served is not served, and the command runs all the same.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import TYPE_CHECKING

from daemon import config, kernel, log, signals, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from daemon.init import Ended, Reaper

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
"""Signals that speak to a program. From whomever they come: the command's own helpers reload it by a
signal to process 1, as its documentation says."""
_LOOK_S = 5.0
"""How long a signal that another thread got can wait to be passed on: see `signals.block_signals`."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def block_signals(asked: list[int]) -> None:
    """Let the main thread take all that is passed on; after `signals.block_signals`, with its list."""
    for number in PASSED_ON:
        signal.signal(number, lambda caught, _frame: asked.append(caught))
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)


def instead(command: Sequence[str]) -> int:
    """Become the command, for want of a daemon; returns only when that cannot be, with an exit code."""
    log.line("the pod's own command runs without a daemon beside it")
    for number in (*PASSED_ON, *signals.PYTHON_IGNORES):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(command[0], list(command), config.workload_environment(os.environb))  # noqa: S606 - no shell is wanted
    except OSError as error:
        return _explain(command, error)


class Workload:
    """The pod's own command.

    Args:
        reaper: waits for it.
    """

    def __init__(self, reaper: Reaper) -> None:
        self.pid = 0
        self._reaper = reaper
        self._end: Ended | None = None
        self._born = tree.now()

    @property
    def life(self) -> tree.Life:
        """Its marks, by which no command's end takes its processes along."""
        return tree.Life(self.pid, b"", self._born, None)

    def start(self, command: Sequence[str]) -> int | None:
        """Start it; the exit code when it cannot be. Called by the main thread.

        Where there is no room for one process more it takes the place of this one.
        """
        # At a terminal it stays in this session, whose terminal that is, and gets its input; else it
        # leads a session, as a container's first process does.
        at_terminal = os.isatty(0)
        leads = {"setpgroup": 0} if at_terminal else {"setsid": True}
        try:
            with self._reaper.lock:
                self.pid = os.posix_spawnp(
                    command[0],
                    list(command),
                    config.workload_environment(os.environb),
                    setsigmask=(),
                    setsigdef=signals.PYTHON_IGNORES,
                    **leads,
                )
                self._reaper.watch(self.pid, self._on_end)
        except OSError as error:
            return instead(command) if error.errno in kernel.NO_ROOM else _explain(command, error)
        if at_terminal:
            self._give_terminal()
        return None

    def _give_terminal(self) -> None:
        try:
            os.tcsetpgrp(0, self.pid)
            os.kill(self.pid, signal.SIGCONT)  # it may have read too early, and was stopped for it
        except OSError:
            return  # not this session's terminal, or it has ended

    def attend(self, notice: Callable[[], None], asked: list[int]) -> int:
        """Pass signals on until it has ended; its exit code. Called by the main thread.

        Args:
            notice: called when there may be a child to reap, and every five seconds.
            asked: signals that came while they were not blocked.
        """
        while self._end is None:
            while asked:
                self._pass_on(asked.pop(0))
            info = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), _LOOK_S)
            if info is None:
                notice()
            elif info.si_signo == signal.SIGCHLD:
                notice()
                self._reaper.reap(self.pid)
            else:
                self._pass_on(info.si_signo)
        return exit_code(self._end.status)

    def _pass_on(self, number: int) -> None:
        try:
            self._reaper.signal(self.pid, number, self._on_end)
        except OSError as error:
            # It has become another user, whom a daemon that is not root cannot signal.
            log.line(f"cannot pass signal {number} on: {error.strerror}")

    def _on_end(self, end: Ended) -> None:
        """The reaper's call, in its thread."""
        self._end = end
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)


def exit_code(status: int) -> int:
    """What a shell, and Kubernetes, say of this wait status: 128 + n for signal n."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def _explain(command: Sequence[str], error: OSError) -> int:
    log.line(f"cannot start the pod's own command {command[0]}: {error.strerror}")
    is_there = error.errno not in {errno.ENOENT, errno.ENOTDIR}
    return NOT_EXECUTABLE if is_there else NOT_FOUND
