"""Starts programs: the only place that forks.

`subprocess.Popen` without `preexec_fn` goes by vfork (0.7 ms whatever the daemon's size); it waits
itself only for a child that never became the program, under the lock that keeps the reaper away.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

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
    """The child's ends."""

    stdin: int
    stdout: int
    stderr: int


def spawn(
    program: Program, fds: Descriptors, reaper: Reaper, on_end: Callable[[Ended], None]
) -> int:
    """Start the program as leader of a session of its own; its pid.

    Raises:
        OSError: it did not start; `filename` is the cwd when that was at fault.
    """
    error: OSError | None = None
    for path in program.paths:
        try:
            with reaper.lock:
                pid = _fork(program, path, fds)
                reaper.watch(pid, on_end)
                return pid
        except (FileNotFoundError, NotADirectoryError, PermissionError) as failure:
            if failure.filename == program.cwd:
                raise
            error = error or failure
    raise error or FileNotFoundError(2, os.strerror(2), program.argv[0])


def _fork(program: Program, path: bytes, fds: Descriptors) -> int:
    user = program.user
    popen = subprocess.Popen(
        program.argv,
        executable=path,
        stdin=fds.stdin,
        stdout=fds.stdout,
        stderr=fds.stderr,
        cwd=program.cwd,
        env=program.environment,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=user.groups if user else None,
        start_new_session=True,
        close_fds=False,  # all of ours are close-on-exec: see `kernel.hide_descriptors`
    )
    popen.returncode = 0  # hands off: without this its finaliser would wait for our child
    return popen.pid
