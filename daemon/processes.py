"""Commands: how each is doing, and the table of all of them by exec id."""

from __future__ import annotations

import os
import stat
import threading
import time
from typing import TYPE_CHECKING

from daemon import kernel, tree, usage
from daemon.launch import explain, plan
from daemon.spawn import Descriptors, DirectoryError, spawn
from daemon.streams import Stdin, Stream
from sandman.errors import BadRequestError, ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.init import Ended, Reaper
    from daemon.spawn import Program
    from daemon.state import Sandbox
    from sandman.wire import ExecSpec

NULL = "/dev/null"
_NULL_DEVICE = os.makedev(1, 3)
_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
MAX_ENDED = 1024
"""Ended commands remembered, so that an id is not run twice."""


class Process:
    """One command that was started."""

    def __init__(self, exec_id: str, tag: str) -> None:
        self.exec_id = exec_id
        self.tag = tag.encode()
        self.pid = 0
        self.streams: dict[str, Stream] = {}
        self.stdin: Stdin | None = None
        self.started = time.monotonic()
        self.ended_at: float | None = None
        self.end: Ended | None = None
        self.before = usage.Counters(None, None)
        self._born = tree.now()
        self._gone: float | None = None
        self.wake = os.eventfd(0)
        """Readable when the leader has ended."""
        self._wake_lock = threading.Lock()
        self._is_closed = False

    def on_end(self, end: Ended) -> None:
        """The reaper's call, in its thread."""
        self.ended_at = time.monotonic()
        self._gone = tree.now()
        self.end = end
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self.wake, 1)

    @property
    def wall_s(self) -> float:
        """Seconds that it has run."""
        return (self.ended_at or time.monotonic()) - self.started

    @property
    def life(self) -> tree.Life:
        """Its marks."""
        return tree.Life(self.pid, self.tag, self._born, self._gone)

    def close(self) -> None:
        """Give back the descriptors; the streams' may have been released before."""
        with self._wake_lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self.wake)
        for stream in self.streams.values():
            stream.close()
        if self.stdin is not None:
            self.stdin.close()

    def __repr__(self) -> str:
        return f"<Process {self.exec_id} pid={self.pid} ended={self.end is not None}>"


class Processes:
    """All commands of the sandbox by exec id: the running, and the last ones that ended."""

    def __init__(self, sandbox: Sandbox, reaper: Reaper, meter: usage.Meter) -> None:
        self.sandbox = sandbox
        self.meter = meter
        self._reaper = reaper
        self._running: dict[str, Process] = {}
        self._ended: dict[str, tree.Life | None] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._oom_score = kernel.likelier_oom_score()

    @property
    def boot_id(self) -> str:
        """Of this daemon."""
        return self.sandbox.boot_id

    @property
    def running(self) -> int:
        """Commands that run."""
        return len(self._running)

    def reserve(self, exec_id: str | None) -> Process:
        """A place in the table.

        Raises:
            BadRequestError: not an exec id.
            ConflictError: it is taken, by a command that runs or has ended.
        """
        if exec_id is not None and not (0 < len(exec_id) <= 64 and set(exec_id) <= _ID_CHARACTERS):
            raise BadRequestError("exec_id must be 1 to 64 of [A-Za-z0-9._-]", field="exec_id")
        with self._lock:
            self._count += 1
            name = exec_id or f"x{self._count:x}-{os.urandom(4).hex()}"
            if name in self._running or name in self._ended:
                raise ConflictError(f"exec_id {name} was used before", field="exec_id")
            process = Process(name, tree.make_tag(self.boot_id, self._count))
            self._running[name] = process
        return process

    def start(self, process: Process, spec: ExecSpec, limit: int) -> None:
        """Start the command in its reserved place; `limit`: bytes of output to keep.

        Raises:
            StartFailedError: it did not start, which is a result.
            SandmanError: it did not start, which is an error.
        """
        program = plan(spec, self.sandbox, process.tag.decode())
        process.before = self.meter.read()
        try:
            self._spawn(process, program, spec, limit)
        except (OSError, DirectoryError) as error:
            raise explain(error, program) from error

    def _spawn(self, process: Process, program: Program, spec: ExecSpec, limit: int) -> None:
        child: list[int] = []
        try:
            stdin = _open_stdin(process, spec, child)
            stdout = _open_stream(process, "stdout", limit, child)
            stderr = stdout
            if not spec.merge_stderr:
                stderr = _open_stream(process, "stderr", limit, child)
            fds = Descriptors(stdin, stdout, stderr)
            process.pid = spawn(program, fds, self._reaper, process.on_end)
            kernel.offer_to_oom_killer(process.pid, self._oom_score)
            if process.stdin is not None:
                process.stdin.feed(spec.stdin or b"")
        finally:
            for fd in child:
                os.close(fd)

    def finish(self, process: Process) -> None:
        """The command is over for its caller."""
        process.close()
        with self._lock:
            self._running.pop(process.exec_id, None)
            self._ended[process.exec_id] = process.life if process.pid else None
            while len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def forget(self, process: Process) -> None:
        """The command never ran: its id is free again."""
        process.close()
        with self._lock:
            self._running.pop(process.exec_id, None)

    def others(self, process: Process) -> list[tree.Life]:
        """The lives of all other commands."""
        with self._lock:
            lives = [p.life for p in self._running.values() if p is not process and p.pid]
            return lives + [life for life in self._ended.values() if life is not None]


def _open_stdin(process: Process, spec: ExecSpec, child: list[int]) -> int:
    if spec.stdin is None:
        null = _open_null()
        if null is not None:
            child.append(null)
            return null
    reader, writer = os.pipe()
    child.append(reader)
    process.stdin = Stdin(writer)
    return reader


def _open_null() -> int | None:
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


def _open_stream(process: Process, name: str, limit: int, child: list[int]) -> int:
    reader, writer = os.pipe()
    child.append(writer)
    process.streams[name] = Stream(reader, limit)
    return writer


def iter_open(process: Process) -> Iterator[Stream]:
    """The streams that have not ended."""
    return (stream for stream in process.streams.values() if stream.fd is not None)
