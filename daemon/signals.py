"""PID 1's second duty: what SIGTERM means, and that commands start with no signal blocked or ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable  # noqa: TC003 - `typing` would come too early: see `listener`

_LOOK_S = 5.0
"""How long a signal that another thread got can wait to be seen."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_SI_USER = 0
"""How the kernel says that a signal came by kill(2)."""
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Restored at each start of a command."""


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


def serve_signals(notice: Callable[[], None], asked: list[int]) -> None:
    """Return when the daemon shall end; called by the main thread after `block_signals`.

    As PID 1 a signal counts only from outside: the kubelet's comes from no process that we can see,
    so its pid is 0. A command that signals everything it can, or just process 1, changes nothing; nor
    does one that writes the sender's pid itself (sigqueue): the kernel keeps SI_USER from it.
    One of unknown origin is passed over then, too, except from before any command could run: to be
    killed after the grace is better than to let a command end its sandbox.

    Args:
        notice: called when there may be a child to reap, and every five seconds.
        asked: what `block_signals` returned.
    """
    is_first = os.getpid() == 1
    if asked:
        return
    while is_first or not asked:
        info = signal.sigtimedwait((*_ENDING, signal.SIGCHLD), _LOOK_S)
        if info is None or info.si_signo == signal.SIGCHLD:
            notice()
        elif not is_first or (info.si_code, info.si_pid) == (_SI_USER, 0):
            return
