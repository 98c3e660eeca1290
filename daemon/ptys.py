"""Pseudo terminals: what a command has for its standard descriptors instead of pipes.

The kernel's own words for it, since `termios` and `pty` would be loaded for a handful of numbers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from daemon.streams import Stdin, Stream
from sandman.errors import TerminalUnsupportedError

if TYPE_CHECKING:
    from daemon.users import User

MASTER = "/dev/ptmx"
_TCGETS = 0x5401
_TCSETS = 0x5402
_TIOCSWINSZ = 0x5414
_TIOCGPTN = 0x80045430
_TIOCSPTLCK = 0x40045431
_TERMIOS_BYTES = 36
_IUTF8 = 0o040000
"""Of the input flags: erasing takes a letter and not a byte."""
_BUFFER_BYTES = 128 * 1024
"""More than the kernel keeps of what was written and not read (64 KiB and a line discipline's 4 KiB)."""
_REOPEN_LOOK_S = 0.25
"""How often to look whether a command that closed its terminal has opened it again."""


class Pty(NamedTuple):
    """Descriptors of a terminal: our side, and the command's, which must not be kept: it could not end."""

    ours: int
    theirs: int


def open_pty(rows: int, cols: int, user: User | None) -> Pty:
    """A new terminal of this size. `user`: who else than the daemon's own user is to have it.

    Raises:
        TerminalUnsupportedError: there is none to be had here.
    """
    opened: list[int] = []
    try:
        opened.append(os.open(MASTER, os.O_RDWR | os.O_NOCTTY))
        fcntl.ioctl(opened[0], _TIOCSPTLCK, struct.pack("i", 0))
        (number,) = struct.unpack("I", fcntl.ioctl(opened[0], _TIOCGPTN, bytes(4)))
        opened.append(os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY))
        if user is not None:
            os.fchown(opened[1], user.uid, -1)
        _prefer_utf8(opened[0])
        set_size(opened[0], rows, cols)
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise _unsupported(error) from None
    return Pty(*opened)


def _unsupported(error: OSError) -> TerminalUnsupportedError:
    return TerminalUnsupportedError(
        f"no terminal can be had in this sandbox ({MASTER}, /dev/pts): {error.strerror}",
        field="terminal",
    )


def _prefer_utf8(fd: int) -> None:
    state = bytearray(fcntl.ioctl(fd, _TCGETS, bytes(_TERMIOS_BYTES)))
    (flags,) = struct.unpack_from("I", state)
    struct.pack_into("I", state, 0, flags | _IUTF8)
    fcntl.ioctl(fd, _TCSETS, bytes(state))


def set_size(fd: int, rows: int, cols: int) -> None:
    """Give the terminal this size; who runs in it is told by SIGWINCH."""
    fcntl.ioctl(fd, _TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


class TerminalOutput(Stream):
    """What is written to a terminal.

    It has no end of file: an error says that nobody has it open now. As long as the leader lives it, or
    who has it for a controlling terminal, may open it again.
    """

    def __init__(self, fd: int, limit: int) -> None:
        super().__init__(fd, limit, head=0)
        self._is_final = False

    def read(self, scratch: memoryview) -> None:
        """Move what is there into the log."""
        try:
            super().read(scratch)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.rests_until = time.monotonic() + _REOPEN_LOOK_S
            if self._is_final:
                self.close()

    def note_end(self) -> None:
        """The leader has ended. How much it wrote the kernel does not tell: read until there is no more."""
        self._is_final = True
        self.owed = _BUFFER_BYTES


class TerminalInput(Stdin):
    """What is typed into a terminal, and its size."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, is_open=True)
        self._typist: object = None

    def resize(self, rows: int, cols: int) -> bool:
        """Whether it could be given that size: it has not ended."""
        with self._changed:
            if self.fd is None:
                return False
            set_size(self.fd, rows, cols)
            return True

    def seat(self, typist: object) -> int:
        """This one types from now on, and none that was seated before; how many bytes were taken.

        A connection that broke may still have bytes on their way here. Who comes back by another learns
        here which of them are to be sent again, and is sure that they do not arrive after all.
        """
        with self._changed:
            self._typist = typist
            return self.taken

    def has_seat(self, typist: object) -> bool:
        """Whether no other was seated since."""
        return self._typist is typist

    def type(self, typist: object, data: bytes) -> None:
        """Take what a seated typist types, unless another has its seat."""
        with self._changed:
            if self._typist is typist:
                self.feed(data)
