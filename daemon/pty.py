"""A terminal of the kernel's: what a shell and its programs take for a person at a keyboard.

Output passes through it byte for byte: no echo, no carriage returns. Whoever opens `path` first as
leader of a session without a terminal gets it as its controlling one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios

from daemon.streams import Stdin

_TIOCGPTN = 0x80045430
"""Which number the terminal has below /dev/pts; not in `termios`."""
_INTR, _SUSP = b"\x03", b"\x1a"
_CHUNK_BYTES = 64 * 1024


class Terminal:
    """Both ends of a terminal. The far one stays open here too, so that it outlives who uses it.

    Raises:
        OSError: the container has no /dev/ptmx, or all terminals are taken.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.master, self._slave = os.openpty()
        try:
            number = fcntl.ioctl(self.master, _TIOCGPTN, b"\0" * 4)
            self.path = f"/dev/pts/{struct.unpack('i', number)[0]}"
            os.set_blocking(self.master, False)
            os.set_blocking(self._slave, False)
            self._modes = _plain(termios.tcgetattr(self._slave))
            self.resize(rows, columns)
            self.reset()
            self.keys = Stdin(os.dup(self.master), is_open=True)
            """What is typed."""
        except BaseException:
            os.close(self.master)
            os.close(self._slave)
            raise

    def give(self, uid: int) -> None:
        """Let this user's programs open it by its path."""
        os.fchown(self._slave, uid, -1)

    def resize(self, rows: int, columns: int) -> None:
        """Have programs see this size."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def reset(self) -> None:
        """As it was at first, whatever a program did to it; what was typed and not read is gone."""
        termios.tcsetattr(self._slave, termios.TCSANOW, self._modes)
        try:
            termios.tcflush(self._slave, termios.TCIFLUSH)
            termios.tcflow(self._slave, termios.TCOON)
        except (
            termios.error
        ):  # gVisor's terminals know neither, nor can a program stop their output
            self._drain()

    def _drain(self) -> None:
        """Read away what was typed, also the beginning of a line."""
        raw = list(self._modes)
        raw[3] = 0
        termios.tcsetattr(self._slave, termios.TCSANOW, raw)
        try:
            while os.read(self._slave, _CHUNK_BYTES):
                pass
        except BlockingIOError:
            pass
        finally:
            termios.tcsetattr(self._slave, termios.TCSANOW, self._modes)

    def read(self) -> bytes:
        """What was written to it; empty when there is nothing just now."""
        try:
            return os.read(self.master, _CHUNK_BYTES)
        except (BlockingIOError, OSError):
            return b""

    def mark(self, text: bytes) -> bool:
        """Write this behind all that was written so far; False: it cannot be done just now.

        What a program has written arrives here only after a while of the kernel's. Once this text
        has come all that was written before it has come, too.
        """
        try:
            return os.write(self._slave, text) == len(text)
        except OSError:  # full; or hung up, as root can have it
            return False

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._signal(signal.SIGINT, _INTR)

    def suspend(self) -> None:
        """Ctrl-Z: the shell comes back, also where its command cannot be killed by this daemon."""
        self._signal(signal.SIGTSTP, _SUSP)

    @property
    def foreground(self) -> int:
        """The group of processes that the terminal's keys go to; 0: none, or nobody says."""
        return self._group() or 0

    def _group(self) -> int | None:
        """The same; None: this kernel tells it to those alone who sit at the terminal, as gVisor does."""
        try:
            return os.tcgetpgrp(self.master)
        except OSError:
            return None

    def _signal(self, number: signal.Signals, key: bytes) -> None:
        # By a signal first: a program may have turned the keys off. But another user's programs, as
        # with sudo, take it from their terminal alone.
        group = self._group()
        if group is None:
            self.keys.feed(key)
            return
        if group <= 1:
            return
        try:
            os.killpg(group, number)
        except PermissionError:
            self.keys.feed(key)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Hang up."""
        self.keys.close()
        os.close(self.master)
        os.close(self._slave)


def _plain(modes: list[int | list[bytes | int]]) -> list[int | list[bytes | int]]:
    """Lines and signals from the keyboard, no echo; output as it is written."""
    modes[0] = termios.ICRNL
    modes[1] = 0
    modes[3] = termios.ISIG | termios.ICANON
    return modes
