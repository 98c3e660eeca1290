"""Who waits for children, and what it leaves alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from daemon import init, outcome, tree
from daemon.init import Reaper
from daemon.process import Process
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, wait_until
from tests.unit.daemon.shells import Shell
from tests.unit.daemon.test_exec_background import zombies_of
from tests.unit.daemon.test_faults import broken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_reaper_without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", refuse)
    assert not Reaper().reap_one()


def test_the_reaper_leaves_alone_what_was_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    reaper = Reaper()
    monkeypatch.setattr(os, "waitid", lambda *_: None)
    assert not reaper.reap_one()

    class Peek:
        si_pid = 2**22

    monkeypatch.setattr(os, "waitid", lambda *_: Peek)
    assert reaper.reap_one()


def test_a_start_that_somebody_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError

    monkeypatch.setattr(init.os, "kill", kill)
    reaper = Reaper()
    for now, pids in ((1.0, [7]), (1.5, [7, 8]), (2.0, [7]), (11.0, [7, 8]), (12.0, [])):
        monkeypatch.setattr(init.time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(init, "_starts", lambda pids=pids: pids)
        reaper.notice()
    assert sent == [(7, signal.SIGCONT), (7, signal.SIGKILL)]
    assert reaper._begun == {}


def test_the_reaper_outlives_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[type[BaseException]] = [SystemExit, RuntimeError, MemoryError]
    naps: list[float] = []

    def fail(*_: int) -> None:
        raise answers.pop()

    monkeypatch.setattr(os, "waitid", fail)
    monkeypatch.setattr(init.time, "sleep", naps.append)
    with pytest.raises(SystemExit):
        Reaper()._run()
    assert len(naps) == 2


def test_what_is_started_but_not_yet_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(init, "_is_starting", lambda _pid: next(answers))
    ends: list[init.Ended] = []
    reaper = Reaper()
    pid = os.posix_spawn("/bin/sh", ("sh", "-c", "exit 7"), {})
    with reaper.lock:
        reaper.watch(pid, ends.append)
    peek = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(os, "waitid", lambda *_: peek)
    assert reaper.reap_one()
    assert ends == []
    assert reaper.reap_one()
    assert [os.waitstatus_to_exitcode(end.status) for end in ends] == [7]
    reaper.reap(pid)
    assert len(ends) == 1


def test_27_the_end_of_a_child_without_an_owner_is_seen_at_once(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    # Nobody polls a session's shell by pidfd; the reaper must not leave it to its seldom look.
    seldom = "from daemon import init\ninit._IDLE_S = 3600.0"
    fresh = start(program=broken(tmp_path, seldom))
    shell = Shell(fresh, shell="bash")
    assert fresh.sh("exit 3").exit_code == 3
    result = shell.run("exit 4")
    assert (result.state, result.exit_code) == ("ended", 4)
    assert fresh.sh("exit 5").exit_code == 5


WITHOUT_PIDFD = """
import os
def refuse(*_):
    raise OSError(38, "Function not implemented")
os.pidfd_open = refuse
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
def test_28_where_the_kernel_has_no_pidfd_one_thread_reaps_all(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    old = start(*IN_ITS_OWN_NAMESPACE, program=broken(tmp_path, WITHOUT_PIDFD))
    for code in range(20):
        assert old.sh(f"(true &) ; exit {code}").exit_code == code
    assert wait_until(lambda: not zombies_of(old.pid))


def test_a_process_that_vanishes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int, _size: int) -> bytes:
        raise ProcessLookupError

    monkeypatch.setattr(os, "read", fail)
    assert tree._read("/proc/self/stat") == b""
    assert outcome.difference(None, None) is None


SEIZE = """
import ctypes, sys
assert ctypes.CDLL(None, use_errno=True).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0
print("traced", flush=True)
input()
"""


def test_a_traced_leader_that_has_ended_keeps_nobody_busy() -> None:
    # Its pidfd is readable, and it cannot be reaped before its tracer lets go of it.
    reaper, process = Reaper(), Process("id", "tag")
    with reaper.lock:
        process.pid = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
        reaper.watch(process.pid, process.on_end, is_owned=True)
    assert process.wait_by(reaper.reap)
    pidfd = process.watched
    assert pidfd is not None
    with subprocess.Popen(
        [sys.executable, "-c", SEIZE, str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"traced\n"
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
        process.reap()
        assert (process.end, process.watched) == (None, None)
        assert reaper._unowned == {process.pid}  # which it waits for, and tells of
        tracer.communicate(b"\n")
    reaper.reap(process.pid)
    assert process.end is not None
    process.close()
