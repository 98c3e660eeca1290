"""A command's pipes, seen from here: what it wrote, and what it is still to read."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import threading
from collections import deque

from daemon.outputs import OutputLog

NULL = "/dev/null"
_NULL_DEVICE = os.makedev(1, 3)
_FIONREAD = 0x541B


class Stream:
    """The reading end of a command's stdout or stderr, and the log of what came."""

    def __init__(self, fd: int | None, limit: int, head: int | None = None) -> None:
        if fd is not None:
            os.set_blocking(fd, False)
        self.fd = fd
        self.log = OutputLog(limit, head, is_hashed=True)
        self.owed = 0
        """Bytes that the leader wrote before its end and that are still to be read."""
        self.rests_until = 0.0
        """Not to be watched before; on the clock of `time.monotonic`."""

    def read(self, scratch: memoryview) -> None:
        """Move what is there into the log, by way of `scratch`; close at end of file."""
        if self.fd is None:
            return
        try:
            size = os.readv(self.fd, [scratch])
        except BlockingIOError:
            self.owed = 0
            return
        self.owed = max(0, self.owed - size)
        if size:
            self.log.append(scratch[:size])
        else:
            self.close()

    def note_end(self) -> None:
        """The leader has ended: what the pipe holds now is owed to the caller, what comes later not."""
        if self.fd is not None:
            answer = fcntl.ioctl(self.fd, _FIONREAD, b"\0\0\0\0")
            self.owed = struct.unpack("i", answer)[0]

    def release(self) -> int | None:
        """Give the descriptor away."""
        fd, self.fd = self.fd, None
        return fd

    def close(self) -> None:
        """Close the reading end."""
        fd = self.release()
        self.owed = 0
        if fd is not None:
            os.close(fd)


class Stdin:
    """The writing end of a command's stdin, with what is still to be written.

    Locked: callers may add to it from other threads than the one that moves the command's bytes.
    """

    def __init__(self, fd: int, *, is_open: bool = False) -> None:
        os.set_blocking(fd, False)
        self.fd: int | None = fd
        self.is_open = is_open
        """More may come by calls of its own."""
        self.size = 0
        """Bytes that wait."""
        self.taken = 0
        """Bytes that were ever taken in."""
        self._pending: deque[memoryview] = deque()
        self._is_ending = False
        # For who looks and then acts, in a class of its own, too.
        self._changed = threading.Condition(threading.RLock())

    @property
    def is_ended(self) -> bool:
        """Whether nothing more can be fed."""
        return self._is_ending or self.fd is None

    def feed(self, data: bytes) -> None:
        """Have this written; dropped when the command reads no more."""
        with self._changed:
            if data and not self.is_ended:
                self.taken += len(data)
                self._pending.append(memoryview(data))
                self.size += len(data)
                self.flush()

    def end(self) -> None:
        """End of file after what waits."""
        with self._changed:
            self._is_ending = True
            self.flush()

    def flush(self) -> None:
        """Write what the pipe takes."""
        with self._changed:
            while self._pending and self.fd is not None:
                if not self._write(self.fd):
                    return
            if self._is_ending:
                self.close()

    def _write(self, fd: int) -> bool:
        view = self._pending[0]
        try:
            written = os.write(fd, view)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        self.size -= written
        self._changed.notify_all()
        if written < len(view):
            self._pending[0] = view[written:]
        else:
            self._pending.popleft()
        return True

    def wait_room(self, most: int, seconds: float) -> bool:
        """Wait until fewer than `most` bytes wait, or the command reads no more; False: it did not."""
        with self._changed:
            return self._changed.wait_for(lambda: self.size < most or self.fd is None, seconds)

    def close(self) -> None:
        """End of file now."""
        with self._changed:
            fd, self.fd = self.fd, None
            self._pending.clear()
            self.size = 0
            self._changed.notify_all()
            if fd is not None:
                os.close(fd)


def open_null() -> int | None:
    """The null device, if it is there and really that.

    An empty pipe reads the same, but not to all: ripgrep, for one, searches its stdin and not the
    directory when stdin is a pipe.
    """
    try:
        # As leader of a session this daemon would get the terminal that a link there leads to.
        fd = os.open(NULL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    found = os.fstat(fd)
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL_DEVICE:
        return fd
    os.close(fd)
    return None
