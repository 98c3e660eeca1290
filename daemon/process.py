"""One command: how it is doing, who reads it, and how it ended."""

from __future__ import annotations

import os
import threading
import time

from daemon import lease, tree, usage
from sandman.handles import ENDED, RUNNING, ProcessInfo
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from daemon.init import Ended
    from daemon.ptys import TerminalInput
    from daemon.streams import Stdin, Stream
    from sandman.errors import SandmanError
    from sandman.wire import ExecResult

ROOM_BYTES = 256 * 1024
"""Of output that waits for a slow reader, and of input that waits for a slow command."""

Cursors = dict[str, int]
"""How far a reader has come in each stream."""


class Reader:
    """Who attends a command from a thread of its own.

    Args:
        cursors: where it stands, kept up to date by it; None: it wants the end alone.
    """

    def __init__(self, cursors: Cursors | None) -> None:
        self.cursors = cursors
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when there may be more."""

    def clear(self) -> None:
        """What woke it is seen to."""
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            return


class Process:
    """One command that was started.

    The thread that moves its bytes owns it. Other threads attend it as readers, and ask things of it
    by a flag and a `nudge`.
    """

    is_terminal = False
    """It was asked for with a terminal: stdout is all of its output."""
    terminal: TerminalInput | None = None
    """Its stdin, where that is a terminal."""
    pidfd: int | None = None
    """Readable when the leader has ended; None where the kernel has no such thing."""
    _reap: Callable[[int], None]
    _is_handed_on = False
    after = usage.Counters(None, None)
    """The counters at its end."""
    rested_at: float | None = None
    """When its work was over (see `lease.now`); None while it has some. A shell's is its command's."""

    def __init__(self, exec_id: str, tag: str, mark: bytes = b"") -> None:
        self.exec_id = exec_id
        self.tag = tag.encode()
        self.mark = mark
        """Of the specification: a call with another one does not mean this command."""
        self.pid = 0
        self.detached = False
        self.grace_s = 0.0
        self.limit = 0
        """Bytes of each stream that a result may hold."""
        self.is_kept = False
        """Its output is worth keeping after its end: somebody knows its name."""
        self.streams: dict[str, Stream] = {}
        self.stdin: Stdin | None = None
        self.started = time.monotonic()
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.end: Ended | None = None
        self.result: ExecResult | None = None
        """Without the streams; there once all is over."""
        self.failure: SandmanError | None = None
        """Why there is and will be no result."""
        self.before, self.orphans = usage.Counters(None, None), usage.Orphans()
        self.begun = threading.Event()
        """It runs, or never will."""
        self.is_settled = False
        """Nothing changes any more: result or failure and all output are there."""
        self.stop_asked = False
        self.is_abandoned = False
        """It was ended because nobody read it any more."""
        self.is_held = False
        """Its output waits for a reader."""
        self._readers: list[Reader] = []
        self._lead: Cursors | None = {"stdout": 0, "stderr": 0}
        self._lonely_since = self.started
        self._born = tree.now()
        self._gone: float | None = None
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when the leader has ended, or there is something else to see to."""
        self._lock = threading.Lock()
        self._is_closed = False

    def on_end(self, end: Ended) -> None:
        """The reaper's call, in its thread."""
        self.ended_at = time.monotonic()
        self.rest()
        self._gone = tree.now()
        self.end = end
        self.nudge()

    def work(self) -> None:
        """A command runs in this session's shell."""
        self.rested_at = None

    def rest(self) -> None:
        """The command is over."""
        self.rested_at = lease.now()

    def wait_by(self, reap: Callable[[int], None]) -> bool:
        """From now on the owner reaps the leader itself; False: it cannot."""
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            return False
        self._reap = reap
        return True

    @property
    def watched(self) -> int | None:
        """What the owner polls for the leader's end; None: there is nothing, or no need."""
        return None if self.end is not None or self._is_handed_on else self.pidfd

    def reap(self) -> None:
        """The leader seems to have ended."""
        self._reap(self.pid)
        # A traced one stays readable for as long as its tracer likes: the reaper tells, as `on_end`.
        self._is_handed_on = self.end is None

    def nudge(self) -> None:
        """Have the owner look; from any thread."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self.wake, 1)

    def clear(self) -> None:
        """The owner looks."""
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            return

    @property
    def wall_s(self) -> float:
        """Seconds that it has run."""
        return (self.ended_at or time.monotonic()) - self.started

    @property
    def life(self) -> tree.Life:
        """Its marks."""
        return tree.Life(self.pid, self.tag, self._born, self._gone)

    # --- readers ---

    def attended(self, reader: Reader) -> Attendance:
        """Somebody reads. The latest to come sets the pace, also for a while after it is gone.

        An earlier one may be a connection that broke and does not know it yet: it must not hold the
        command up.
        """
        return Attendance(self, reader)

    def join(self, reader: Reader) -> None:
        """A reader has come."""
        with self._lock:
            self._readers.append(reader)
            self._lead = reader.cursors
        self.nudge()

    def part(self, reader: Reader) -> None:
        """A reader has gone."""
        with self._lock:
            self._readers.remove(reader)
            self._lonely_since = time.monotonic()
            os.close(reader.wake)
        self.nudge()

    def lead(self, cursors: Cursors | None) -> None:
        """The reader that the owner serves itself sets the pace."""
        self._lead = cursors

    def leave(self) -> None:
        """The owner's own reader is gone."""
        with self._lock:
            self._lonely_since = time.monotonic()

    def leads(self, cursors: Cursors | None) -> bool:
        """Whether nobody has come since who sets the pace instead."""
        return self._lead is cursors

    def notify(self) -> None:
        """Have the readers look."""
        if self._readers:
            with self._lock:
                for reader in self._readers:
                    os.eventfd_write(reader.wake, 1)

    @property
    def alone_until(self) -> float | None:
        """When it shall end for want of a reader; None: not for now."""
        if self.detached or self._readers:
            return None
        return self._lonely_since + self.grace_s

    def accepts(self) -> bool:
        """Whether more output may be taken: what a reader has yet to get is not outrun."""
        lead = self._lead
        if self.detached or lead is None:
            return True
        self.is_held = True  # said first: a reader that moves on now will nudge
        if all(stream.log.total - lead[name] < ROOM_BYTES for name, stream in self.streams.items()):
            self.is_held = False
        return not self.is_held

    # --- what it says of itself ---

    @property
    def info(self) -> ProcessInfo:
        """What callers are told."""
        totals = {name: stream.log.total for name, stream in list(self.streams.items())}
        return ProcessInfo(
            exec_id=self.exec_id,
            state=ENDED if self.is_settled else RUNNING,
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_at)),
            detached=self.detached,
            terminal=self.is_terminal,
            stdin_bytes=self.stdin.taken if self.stdin is not None else 0,
            stdout_bytes=totals.get("stdout", 0),
            stderr_bytes=totals.get("stderr", 0),
        )

    @property
    def full_result(self) -> ExecResult | None:
        """The result with what is kept of the streams."""
        if self.result is None:
            return None
        result = self.result
        if "stdout" in self.streams:
            data, cut = self.streams["stdout"].log.cut(self.limit)
            result = result._replace(stdout=data, stdout_truncated=cut)
        if "stderr" in self.streams:
            data, cut = self.streams["stderr"].log.cut(self.limit)
            result = result._replace(stderr=data, stderr_truncated=cut)
        return result

    # --- the end ---

    def settle(self) -> None:
        """Nothing changes any more. Gives back the descriptors."""
        self.is_settled = True
        self.begun.set()
        self.close()
        self.notify()

    def close(self) -> None:
        """Give back the descriptors; the streams' may have been released before."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self.wake)
            if self.pidfd is not None:
                os.close(self.pidfd)
        for stream in self.streams.values():
            stream.close()
        if self.stdin is not None:
            self.stdin.close()

    def __repr__(self) -> str:
        return f"<Process {self.exec_id} pid={self.pid} ended={self.end is not None}>"


class Attendance:
    """While somebody reads. A class of its own: `contextlib` would be loaded for it alone, at each start."""

    __slots__ = ("_process", "_reader")

    def __init__(self, process: Process, reader: Reader) -> None:
        self._process = process
        self._reader = reader

    def __enter__(self) -> None:
        self._process.join(self._reader)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.part(self._reader)


def iter_open(process: Process) -> Iterator[Stream]:
    """The streams that have not ended."""
    return (stream for stream in process.streams.values() if stream.fd is not None)
