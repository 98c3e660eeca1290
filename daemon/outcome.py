"""From how a command ended to the result that its caller gets."""

from __future__ import annotations

import os
import signal

from sandman import wire
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon import usage
    from daemon.launch import StartFailedError
    from daemon.process import Process

_GROWTH_KIB = 1024
"""What this daemon's other threads may take while one starts a command: a few requests' worth."""


def not_started(failure: StartFailedError, process: Process, boot_id: str) -> wire.ExecResult:
    """The result of a command that could not be started, as a shell would tell it; the output apart."""
    said = {name: stream.log.total for name, stream in process.streams.items()}
    return wire.ExecResult(
        exit_code=failure.exit_code,
        start_error=failure.reason,
        stdout_bytes=said.get("stdout", 0),
        stderr_bytes=said.get("stderr", 0),
        exec_id=process.exec_id,
        boot_id=boot_id,
    )


def ended(
    process: Process, meter: usage.Meter, boot_id: str, *, timed_out: bool
) -> wire.ExecResult:
    """The result of a command that is over, without its output."""
    after = process.after = meter.read()
    code, number = exit_of(process)
    stdout = process.streams["stdout"].log
    stderr = process.streams["stderr"].log if "stderr" in process.streams else None
    return wire.ExecResult(
        exit_code=code,
        signal=number,
        timed_out=timed_out,
        abandoned=process.is_abandoned,
        stdout_bytes=stdout.total,
        stderr_bytes=stderr.total if stderr else 0,
        oom_killed=is_greater(after.oom_kills, process.before.oom_kills),
        wall_s=round(process.wall_s, 6),
        cpu_s=_cpu_s(process),
        peak_memory_bytes=_peak(process, meter),
        throttled_s=difference(after.throttled_s, process.before.throttled_s),
        exec_id=process.exec_id,
        boot_id=boot_id,
    )


def exit_of(process: Process) -> tuple[int, int | None]:
    """Exit code in the shell's convention, and the signal that ended the leader."""
    if process.end is None:
        # It hangs in the kernel; KILL was sent, so that is what it will have ended by.
        return 128 + signal.SIGKILL, int(signal.SIGKILL)
    if os.WIFSIGNALED(process.end.status):
        number = os.WTERMSIG(process.end.status)
        return 128 + number, number
    return os.WEXITSTATUS(process.end.status), None


def _cpu_s(process: Process) -> float | None:
    """Processor time of all of the command's processes that have ended.

    The kernel adds up those that were waited for; orphans came to this daemon, with their own.
    """
    if process.end is None:
        return None
    usage = process.end.usage
    return round(usage.ru_utime + usage.ru_stime + process.orphans.cpu_s, 6)


def _peak(process: Process, meter: usage.Meter) -> int | None:
    """The largest memory of one process of the command; None: less than what this daemon has.

    The kernel counts a process from its start, when it shares this daemon's memory: a value up to
    that says nothing about the command.
    """
    if process.end is None:
        return None
    kib, inherited_kib = process.end.usage.ru_maxrss, process.end.inherited_kib
    is_own = kib > inherited_kib + _GROWTH_KIB if inherited_kib else meter.is_over_own_peak(kib)
    orphans_kib = process.orphans.peak_kib
    if not is_own and orphans_kib <= kib:
        return None  # an orphan's is known, and that of the command itself may be more
    return 1024 * max(kib, orphans_kib)


def is_greater(after: int | None, before: int | None) -> bool | None:
    """Whether a counter grew; None where it could not be read."""
    return None if after is None or before is None else after > before


def difference(after: float | None, before: float | None) -> float | None:
    """By how much a counter grew; None where it could not be read."""
    return None if after is None or before is None else round(after - before, 6)
