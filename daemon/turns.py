"""What callers ask of a session, each thing once, and who waits for the answer."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from daemon.exchange import CallerGoneError
from sandman.errors import ConflictError
from sandman.sessions import ENDED, RUNNING, SessionResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.exchange import Exchange
    from sandman.errors import SandmanError
    from sandman.sessions import TurnSpec

MAX_TURNS = 1024
"""Remembered, so that none runs twice: whoever asks again after a lost answer does so within seconds."""
MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Output in answers that were given, the oldest dropped first; the last one is kept however long."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def ended(name: str, code: int | None, *, is_cut_off: bool) -> ConflictError:
    """What is told of a session, that something is asked of, and that has ended with this exit code."""
    facts: dict[str, object] = {"state": ENDED, "exit_code": code}
    why = ""
    if is_cut_off:
        facts["cut_off"] = True
        why = " (a command closed the shell's own descriptors)"
    return ConflictError(
        f"session {name} has ended with exit code {code}{why}: start it anew", facts=facts
    )


class Turn:
    """One thing asked of a session."""

    def __init__(self, spec: TurnSpec, command_id: str, boot_id: str) -> None:
        self.spec = spec
        self.id = command_id
        self.timed_out = False
        self.error: SandmanError | None = None
        self.result: SessionResult | None = None
        self.started = time.monotonic()
        self._boot_id = boot_id
        self._waiting: list[int] = []
        self._lock = threading.Lock()

    @property
    def deadline(self) -> float:
        """When its time is up; infinite when it has all the time."""
        timeout_s = self.spec.timeout_s
        return math.inf if timeout_s is None or self.timed_out else self.started + timeout_s

    @property
    def is_done(self) -> bool:
        """Whether it has its answer."""
        return self.result is not None or self.error is not None

    @property
    def wall_s(self) -> float:
        """Seconds since it was asked."""
        return round(time.monotonic() - self.started, 6)

    def answer(self, result: SessionResult) -> None:
        """Have everybody know."""
        self._settle(result._replace(wall_s=self.wall_s, boot_id=self._boot_id))

    def fail(self, error: SandmanError) -> None:
        """There is no answer and will be none."""
        self.error = error
        self._settle(None)

    def _settle(self, result: SessionResult | None) -> None:
        with self._lock:
            self.result = result
            for fd in self._waiting:
                os.eventfd_write(fd, 1)

    def wait(self, exchange: Exchange, seconds: float | None) -> SessionResult:
        """Its answer, or that there is none yet after so many seconds.

        Raises:
            CallerGoneError: who waits left; that changes nothing for the turn.
            SandmanError: there will be no answer.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(exchange.sock, select.POLLRDHUP)
        with self._woken() as fd:
            poll.register(fd, select.POLLIN)
            while not self.is_done and (left := until - time.monotonic()) > 0:
                wait_ms = None if math.isinf(left) else math.ceil(left * 1000)
                if any(ready != fd and events & _GONE for ready, events in poll.poll(wait_ms)):
                    raise CallerGoneError("closed by the caller")
        if self.error is not None:
            raise self.error
        pending = SessionResult(self.id, done=False, state=RUNNING, wall_s=self.wall_s)
        return self.result or pending._replace(boot_id=self._boot_id)

    @contextmanager
    def _woken(self) -> Iterator[int]:
        """A descriptor that is readable once there is an answer."""
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            with self._lock:
                self._waiting.append(fd)
            yield fd
        finally:
            with self._lock:
                self._waiting.remove(fd)
                os.close(fd)

    @property
    def size(self) -> int:
        """Bytes that its answer holds."""
        return len(self.result.output) + len(self.result.notices) if self.result else 0

    def forget(self) -> None:
        """Keep the answer without its output."""
        if self.result is not None and self.size:
            self.result = self.result._replace(output=b"", notices=b"", output_truncated=True)


class Book:
    """The turns of a session by their ids, the last ones with their answers."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._count = 0

    def find(self, spec: TurnSpec) -> Turn | None:
        """The turn that this very call began before.

        Raises:
            ConflictError: the id was used for something else.
        """
        known = self._turns.get(spec.command_id or "")
        if known is not None and known.spec != spec:
            raise ConflictError(
                f"command_id {known.id} was used for something else", field="command_id"
            )
        return known

    def enter(self, spec: TurnSpec, boot_id: str) -> Turn:
        """A new turn."""
        self._count += 1
        name = spec.command_id or f"t{self._count:x}-{os.urandom(4).hex()}"
        turn = self._turns[name] = Turn(spec, name, boot_id)
        self._trim()
        return turn

    def strike(self, turn: Turn) -> None:
        """It never was."""
        self._turns.pop(turn.id, None)

    def _trim(self) -> None:
        turns = list(self._turns.values())
        for turn in turns[: max(0, len(turns) - MAX_TURNS)]:
            if turn.is_done:
                del self._turns[turn.id]
        excess = sum(turn.size for turn in turns) - MAX_KEPT_BYTES
        for turn in turns[:-2]:
            if excess > 0:
                excess -= turn.size
                turn.forget()


class Scanner:
    """Looks for texts in a stream that comes in pieces."""

    def __init__(self) -> None:
        self._needles: tuple[bytes, ...] = ()
        self._held = b""

    def look_for(self, needles: tuple[bytes, ...]) -> None:
        """From here on; what is held is searched, too."""
        self._needles = needles

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """What may be passed on, and the text that was found at its end, if any.

        What comes behind that text is held, as is what may be the beginning of one.
        """
        data, self._held = self._held + data, b""
        found = [(at, needle) for needle in self._needles if (at := data.find(needle)) >= 0]
        if found:
            at, needle = min(found)
            end = at + len(needle)
            self._held = data[end:]
            return data[:end], needle
        keep = max((_overlap(data, needle) for needle in self._needles), default=0)
        cut = len(data) - keep
        self._held = data[cut:]
        return data[:cut], None

    def rest(self) -> bytes:
        """What is held: it will not be looked at any more."""
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, needle: bytes) -> int:
    """How many bytes at the end of the data are the beginning of the text."""
    most = min(len(data), len(needle) - 1)
    return next((size for size in range(most, 0, -1) if data.endswith(needle[:size])), 0)
