"""Long-running processes: started apart from this one, recorded on disk, stopped by exact identity.

Never ends a process by name: a record holds the pid and the moment the process started, so a pid that the kernel
gave to somebody else is not touched.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed.shell import pause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from any later one with the same pid by its start time (clock ticks since boot)."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """True while it runs; a dead child of ours is reaped first, or it would count as running."""
        _reap(self.pid)
        return start_time(self.pid) == self.started


def start(
    record: Path, log: Path, command: Sequence[object], env: Mapping[str, str] | None = None
) -> Process:
    """Start a program that outlives this one, in its own session, its output in `log`."""
    words = [str(word) for word in command]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # posix_spawn, not Popen: a Popen object that is dropped while its child runs is a warning, and so a test's failure.
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
    ]
    actions.append((os.POSIX_SPAWN_DUP2, output, 2))
    try:
        pid = os.posix_spawn(
            words[0], words, dict(env or os.environ), file_actions=actions, setsid=True
        )
    finally:
        os.close(output)
    process = Process(pid, start_time(pid) or 0)
    record.write_text(json.dumps({"pid": process.pid, "started": process.started}))
    return process


def load(record: Path) -> Process | None:
    """The process of a record, if it still runs."""
    try:
        value = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return None
    process = Process(value["pid"], value["started"])
    return process if process.is_alive() else None


def stop(process: Process, patience: float) -> None:
    """End a process: SIGTERM, `patience` seconds, SIGKILL; returns when it is gone."""
    end_all([process], signal.SIGTERM, patience)
    end_all([process], signal.SIGKILL, 10.0)


def end_all(processes: Iterable[Process], number: signal.Signals, patience: float) -> None:
    """Send one signal to each that still runs and wait up to `patience` seconds for all to go."""
    left = [process for process in processes if process.is_alive()]
    for process in left:
        _signal(process.pid, number)
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        pause(0.02)
        left = [process for process in left if process.is_alive()]


def with_word(word: str) -> list[Process]:
    """Every process that has `word` as one whole word of its command line."""
    wanted = word.encode()
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and wanted in _words(directory):
            pid = int(directory.name)
            found.append(Process(pid, start_time(pid) or 0))
    return found


def start_time(pid: int) -> int | None:
    """When the process started; None if there is none, or only its unreaped remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything: count fields from its end.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def _words(directory: Path) -> list[bytes]:
    try:
        return (directory / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
