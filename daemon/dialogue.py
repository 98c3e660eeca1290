"""The ways to a session's shell: its socket, its terminal, and where it talks to itself."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from daemon import script
from daemon.outputs import OutputLog
from daemon.streams import Stdin
from daemon.turns import Scanner
from sandman.sessions import SessionResult

if TYPE_CHECKING:
    from daemon.pty import Terminal
    from daemon.turns import Turn
    from sandman.sessions import TurnSpec

ASIDE_BYTES = 64 * 1024
"""Of what comes beside commands; a job in the background that writes more has a log of its own."""
_LEAST_BYTES = 1024
"""Kept of an output, whatever its limit: the shell's own last word is in it, see `script`."""
_CHUNK_BYTES = 64 * 1024
_ROUNDS = 16
"""Of reading what is there already: others may write as fast as we read. The poll tells of the rest."""


class Dialogue:
    """What goes to the shell and what comes from it."""

    def __init__(self, terminal: Terminal, control: int, lines: int, remarks: int) -> None:
        self._terminal = terminal
        self._control = control
        self._remarks = remarks
        for fd in (control, remarks):
            os.set_blocking(fd, False)
        self._lines = Stdin(lines, is_open=True)
        self._heard = bytearray()
        self._is_deaf = False
        """The socket has ended."""
        self._is_mute = False
        """Where the shell talks to itself nobody can any more."""
        self._scanner = Scanner()
        self._expect: tuple[bytes, ...] = ()
        self._mark = b""
        self._aside = OutputLog(ASIDE_BYTES)
        self._log: OutputLog | None = None
        """Of the command; None: what comes is beside one."""

    def say(self, line: bytes) -> None:
        """Give the shell a line."""
        self._lines.feed(line)

    def register(self, poll: select.poll) -> None:
        """What matters now."""
        poll.register(self._terminal.master, select.POLLIN)
        if not self._is_deaf:
            poll.register(self._control, select.POLLIN)
        if not self._is_mute:
            poll.register(self._remarks, select.POLLIN)
        for stdin in (self._lines, self._terminal.keys):
            if stdin.fd is not None and stdin.size:
                poll.register(stdin.fd, select.POLLOUT)

    def hear(self, ready: set[int]) -> list[script.Report]:
        """What the shell says on its socket; also writes what waits to be."""
        self._lines.flush()
        self._terminal.keys.flush()
        if self._control in ready:
            data = _read(self._control)
            self._is_deaf = data == b""
            self._heard += data or b""
        if self._remarks in ready:
            self._note()
        return script.reports(self._heard)

    def read(self, ready: set[int]) -> bytes:
        """What was written on the terminal."""
        return self._terminal.read() if self._terminal.master in ready else b""

    def _note(self) -> None:
        for _ in range(_ROUNDS):
            data = _read(self._remarks)
            if not data:
                self._is_mute = data is not None
                return
            self._aside.append(data)

    # --- output ---

    def begin(self, spec: TurnSpec) -> None:
        """A command begins: all that came before is beside it."""
        for _ in range(_ROUNDS):
            data = self._terminal.read()
            if not data:
                break
            self.take(data)
        self.settle()
        if self._log is not None:
            self._aside.append(self._log.kept)
        self._log = _log(spec)
        self._mark = b""
        self._watch(spec)
        self._terminal.reset()

    def resume(self, spec: TurnSpec) -> bytes:
        """Somebody else waits for the command; what came since the last answer, to be taken anew."""
        self.settle()
        old, self._log = self._log, _log(spec)
        self._watch(spec)
        if old is None:
            return b""
        self._log.total = old.total - old.size
        return old.kept

    def _watch(self, spec: TurnSpec) -> None:
        self._expect = tuple(t.encode("utf-8", "surrogateescape") for t in spec.expect)
        self._look()

    def _look(self) -> None:
        self._scanner.look_for((self._mark, *self._expect) if self._mark else self._expect)

    def look_for(self, mark: bytes) -> None:
        """The end of the command's output."""
        self._note()
        self._mark = mark
        self._look()

    def take(self, data: bytes) -> bytes | None:
        """Add to the output; one of the texts that were looked for, when it came. Then ask again."""
        passed, found = self._scanner.feed(data)
        if found is not None and found == self._mark:
            passed, self._mark = passed[: -len(found)], b""
            self._look()
        log = self._aside if self._log is None else self._log
        log.append(passed)
        return found

    def settle(self) -> None:
        """What may have been the beginning of something is not."""
        log = self._aside if self._log is None else self._log
        log.append(self._scanner.rest())

    def result(self, turn: Turn, *, runs: bool) -> SessionResult:
        """What the turn is told of output; it is told once. `runs`: there may be more."""
        log = self._log or OutputLog(0)
        self._log = _log(turn.spec) if runs else None
        self._expect = ()
        self._look()
        self._note()
        output, is_cut = log.cut(turn.spec.output_limit)
        aside, self._aside = self._aside, OutputLog(ASIDE_BYTES)
        return SessionResult(
            turn.id,
            output=output,
            output_bytes=log.total,
            output_truncated=is_cut,
            notices=aside.kept,
        )

    def cut_out(self, text: bytes) -> bool:
        """Whether this is in the output, which it leaves then: it is none of the command's."""
        log = self._log
        kept = b"" if log is None else log.kept
        if log is None or text not in kept:
            return False
        self._log = OutputLog(len(kept))
        self._log.append(kept.replace(text, b"", 1))
        self._log.total = log.total - len(text)
        return True

    def close(self) -> None:
        """Give back all descriptors."""
        self._lines.close()
        self._terminal.close()
        os.close(self._control)
        os.close(self._remarks)


def _log(spec: TurnSpec) -> OutputLog:
    return OutputLog(max(spec.output_limit, _LEAST_BYTES))


def _read(fd: int) -> bytes | None:
    """What is there; empty at the end, None when there is nothing just now."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
