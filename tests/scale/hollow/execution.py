"""Commands of a hollow daemon: the daemon's own table, answers and frames, and no process beneath."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from daemon.init import Reaper
from daemon.processes import Processes
from daemon.runner import Runner
from daemon.streams import Stream
from daemon.usage import Meter
from sandman import wire
from tests.scale.hollow import commands

if TYPE_CHECKING:
    from daemon.process import Process
    from daemon.replies import Reply
    from daemon.state import Sandbox
    from sandman.wire import ExecResult, ExecSpec

KEPT = 4
"""Ended commands that a daemon remembers: whoever repeats a call does so at once."""
TICK_MS = 1000
"""Between two looks whether a caller is due a sign of life."""
NO_REAPER, NO_METER = Reaper(), Meter()
"""Never started, never read: there are no processes."""


class HollowProcesses(Processes):
    """The table of one daemon's commands."""

    def __init__(self, sandbox: Sandbox, read: commands.Read) -> None:
        super().__init__(sandbox, NO_REAPER, NO_METER)
        self._read = read
        self.answers: dict[str, commands.Answer] = {}

    def start(self, process: Process, spec: ExecSpec) -> None:
        """Find out what it comes to; that it takes its time is the runner's."""
        found = commands.answer(spec, self._read)
        self.answers[process.exec_id] = found
        process.limit = spec.output_limit
        streams = {"stdout": found.stdout, "stderr": found.stderr}
        if spec.merge_stderr:
            streams = {"stdout": found.stdout + found.stderr}
        for name, data in streams.items():
            process.streams[name] = Stream(None, max(spec.output_limit, len(data), 1))
            process.streams[name].log.append(data)
        process.pid = 1  # its own namespace's first; nobody here signals it

    def finish(self, process: Process, result: ExecResult | None = None) -> None:
        """It is over."""
        super().finish(process, result)
        self.answers.pop(process.exec_id, None)
        with self._lock:
            while len(self._ended) > KEPT:
                self._drop_output(self._ended.pop(next(iter(self._ended))))


class HollowRunner(Runner):
    """Sees commands through."""

    _processes: HollowProcesses  # type: ignore[mutable-override]

    def attend(self, process: Process, timeout_s: float | None, reply: Reply | None) -> None:
        """Pass on what it writes, and let its time go by."""
        found = self._processes.answers[process.exec_id]
        seconds = found.seconds if timeout_s is None else min(found.seconds, timeout_s)
        is_late = seconds < found.seconds
        try:
            if reply is not None:
                reply.attach(process, self._processes.boot_id)
                _wait(reply, seconds)
        finally:
            if reply is not None:
                reply.detach()
            self._processes.finish(process, self._result(process, found, is_late=is_late))

    def _result(
        self, process: Process, found: commands.Answer, *, is_late: bool
    ) -> wire.ExecResult:
        totals = {name: stream.log.total for name, stream in process.streams.items()}
        return wire.ExecResult(
            exit_code=143 if is_late else found.exit_code,
            signal=15 if is_late else None,
            timed_out=is_late,
            stdout_bytes=totals["stdout"],
            stderr_bytes=totals.get("stderr", 0),
            wall_s=round(process.wall_s, 6),
            exec_id=process.exec_id,
            boot_id=self._processes.boot_id,
        )


def _wait(reply: Reply, seconds: float) -> None:
    """So long the caller is served, and noticed when it leaves."""
    until = time.monotonic() + seconds
    reply.take()
    while (left := until - time.monotonic()) > 0:
        poll = select.poll()
        poll.register(reply.fileno(), reply.events())
        for _, events in poll.poll(min(TICK_MS, left * 1000)):
            reply.handle(events)
        reply.take()
