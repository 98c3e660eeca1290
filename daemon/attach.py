"""Moves bytes between a running command and its caller, in the caller's own thread.

A command without a caller of its own has a thread of its own. Who reads it from other threads is woken
after each read. One `poll` over the command's pipes, its end, and the caller's connection. Order matters at the end:
first the end is seen, then the pipes are asked how much they hold; that much the leader wrote, and
it is read whatever comes. A background child that still holds a pipe gets DRAIN_S and no more.
"""

from __future__ import annotations

import math
import select
import time

from daemon import config
from daemon.exchange import CallerGoneError
from daemon.process import iter_open
from sandman.errors import SandmanError
from sandman.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.process import Cursors, Process
    from daemon.stop import Stop
    from daemon.streams import Stream

DRAIN_S = 0.05
"""For the last words of children that outlive the leader by a moment, as in `a | b &`."""


class Caller(Protocol):
    """Who gets the output."""

    @property
    def pace(self) -> Cursors | None:
        """How far it has come; None: it does not hold the command up."""

    def fileno(self) -> int:
        """Of the connection."""

    def events(self) -> int:
        """What to poll the connection for; 0: nothing."""

    def handle(self, events: int) -> None:
        """Something came up on the connection; CallerGoneError when it ended."""

    def accepts(self) -> bool:
        """Whether there is room for more output."""

    def take(self) -> None:
        """There is more in the logs, or time has passed."""

    def next_at(self) -> float:
        """When `take` is due though nothing came."""


class Attachment:
    """A command, its caller, and the time that the command has."""

    def __init__(
        self,
        process: Process,
        caller: Caller | None,
        begin_stop: Callable[[float], Stop],
        timeout_s: float | None,
        scratch: memoryview,
    ) -> None:
        self.timed_out = False
        self.caller_error: Exception | None = None
        """Set when the caller ended the conversation, or broke its rules."""
        self._process = process
        self._caller = caller
        self._begin_stop = begin_stop
        self._stop: Stop | None = None
        self._deadline = process.started + timeout_s if timeout_s else math.inf
        self._drain_until = math.inf
        self._scratch = scratch
        self._poll = select.poll()
        self._polled: dict[int, int] = {}

    def run(self, begin: Callable[[], None]) -> None:
        """Return when the command is over, and with it all that there is to read.

        Args:
            begin: the caller's first act, whose failure already ends the command.
        """
        if self._caller is not None:
            self._process.lead(self._caller.pace)
        self._talk(begin)
        while not self._is_over(now := time.monotonic()):
            self._keep_time(now)
            self._watch(now)
            for fd, events in self._poll.poll(self._wait_ms()):
                self._dispatch(fd, events)

    def _is_over(self, now: float) -> bool:
        if self._stop is not None and not self._stop.is_done:
            return False
        if self._process.end is None:
            return self._stop is not None  # it could not be ended
        if math.isinf(self._drain_until):
            self._drain_until = now + DRAIN_S
            for stream in iter_open(self._process):
                stream.note_end()
        if self._has_room():
            # Not left to `poll`: another that holds the pipe may have read what is owed, and then
            # nothing would ever wake us.
            for stream in iter_open(self._process):
                stream.read(self._scratch)
        left = list(iter_open(self._process))
        return not left or (now >= self._drain_until and not any(s.owed for s in left))

    def _keep_time(self, now: float) -> None:
        if self._stop is None and self._process.end is None:
            if now >= self._deadline:
                self.timed_out = True
                self._stop = self._begin_stop(now)
            elif self._process.stop_asked:
                self._stop = self._begin_stop(now)
            elif now >= self._alone_until():
                self._process.is_abandoned = True
                self._stop = self._begin_stop(now)
        if self._stop is not None and not self._stop.is_done and now >= self._stop.next_at:
            self._stop.step(now)
        if now >= self._patient_until():
            self._lose_caller(CallerGoneError("the reader takes too long"))
        if self._caller is not None:
            self._talk(self._caller.take)

    def _patient_until(self) -> float:
        """When a caller that takes nothing of the last output, or too little, is given up."""
        return math.inf if self._caller is None else self._drain_until + config.FINISH_S

    def _alone_until(self) -> float:
        """When the command has been without a reader for too long."""
        if self._caller is not None:
            return math.inf
        if self.caller_error is not None and not isinstance(self.caller_error, CallerGoneError):
            return -math.inf  # who breaks the rules will not come back
        until = self._process.alone_until
        return math.inf if until is None else until

    def _wait_ms(self) -> int:
        now = time.monotonic()
        times = []
        # Once that is over, a caller without room is all that there is to wait for.
        if self._process.end is not None and (now < self._drain_until or self._has_room()):
            times.append(self._drain_until)
        if self._stop is not None:
            if math.isinf(self._drain_until):
                times.append(self._stop.next_at)
        elif self._process.end is None:
            times += [self._deadline, self._alone_until()]
            times += [s.rests_until for s in iter_open(self._process) if s.rests_until > now]
        if self._caller is not None:
            times += [self._caller.next_at(), self._patient_until()]
        wait = min(times, default=math.inf) - now
        return -1 if math.isinf(wait) else min(max(0, math.ceil(wait * 1000)), 3_600_000)

    def _watch(self, now: float) -> None:
        """Tell the poll what matters now."""
        wanted: dict[int, int] = {self._process.wake: select.POLLIN}
        if (pidfd := self._process.watched) is not None:
            wanted[pidfd] = select.POLLIN
        # With no room for output the pipes are not even watched: their hang-up would wake us anew
        # and anew. So a slow reader slows the command, and no byte is lost or kept.
        if self._has_room():
            for stream in iter_open(self._process):
                if stream.fd is not None and stream.rests_until <= now:
                    wanted[stream.fd] = select.POLLIN
        stdin = self._process.stdin
        if stdin is not None and stdin.fd is not None and stdin.size:
            wanted[stdin.fd] = select.POLLOUT
        if self._caller is not None and (events := self._caller.events()):
            wanted[self._caller.fileno()] = events
        if wanted == self._polled:
            return
        for fd in self._polled.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, events in wanted.items():
            self._poll.register(fd, events)
        self._polled = wanted

    def _has_room(self) -> bool:
        """Whether whoever sets the pace has room for more."""
        caller = self._caller
        if caller is not None and self._process.leads(caller.pace):
            return caller.accepts()
        is_ending = self._stop is not None or self._process.end is not None
        return is_ending or self._process.accepts()

    def _dispatch(self, fd: int, events: int) -> None:
        if fd == self._process.wake:
            self._process.clear()
            return
        if fd == self._process.pidfd:
            self._process.reap()
            return
        for stream in iter_open(self._process):
            if stream.fd == fd:
                self._read(stream)
                return
        stdin = self._process.stdin
        if stdin is not None and stdin.fd == fd:
            stdin.flush()
            self._process.notify()  # a reader may be one who writes, too, and wait for room
        elif self._caller is not None and self._caller.fileno() == fd:
            caller = self._caller
            self._talk(lambda: caller.handle(events))

    def _read(self, stream: Stream) -> None:
        stream.read(self._scratch)
        self._process.notify()
        if self._caller is not None:
            self._talk(self._caller.take)

    def _talk(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (CallerGoneError, SandmanError) as error:
            self._lose_caller(error)

    def _lose_caller(self, error: Exception) -> None:
        self.caller_error = error
        self._caller = None
        self._process.leave()
