"""Starts programs: the only place that forks.

By `posix_spawn`, which like vfork costs the same whatever the daemon's size, and sets signal mask and
session in the child. It cannot set the working directory, so the daemon's own is changed for that
moment: nothing in the daemon uses relative paths, and starts follow each other under the reaper's
lock. Nor can it change the user: `subprocess` does that, by a full fork.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from daemon import signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.init import Ended, Reaper
    from daemon.users import User


class Program(NamedTuple):
    """All that the kernel needs to know of a command. `paths`: tried in turn, as execvp does."""

    argv: tuple[bytes, ...]
    paths: tuple[bytes, ...]
    cwd: bytes
    environment: dict[bytes, bytes]
    user: User | None


class Descriptors(NamedTuple):
    """The child's ends; none is below 3."""

    stdin: int
    stdout: int
    stderr: int


class DirectoryError(Exception):
    """The program's working directory could not be entered."""


def spawn(
    program: Program, fds: Descriptors, reaper: Reaper, on_end: Callable[[Ended], None]
) -> int:
    """Start the program as leader of a session of its own; its pid.

    Raises:
        DirectoryError: from the OSError that says why.
        OSError: the program did not start.
    """
    error: OSError | None = None
    for path in program.paths:
        try:
            with reaper.lock:
                pid = _start(program, path, fds)
                reaper.watch(pid, on_end)
                return pid
        except (FileNotFoundError, NotADirectoryError, PermissionError) as failure:
            error = error or failure
    raise error or FileNotFoundError(2, os.strerror(2), program.argv[0])


def _start(program: Program, path: bytes, fds: Descriptors) -> int:
    try:
        os.chdir(program.cwd)
    except OSError as error:
        raise DirectoryError from error
    try:
        if program.user is not None:
            return _fork(program, program.user, path, fds)
        return os.posix_spawn(
            path,
            program.argv,
            program.environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(fds)],
            setsid=True,
            setsigmask=(),
            setsigdef=signals.PYTHON_IGNORES,
        )
    finally:
        _leave()


def _leave() -> None:
    """Be nowhere in particular: a directory that somebody is in cannot be unmounted."""
    try:
        os.chdir("/")
    except OSError:
        return  # not this user's to enter; the child runs all the same


def _fork(program: Program, user: User, path: bytes, fds: Descriptors) -> int:
    import subprocess  # noqa: PLC0415 - seldom needed, and 5 ms at each pod's start

    # The child inherits this thread's mask. Should a SIGTERM for the daemon come now, it may be lost
    # as one of unknown origin: see `signals.serve_signals`.
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        popen = subprocess.Popen(
            program.argv,
            executable=path,
            stdin=fds.stdin,
            stdout=fds.stdout,
            stderr=fds.stderr,
            env=program.environment,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            start_new_session=True,
            close_fds=False,  # all of ours are close-on-exec: see `kernel.hide_descriptors`
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    popen.returncode = 0  # hands off: without this its finaliser would wait for our child
    return popen.pid
