"""A workload's command that cannot be wrapped as it should: it runs all the same, or the reason is told."""

from __future__ import annotations

import os
import pty
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from daemon import wrap
from daemon.init import Reaper
from sandman import names
from tests.unit.daemon.harness import (
    Daemon,
    environment,
    head,
    wait_until,
)
from tests.unit.daemon.test_faults import broken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
from tests.unit.daemon.test_wrap import DAEMON, run, wrapped


@pytest.mark.parametrize(
    ("program", "code"), [("/no/such", 127), ("no-such-program", 127), ("/etc/passwd", 126)]
)
def test_a_command_that_cannot_be_started(program: str, code: int) -> None:
    done = run(*wrapped(program))
    assert done.returncode == code
    assert f"cannot start the pod's own command {program}" in done.stderr


def test_without_a_daemon_it_runs_all_the_same() -> None:
    script = "echo $0 $1; env; cat /proc/self/status; trap"
    broken = {names.ENV_PORT: "not-a-port"}
    done = run(*wrapped("sh", "-c", script, "name", "argument"), env=broken)
    assert done.returncode == 0
    assert done.stdout.startswith("name argument\n")
    assert names.ENV_PORT not in done.stdout
    fields = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0
    assert not int(fields["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1
    assert "without a daemon" in done.stderr
    assert run(*wrapped("/no/such"), env=broken).returncode == 127
    assert run(*DAEMON, "serve", env=broken).returncode == 1


NO_THREADS = """
import threading
def refuse(self): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
"""
NO_ROOM = """
import errno, os
def refuse(*_, **__): raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
os.posix_spawnp = refuse
"""
NO_PARTS = """
from daemon import application
def refuse(*_): raise MemoryError
application.build = refuse
"""


@pytest.mark.parametrize("fault", [NO_THREADS, NO_ROOM, NO_PARTS], ids=["threads", "room", "parts"])
def test_no_fault_of_ours_keeps_it_from_running(tmp_path: Path, fault: str) -> None:
    script = "cat /proc/self/status; exit 7"
    done = run(*broken(tmp_path, fault), "serve", "--", "sh", "-c", script)
    assert done.returncode == 7
    fields = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0


def test_without_a_command_such_a_fault_is_the_end(tmp_path: Path) -> None:
    assert run(*broken(tmp_path, NO_THREADS), "serve").returncode == 1


def test_what_cannot_be_loaded_leaves_no_caller_waiting(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=(*broken(tmp_path, NO_PARTS), "serve", "--", "sleep", "60"))
    with fresh.connect() as sock:
        sock.sendall(head("GET", "/v1/info"))
        assert sock.recv(1) == b""
    assert fresh.stop() == 143


def test_a_signal_that_it_cannot_be_sent_ends_nothing(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    # As where it has become another user, and the daemon is not root.
    refuse = "import os\ndef refuse(*_): raise PermissionError(1, 'not yours')\nos.kill = refuse\n"
    command = "while [ ! -e go ]; do sleep 0.01; done; exit 6"
    program = (*broken(tmp_path, refuse), "serve", "--", "sh", "-c", f"cd {tmp_path}; {command}")
    fresh = start(program=program)
    os.kill(fresh.pid, signal.SIGUSR1)
    assert wait_until(lambda: any("cannot pass signal 10 on" in line for line in fresh.lines))
    (tmp_path / "go").touch()
    assert fresh.process.wait(10) == 6


@pytest.mark.parametrize("arguments", [["--"], ["serve", "--"], ["serve", "sleep"]])
def test_a_command_line_that_makes_no_sense(arguments: list[str]) -> None:
    done = run(*DAEMON, *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


# Not a shell: between two commands it takes a SIGINT for its child's, and loses it.
READS = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("got", input(), flush=True)
time.sleep(60)
"""


def test_at_a_terminal_it_has_the_foreground() -> None:
    # As `kubectl run -it`: the container's first process leads the session of the terminal.
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(DAEMON[0], list(wrapped(sys.executable, "-c", READS)), environment())
    try:
        os.write(terminal, b"hello\n")
        seen = b""
        while b"got hello" not in seen:
            seen += os.read(terminal, 1000)
        os.write(terminal, b"\x03")  # ^C is a signal to the foreground, once, and not to the daemon
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    finally:
        os.close(terminal)


def test_a_terminal_that_is_another_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _pid: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "tcsetpgrp", refuse)
    workload = wrap.Workload(Reaper())
    workload.pid = os.getpid()
    workload._give_terminal()
    assert workload.life.leader == os.getpid()
