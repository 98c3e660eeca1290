"""Empties the pipes that background children hold after their command was answered.

Closing them would kill a server with SIGPIPE at its next line of log; not reading them would block
it. What they write from then on belongs to no answer and is dropped.
"""

from __future__ import annotations

import os
import select
import threading
import time

from daemon import config, log

_PAUSE_S = 0.002
"""After each round, so that a chatty child (some 30 MB/s) does not cost the commands their cpu."""


class Drain:
    """One thread for all such pipes, started with the first; when it cannot be, with a later one."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._lock = threading.Lock()
        self._count = 0
        self._is_started = False

    def take(self, fd: int) -> None:
        """Read this descriptor to its end, then close it.

        One that cannot be watched stays as it is, for ever: who holds its other end will wait then.
        """
        with self._lock:
            self._count += 1
            try:
                self._poll.register(fd, select.EPOLLIN)
            except OSError as error:  # the user's watches are used up, by what runs in the sandbox
                log.line(f"a pipe is not drained: {error}")
                return
            if not self._is_started:
                self._is_started = self._start()

    def _start(self) -> bool:
        """Whether there is a thread now; the answer of a command must not depend on it."""
        try:
            threading.Thread(target=self._run, name="drain", daemon=True).start()
        except RuntimeError as error:  # the sandbox's limit of processes is reached
            log.line(f"no thread to drain pipes: {error}")
            return False
        return True

    @property
    def count(self) -> int:
        """Pipes that are held."""
        return self._count

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                self._read(fd)
            time.sleep(_PAUSE_S)

    def _read(self, fd: int) -> None:
        try:
            if os.read(fd, config.CHUNK_BYTES):
                return
        except BlockingIOError:
            return
        with self._lock:
            self._poll.unregister(fd)
            os.close(fd)
            self._count -= 1
