"""PID 1's duties: SIGTERM, inherited signals, what children start with, odd environments."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.stopwatch import Stopwatch
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import (
    Daemon,
    environment,
    processes_with,
    wait_until,
    with_prctl,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_GLIBC = 0b11 << 31
"""Signals 32 and 33 are glibc's own, which its posix_spawn leaves ignored; musl has none."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")


@needs_root
def test_sigterm_from_inside_is_ignored(first: Daemon) -> None:
    boot_id = first.client.get("/v1/info").json()["boot_id"]
    for number in ("TERM", "INT", "HUP", "KILL"):
        first.sh(f"kill -{number} 1")
    first.exec(argv=["sh", "-c", "kill -TERM -1"])
    assert first.client.get("/v1/info").json()["boot_id"] == boot_id


FORGE = """
import ctypes, signal
info = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1)  # SI_QUEUE; si_pid stays 0
assert ctypes.CDLL(None).syscall(129, 1, signal.SIGTERM, info) == 0  # rt_sigqueueinfo
"""


@needs_root
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a number of a system call")
def test_a_forged_sender_does_not_make_it_come_from_outside(start: Callable[..., Daemon]) -> None:
    fresh = start(*IN_ITS_OWN_NAMESPACE)
    result = fresh.exec(argv=[sys.executable, "-c", FORGE])
    assert (result.exit_code, result.stderr) == (0, b"")
    assert fresh.process.poll() is None
    assert fresh.sh("echo still").stdout == b"still\n"


@needs_root
def test_sigterm_from_outside_ends_it_and_all_within(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start(*IN_ITS_OWN_NAMESPACE)
    fresh.sh(f"trap '' TERM; setsid bash -c 'trap \"\" TERM; exec -a {mark} sleep 60' & true")
    assert wait_until(lambda: processes_with(mark))
    watch = Stopwatch()
    assert fresh.stop() == 0
    assert watch.seconds() < 1
    assert wait_until(lambda: not processes_with(mark), 1)


@needs_root
def test_sigterm_from_outside_while_commands_start(start: Callable[..., Daemon]) -> None:
    for _ in range(5):
        fresh = start(*IN_ITS_OWN_NAMESPACE)
        import threading  # noqa: PLC0415

        def work(daemon: Daemon = fresh) -> None:
            try:
                while True:
                    daemon.exec(argv=["true"])
            except Exception:  # noqa: BLE001 - it ends with the daemon
                return

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        os.kill(fresh.pid, signal.SIGTERM)
        assert fresh.process.wait(5) == 0
        for thread in threads:
            thread.join()


def test_sigterm_as_an_ordinary_process_ends_all_trees(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start()
    fresh.sh(f"bash -c 'trap \"\" TERM; while :; do sleep 0.1; done; : {mark}' & true")
    assert wait_until(lambda: processes_with(mark))
    assert fresh.stop() == 0
    assert wait_until(lambda: not processes_with(mark), 1)


def test_commands_start_with_no_signal_blocked_or_ignored(daemon: Daemon) -> None:
    text = daemon.exec(argv=["cat", "/proc/self/status"]).stdout_text
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0
    assert int(fields["SigIgn"], 16) & ~OF_GLIBC == 0


def test_what_the_daemon_was_told_to_ignore_is_not_handed_on(start: Callable[..., Daemon]) -> None:
    fresh = start("nohup", "env", "--ignore-signal=INT", "--block-signal=USR1")
    text = fresh.exec(argv=["cat", "/proc/self/status"]).stdout_text
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert int(fields["SigIgn"], 16) & ~OF_GLIBC == 0
    assert int(fields["SigBlk"], 16) == 0


def test_commands_inherit_three_descriptors_and_no_more(daemon: Daemon) -> None:
    lines = daemon.exec(argv=["ls", "-l", "/proc/self/fd"]).stdout_text.splitlines()
    assert len(lines) == 5
    assert "/fd" in lines[4]  # that of `ls` itself


def test_each_command_leads_a_session_of_its_own(daemon: Daemon) -> None:
    fields = daemon.exec(argv=["cat", "/proc/self/stat"]).stdout.rpartition(b")")[2].split()
    pgrp, session = fields[2], fields[3]
    assert pgrp == session


@needs_root
def test_it_ends_children_that_a_killed_thread_of_calls_left(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start(*IN_ITS_OWN_NAMESPACE)
    fresh.sh(f"exec -a {mark} sleep 60 >/dev/null 2>&1 &")
    os.kill(fresh.pid, signal.SIGKILL)
    assert wait_until(lambda: not processes_with(mark))


def test_a_subreaper_serves_where_it_is_not_pid_1(
    start: Callable[..., Daemon], tmp_path: Path, mark: str
) -> None:
    fresh = start(env=with_prctl(tmp_path))
    script = f"(setsid env -i bash -c 'exec -a {mark} sleep 60' &) ; sleep 60"
    assert fresh.sh(script, timeout_s=0.5).timed_out
    assert not processes_with(mark)
    fresh.sh(f"(setsid bash -c 'exec -a {mark} sleep 60' &)")
    assert wait_until(lambda: processes_with(mark))
    assert fresh.stop() == 0
    assert wait_until(lambda: not processes_with(mark), 1)


def test_sigint_ends_it_in_a_terminal(start: Callable[..., Daemon]) -> None:
    fresh = start()
    assert fresh.client.get("/v1/info").status_code == 200  # it has all its handlers then
    os.kill(fresh.pid, signal.SIGINT)
    assert wait_until(lambda: fresh.process.poll() is not None, 8)
    assert fresh.process.returncode == 0


def test_a_deleted_working_directory(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = (
        f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n"
        "from daemon import serve\nassert serve.workdir() == b'/'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, env=environment())
    assert done.returncode == 0


def test_home_is_set_where_the_image_sets_none(start: Callable[..., Daemon]) -> None:
    fresh = start("env", "-u", "HOME")
    assert fresh.sh("echo $HOME").stdout == b"/root\n"
