"""Starts programs: the only place that forks.

There is one way, in C: `native/start.c` does all that lies between the daemon and another program, and
says in which order. It costs the same whatever the daemon's size, and many can be under way at once.

A plain Python, as in local mode and tests, has not got that module. It makes do with `posix_spawn`, which
can neither change the directory (so the daemon's own is changed for that moment: starts follow each
other under the reaper's lock, and nothing in the daemon uses relative paths) nor the user or the
terminal: `subprocess` does that, by a full fork.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
from typing import TYPE_CHECKING, NamedTuple

from daemon import kernel, signals, tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.init import Ended, Reaper
    from daemon.users import User

try:
    from _sandman import claim as _claim
    from _sandman import start as _start_natively
except ImportError:
    _start_natively = _claim = None

_TIOCSCTTY = 0x540E
"""Make a terminal the controlling one of the session that the caller leads."""
_IN_PROGRAM, _IN_DIRECTORY, _IN_USER = 0, 1, 2
"""Where a start failed, as `start.c` numbers it; what comes after is a fault of the daemon's."""


class Program(NamedTuple):
    """All that the kernel needs to know of a command.

    `paths` are tried in turn, as execvp does. `mark`: see `tree`; 0: none. `terminal`: descriptor 0 is
    a terminal, which becomes that of the command's session.
    """

    argv: tuple[bytes, ...]
    paths: tuple[bytes, ...]
    cwd: bytes
    environment: dict[bytes, bytes]
    user: User | None
    mark: int = 0
    terminal: bool = False


class Descriptors(NamedTuple):
    """The child's ends; none is below 3."""

    stdin: int
    stdout: int
    stderr: int


class DirectoryError(Exception):
    """The program's working directory could not be entered."""


def spawn(
    program: Program,
    fds: Descriptors,
    reaper: Reaper,
    on_end: Callable[[Ended], None],
    oom_score: int = -1,
    *,
    is_owned: bool = False,
) -> int:
    """Start the program as leader of a session of its own; its pid.

    Args:
        program: what to start.
        fds: its standard descriptors.
        reaper: waits for it.
        on_end: called, in the reaper's thread, when it has ended.
        oom_score: its `oom_score_adj`; -1: the daemon's own.
        is_owned: see `Reaper.watch`.

    Raises:
        DirectoryError: from the OSError that says why.
        OSError: the program did not start.
    """
    if _start_natively is None:
        return _spawn_plainly(
            program,
            fds,
            reaper,
            lambda pid: reaper.watch(pid, on_end, is_owned=is_owned),
            oom_score,
        )
    user = program.user
    pid: int
    pid, stage, number, peak_kib = _start_natively(
        program.paths,
        program.argv,
        program.environment,
        fds,
        program.cwd,
        (user.uid, user.gid, user.groups) if user is not None else None,
        program.terminal,
        program.mark,
        oom_score,
        kernel.clear_refs(),
    )
    if number != 0:
        raise _failure(stage, number)
    with reaper.lock:
        try:
            reaper.watch(pid, on_end, peak_kib, is_owned=is_owned)
        except MemoryError:
            os.kill(pid, signal.SIGKILL)  # nobody would know of it
            raise
        finally:
            _claim(pid)
    return pid


def _failure(stage: int, number: int) -> OSError | DirectoryError:
    error = OSError(number, os.strerror(number))
    if stage == _IN_PROGRAM:
        return error
    if stage == _IN_DIRECTORY:
        failure = DirectoryError()
        failure.__cause__ = error
        return failure
    # The kernel's other words for it say no more: a uid that has no meaning here, for one.
    return OSError(errno.EPERM if stage == _IN_USER else errno.EIO, error.strerror)


# --- with what any Python has ---


def _spawn_plainly(
    program: Program,
    fds: Descriptors,
    reaper: Reaper,
    watch: Callable[[int], None],
    oom_score: int,
) -> int:
    error: OSError | None = None
    for path in program.paths:
        try:
            with reaper.lock:
                pid = _start(program, path, fds)
                watch(pid)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as failure:
            error = error or failure
            continue
        if oom_score >= 0:
            kernel.offer_to_oom_killer(pid, oom_score)
        return pid
    raise error or FileNotFoundError(2, os.strerror(2), program.argv[0])


def _start(program: Program, path: bytes, fds: Descriptors) -> int:
    try:
        os.chdir(program.cwd)
    except OSError as error:
        raise DirectoryError from error
    before = resource.getrlimit(tree.LIMIT)
    if program.mark:
        # Only the soft limit: the daemon could not raise its hard limit again.
        resource.setrlimit(tree.LIMIT, (program.mark, before[1]))
    try:
        if program.user is not None or program.terminal:
            return _fork(program, path, fds)
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
        resource.setrlimit(tree.LIMIT, before)
        _leave()


def _leave() -> None:
    """Be nowhere in particular: a directory that somebody is in cannot be unmounted."""
    try:
        os.chdir("/")
    except OSError:
        return  # not this user's to enter; the child runs all the same


def _fork(program: Program, path: bytes, fds: Descriptors) -> int:
    import subprocess  # noqa: PLC0415 - seldom needed

    user = program.user
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
            user=user.uid if user is not None else None,
            group=user.gid if user is not None else None,
            extra_groups=user.groups if user is not None else None,
            preexec_fn=_take_terminal if program.terminal else None,  # noqa: PLW1509 - as `subprocess` has it
            start_new_session=True,
            close_fds=False,  # all of ours are close-on-exec: see `kernel.hide_descriptors`
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    popen.returncode = 0  # hands off: without this its finaliser would wait for our child
    return popen.pid


def _take_terminal() -> None:
    # In the child, as another user by now, who may not be able to read a module.
    fcntl.ioctl(0, _TIOCSCTTY, 0)
