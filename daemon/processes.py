"""Starts commands, and the table of all of them by exec id."""

from __future__ import annotations

import os
import threading

from daemon import kernel, lease, tree
from daemon.forgotten import Forgotten
from daemon.launch import StartFailedError, explain, plan
from daemon.process import ROOM_BYTES, Process
from daemon.spawn import Descriptors, StageError, spawn
from daemon.streams import Stdin, Stream, open_null
from sandman import names
from sandman.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    SandmanError,
    UnreachableError,
)
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    import resource

    from daemon import usage
    from daemon.init import Reaper
    from daemon.spawn import Program
    from daemon.state import Sandbox
    from daemon.users import User
    from sandman.terminal import TerminalSpec
    from sandman.wire import ExecResult, ExecSpec

MAX_ENDED = 1024
"""Ended commands remembered whole: 6 to 18 MB when all are there, by what they wrote. Whoever asks again
after a lost answer does so within seconds, and no agent runs so many commands in that time. Of older
ones the names are kept."""
MAX_ENDED_SHELLS = 64
"""Whose background jobs are still told from a command's own."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
"""Output of ended commands that is kept, the oldest dropped first: three results as long as a result
can be by default. It is the sandbox's memory. The last to end is kept however long it is."""
_LEAST_KEPT = 4 * ROOM_BYTES
"""What a log keeps whatever the result's limit: a reader may lag by a quarter, and one that lost its
connection finds again what was on its way."""


class Processes:
    """All commands of the sandbox by exec id: the running, and the last ones that ended.

    Args:
        sandbox: where and as whom they run.
        reaper: waits for them.
        meter: counts what they use.
        spared: lives of processes that are no command of ours and must outlive them.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        reaper: Reaper,
        meter: usage.Meter,
        spared: tuple[tree.Life, ...] = (),
    ) -> None:
        self.sandbox = sandbox
        self.meter = meter
        self._spared = spared
        self._reaper = reaper
        self._running: dict[str, Process] = {}
        self._ended: dict[str, Process] = {}
        self._shells: list[Process] = []
        self._forgotten: Forgotten | None = None
        self._lock = threading.Lock()
        self._count = 0
        self._null_fd: int | None = None
        self._rested_at = 0.0
        self._is_closed = False
        self._kept_bytes = 0
        """Of all ended commands; added up anew at each end it was a third of what a command costs."""
        self._oom_score = kernel.likelier_oom_score()
        reaper.adopt = self._adopt

    @property
    def boot_id(self) -> str:
        """Of this daemon."""
        return self.sandbox.boot_id

    @property
    def running(self) -> int:
        """Commands that run."""
        return len(self._running) + sum(shell.end is None for shell in self._shells)

    @property
    def rested_at(self) -> float | None:
        """When the last command was over, those of sessions too (see `lease.now`); None while one runs."""
        with self._lock:
            moments = [shell.rested_at for shell in self._shells]
            if self._running or None in moments:
                return None
            return max([self._rested_at, *(at for at in moments if at is not None)])

    def close(self) -> None:
        """Start no command any more."""
        with self._lock:
            self._is_closed = True

    def dispose(self) -> None:
        """Let go of what is held for commands; none runs any more, and none will."""
        with self._lock:
            null, self._null_fd = self._null_fd, None
        if null is not None:
            os.close(null)

    def reserve(self, exec_id: str | None, mark: bytes = b"") -> tuple[Process, bool]:
        """A place in the table, and whether it is a new one.

        Args:
            exec_id: the command's name; None: one is made.
            mark: of the specification.

        Raises:
            BadRequestError: not an exec id.
            ConflictError: it is taken, by a command of another specification, or the claim was given back.
            OutcomeUnknownError: a command of this name ran, and how it ended is forgotten.
            UnreachableError: the sandbox has left no descriptor for it.
        """
        if exec_id is not None and not names.is_exec_id(exec_id):
            raise BadRequestError(
                "exec_id must be 1 to 64 of [A-Za-z0-9._-] and not dots alone", field="exec_id"
            )
        with self._lock:
            if self._is_closed:
                raise ConflictError("the claim that this command is for has been given back")
            self._count += 1
            name = exec_id or f"x{self._count:x}-{os.urandom(4).hex()}"
            known = self._running.get(name) or self._ended.get(name)
            if known is not None:
                if known.mark != mark:
                    raise ConflictError(
                        f"exec_id {name} was used with another command", field="exec_id"
                    )
                return known, False
            self._check_forgotten(name)
            try:
                process = Process(name, tree.make_tag(self.boot_id, self._count), mark)
            except OSError as error:
                text = f"no descriptor for a command: {error}"
                raise UnreachableError(text, cause="sandbox", retry_after=1.0) from error
            process.is_kept = exec_id is not None
            self._running[name] = process
        return process, True

    def get(self, exec_id: str) -> Process | None:
        """The command of this name, if it is remembered."""
        with self._lock:
            return self._running.get(exec_id) or self._ended.get(exec_id)

    def find(self, exec_id: str) -> Process:
        """The command of this name.

        Raises:
            NotFoundError: there is none.
            OutcomeUnknownError: there was one.
        """
        process = self.get(exec_id)
        if process is None:
            with self._lock:
                self._check_forgotten(exec_id)
            raise NotFoundError(f"no command {exec_id[:64]}; only the last to end are remembered")
        return process

    def _check_forgotten(self, exec_id: str) -> None:
        if self._forgotten is not None and exec_id in self._forgotten:
            raise OutcomeUnknownError(
                f"command {exec_id} has run, and is not run again; how it ended is forgotten, for "
                f"{MAX_ENDED} others have ended since"
            )

    def all(self) -> list[Process]:
        """Every command that is remembered, in the order of their starts."""
        with self._lock:
            both = [*self._ended.values(), *self._running.values()]
        return sorted(both, key=lambda process: process.started)

    def start(self, process: Process, spec: ExecSpec) -> None:
        """Start the command in its reserved place.

        Raises:
            StartFailedError: it did not start, which is a result.
            SandmanError: it did not start, which is an error.
        """
        process.limit = spec.output_limit
        process.detached = spec.detached
        process.is_terminal = spec.terminal is not None
        program = plan(spec, self.sandbox, process.tag.decode())
        process.before = self.meter.read()
        try:
            self._spawn(process, program, spec)
        except (OSError, StageError) as error:
            raise explain(error, program) from error

    def _spawn(self, process: Process, program: Program, spec: ExecSpec) -> None:
        child: list[int] = []
        try:
            if spec.terminal is not None:
                fds = _open_terminal(process, spec.terminal, program.user, child)
            else:
                fds = self._open_pipes(process, spec, child)
            process.pid = spawn(
                program, fds, self._reaper, process.on_end, self._oom_score, is_owned=True
            )
            if not process.wait_by(self._reaper.reap):
                self._reaper.attend(process.pid)
            if process.stdin is not None:
                process.stdin.feed(spec.stdin or b"")
        finally:
            for fd in child:
                os.close(fd)

    def _null(self) -> int | None:
        """The null device. Kept open: it stays that, whatever a command puts in its place."""
        with self._lock:
            if self._null_fd is None:
                self._null_fd = open_null()
            return self._null_fd

    def _open_pipes(self, process: Process, spec: ExecSpec, child: list[int]) -> Descriptors:
        limit = max(spec.output_limit, _LEAST_KEPT)
        null = self._null() if spec.stdin is None and not spec.stdin_open else None
        stdin = _open_stdin(process, spec, child) if null is None else null
        stdout = _open_stream(process, "stdout", limit, child)
        stderr = stdout
        if not spec.merge_stderr:
            stderr = _open_stream(process, "stderr", limit, child)
        return Descriptors(stdin, stdout, stderr)

    def signal(self, process: Process, number: int) -> None:
        """Signal the leader.

        Raises:
            ConflictError: it has ended.
        """
        if not self._reaper.signal(process.pid, number, process.on_end):
            raise ConflictError(f"command {process.exec_id} has ended")

    def _adopt(self, tag: bytes, rusage: resource.struct_rusage) -> None:
        """The reaper's call: an orphan has ended. Those of commands that are over count no more."""
        with self._lock:
            found = [process for process in self._running.values() if process.tag == tag]
        for process in found:
            process.orphans.add(rusage)

    def finish(self, process: Process, result: ExecResult | None = None) -> None:
        """The command is over; `result`: how it ended, unless that can never be told."""
        process.result = result
        with self._lock:
            self._rested_at = lease.now()
            self._running.pop(process.exec_id, None)
            self._ended[process.exec_id] = process
            self._kept_bytes += _kept_bytes(process)
            while len(self._ended) > MAX_ENDED:
                self._drop(next(iter(self._ended)))
        process.settle()
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._trim(process)

    def _drop(self, exec_id: str) -> None:
        """Of a name that somebody gave it is remembered that it was used."""
        process = self._ended.pop(exec_id)
        self._drop_output(process)
        if process.is_kept:
            self._forgotten = self._forgotten or Forgotten()
            self._forgotten.add(exec_id)

    def _trim(self, last: Process) -> None:
        """Drop output that is kept too long."""
        with self._lock:
            for process in self._ended.values():
                if self._kept_bytes <= MAX_KEPT_BYTES:
                    return
                if process is not last:
                    self._drop_output(process)

    def _drop_output(self, process: Process) -> None:
        """Of an ended command; the caller holds the lock."""
        self._kept_bytes -= _kept_bytes(process)
        for stream in process.streams.values():
            stream.log.forget()

    def answered(self, process: Process) -> None:
        """Its caller has it all; nobody can ask again for a command that was not given a name."""
        if not process.is_kept:
            with self._lock:
                if self._ended.get(process.exec_id) is process:
                    self._drop_output(process)

    def forget(self, process: Process, error: SandmanError) -> None:
        """The command never ran: its id is free again."""
        process.failure = error
        with self._lock:
            self._running.pop(process.exec_id, None)
        process.settle()

    def shelter(self, name: str) -> Process:
        """A place for a session's shell: no command's tree, whose end spares others', but not listed."""
        with self._lock:
            self._count += 1
            shell = Process(name, tree.make_tag(self.boot_id, self._count))
            shell.rest()
            ended = [one for one in self._shells if one.end is not None]
            for one in ended[: max(0, len(ended) - MAX_ENDED_SHELLS)]:
                self._shells.remove(one)
            self._shells.append(shell)
        return shell

    def open_shell(self, shell: Process, program: Program, fds: Descriptors) -> None:
        """Start a session's shell in its place.

        Raises:
            SandmanError, StartFailedError: it did not start.
        """
        try:
            shell.pid = spawn(program, fds, self._reaper, shell.on_end, self._oom_score)
            shell.wait_by(self._reaper.reap)
        except (OSError, StageError) as error:
            raise explain(error, program) from error

    def evict(self, shell: Process) -> None:
        """It never started."""
        with self._lock:
            self._shells.remove(shell)
        shell.close()

    def others(self, process: Process) -> list[tree.Life]:
        """The lives of all other commands, and of what is to be spared."""
        with self._lock:
            lives = [p.life for p in self._running.values() if p is not process and p.pid]
            ended = [p.life for p in self._ended.values() if p is not process and p.pid]
            shells = [p.life for p in self._shells if p is not process and p.pid]
            return [*lives, *ended, *shells, *self._spared]


def _kept_bytes(process: Process) -> int:
    return sum(stream.log.size for stream in process.streams.values())


def refused(process: Process, failure: StartFailedError) -> None:
    """What could not be started says why, as a shell would: on stderr, or in its terminal."""
    process.close()
    message = failure.message.encode("utf-8", "surrogateescape")
    stream = Stream(None, len(message) * 2)
    stream.log.append(message)
    process.streams = {"stdout" if process.is_terminal else "stderr": stream}


def _open_terminal(
    process: Process, spec: TerminalSpec, user: User | None, child: list[int]
) -> Descriptors:
    from daemon import ptys  # noqa: PLC0415 - few commands have one

    ours, theirs = ptys.open_pty(spec.rows, spec.cols, user)
    child.append(theirs)
    process.streams["stdout"] = ptys.TerminalOutput(ours, max(process.limit, _LEAST_KEPT))
    process.stdin = process.terminal = ptys.TerminalInput(os.dup(ours))
    return Descriptors(theirs, theirs, theirs)


def _open_stdin(process: Process, spec: ExecSpec, child: list[int]) -> int:
    reader, writer = os.pipe()
    child.append(reader)
    process.stdin = Stdin(writer, is_open=spec.stdin_open)
    return reader


def _open_stream(process: Process, name: str, limit: int, child: list[int]) -> int:
    reader, writer = os.pipe()
    child.append(writer)
    process.streams[name] = Stream(reader, limit)
    return writer
