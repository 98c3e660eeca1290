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

from daemon import kernel, signals, tree
from sandman.records import TYPE_CHECKING, NamedTuple

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
    a terminal, which becomes that of the command's session. `cwd` is entered with the user's rights;
    with `keeps_cwd` also with the daemon's, should those not do: nobody asked for it, and `docker exec` and
    `su` leave a command there, too.
    """

    argv: tuple[bytes, ...]
    paths: tuple[bytes, ...]
    cwd: bytes
    environment: dict[bytes, bytes]
    user: User | None
    mark: int = 0
    terminal: bool = False
    keeps_cwd: bool = False


class Descriptors(NamedTuple):
    """The child's ends; none is below 3."""

    stdin: int
    stdout: int
    stderr: int


class StageError(Exception):
    """The program was not come to: what lies before it failed.

    Args:
        reason: what the kernel said.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class DirectoryError(StageError):
    """The program's working directory could not be entered, as its user."""


class UserError(StageError):
    """The daemon could not become the program's user."""


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
        StageError: what lies before the program failed; see its kinds.
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
        program.keeps_cwd,
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


def _failure(stage: int, number: int) -> OSError | StageError:
    error = OSError(number, os.strerror(number))
    if stage == _IN_PROGRAM:
        return error
    return {_IN_DIRECTORY: DirectoryError, _IN_USER: UserError}.get(stage, StageError)(error)


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
    is_there = _enter(program)
    before = resource.getrlimit(tree.LIMIT)
    if program.mark:
        # Only the soft limit: the daemon could not raise its hard limit again.
        resource.setrlimit(tree.LIMIT, (program.mark, before[1]))
    try:
        if program.user is not None or program.terminal:
            return _fork(program, path, fds, is_there=is_there)
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


def _enter(program: Program) -> bool:
    """Be in the program's directory, if that is for the daemon to do; whether it is."""
    if program.user is not None and not program.keeps_cwd:
        return False
    try:
        os.chdir(program.cwd)
    except OSError as error:
        if program.user is None:
            raise DirectoryError(error) from error
        return False
    return True


def _told(pipe: int) -> DirectoryError | None:
    """What the child said of its directory, if that was it."""
    os.set_blocking(pipe, False)
    try:
        number = int(os.read(pipe, 16))
    except BlockingIOError:
        return None
    return DirectoryError(OSError(number, os.strerror(number)))


def _leave() -> None:
    """Be nowhere in particular: a directory that somebody is in cannot be unmounted."""
    try:
        os.chdir("/")
    except OSError:
        return  # not this user's to enter; the child runs all the same


def _fork(program: Program, path: bytes, fds: Descriptors, *, is_there: bool) -> int:
    import subprocess  # noqa: PLC0415 - seldom needed

    user = program.user
    told, tell = os.pipe()

    def prepare() -> None:
        # In the child, as the user by now, who may not be able to read a module.
        if program.terminal:
            fcntl.ioctl(0, _TIOCSCTTY, 0)
        try:
            os.chdir(program.cwd)
        except OSError as error:
            if not is_there:
                os.write(tell, b"%d" % (error.errno or 0))
                raise

    # The child inherits this thread's mask. Should a SIGTERM for the daemon come now, it may be lost
    # as one of unknown origin: see `signals.serve_signals`.
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        popen = subprocess.Popen(  # noqa: S603 - what a caller asks for, in the caller's own sandbox
            program.argv,
            executable=path,
            stdin=fds.stdin,
            stdout=fds.stdout,
            stderr=fds.stderr,
            env=program.environment,
            user=user.uid if user is not None else None,
            group=user.gid if user is not None else None,
            extra_groups=user.groups if user is not None else None,
            preexec_fn=prepare,  # noqa: PLW1509 - as `subprocess` has it
            start_new_session=True,
            close_fds=False,  # all of ours are close-on-exec: see `kernel.hide_descriptors`
        )
    except subprocess.SubprocessError as error:
        raise _told(told) or StageError(OSError(errno.EIO, str(error))) from None
    except PermissionError as error:
        # Of the program's own it would name the file.
        raise (error if error.filename else UserError(error)) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(told)
        os.close(tell)
    popen.returncode = 0  # hands off: without this its finaliser would wait for our child
    return popen.pid
