"""System calls that need the runtime's own module, and what to do where it is absent."""

# ruff: noqa: PTH208
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable  # noqa: TC003 - `typing` would come too early: see `listener`

NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
"""What runs in the sandbox has it all just now; it may pass."""
_PAGES_OF_ONE_STRING = 32
_MOST_STRINGS = 6 * 1024 * 1024
_LEAST_STRINGS = 128 * 1024
POINTER_BYTES = 8
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

prctl_by: Callable[[int, int], None] | None = None
"""What makes the call in a plain Python: set in local mode, which has loaded it (`syscalls`)."""
_clear_refs: int | None = None
_OOM_STEP = 100
"""A tenth of all memory, in the kernel's reckoning: more than this daemon ever takes."""


def name_of(error: OSError) -> dict[str, object]:
    """The kernel's name for its refusal, as facts of an error of ours."""
    number = error.errno or 0
    return {"errno": errno.errorcode.get(number, str(number))}


def most_of_one_string() -> int:
    """Bytes of one argument, or of one variable with its name, that Linux takes: MAX_ARG_STRLEN without the end."""
    return _PAGES_OF_ONE_STRING * os.sysconf("SC_PAGE_SIZE") - 1


def most_of_all_strings() -> int:
    """Bytes of all arguments and variables together, each with its end and a pointer: see execve(2)."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    most = _MOST_STRINGS if stack == resource.RLIM_INFINITY else min(stack // 4, _MOST_STRINGS)
    return max(most, _LEAST_STRINGS)


def prctl(option: int, value: int) -> bool:
    """Whether the call was made: a plain Python, as in tests, cannot make it."""
    try:
        if prctl_by is not None:
            prctl_by(option, value)
        else:
            import _sandman  # noqa: PLC0415 - only the runtime's own interpreter has it

            _sandman.prctl(option, value)
    except (ImportError, OSError):
        return False
    return True


def harden() -> None:
    """Make this process opaque to the sandbox's own processes of the same user.

    Not dumpable: they cannot attach to it, nor read its memory or environment. From then on its own
    files in /proc are root's alone, so what is needed of them is opened first.
    """
    global _clear_refs  # noqa: PLW0603 - one process, one such file
    try:
        _clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        _clear_refs = None
    prctl(PR_SET_DUMPABLE, 0)


def clear_refs() -> int:
    """A descriptor by which this process's peak of memory is reset, for `start`; -1: there is none.

    A command inherits the peak of who starts it. After one large request all later commands would
    seem to have needed that much.
    """
    return -1 if _clear_refs is None else _clear_refs


def likelier_oom_score() -> int:
    """The `oom_score_adj` for commands: above this daemon's own."""
    try:
        with open("/proc/self/oom_score_adj", "rb") as file:  # noqa: PTH123
            return min(1000, int(file.read()) + _OOM_STEP)
    except OSError:
        return _OOM_STEP


def offer_to_oom_killer(pid: int, score: int) -> None:
    """Let a command, with all that it starts from now on, be chosen before this daemon is.

    When the daemon dies the sandbox is lost; when the command dies its caller learns why. To make
    a process a likelier victim needs no capability.
    """
    try:
        file = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(file, b"%d" % score)
    except OSError:
        pass  # it is another user's by now, or gone
    finally:
        os.close(file)


def adopt_orphans() -> bool:
    """Whether orphans of this process's descendants come to it: as PID 1, or by asking for it."""
    return os.getpid() == 1 or prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide_descriptors() -> None:
    """Keep what was inherited from reaching commands; what Python opens is hidden anyhow.

    Commands are started without closing descriptors, which would need /proc or a million calls.
    """
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = list(range(3, 64))
    for number in numbers:
        if number > 2:
            try:
                os.set_inheritable(number, False)
            except OSError:
                continue


def fill_standard_descriptors() -> None:
    """Open 0, 1 and 2 where they are closed, so that no pipe or socket gets such a number."""
    while True:
        reader, writer = os.pipe()
        os.close(writer)
        if reader > 2:
            os.close(reader)
            return
