"""Signals to PID 1: only those from outside its namespace count, whatever comes from inside."""

from __future__ import annotations

import os
import platform
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, serve_by, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
runtime = [pytest.mark.runtime, pytest.mark.timeout(1200)]


@pytest.fixture(params=["plain", pytest.param("native", marks=runtime)])
def fresh(request: pytest.FixtureRequest, start: Callable[..., Daemon]) -> Iterator[Daemon]:
    """A PID 1 of its own, on any Python and on the daemon's."""
    options = {}
    if request.param == "native":
        options["program"] = serve_by(request.getfixturevalue("native"))
    running = start(*IN_ITS_OWN_NAMESPACE, **options)
    yield running
    running.process.kill()


def has_pending_term(pid: int) -> bool:
    """Whether a SIGTERM waits for the process, as a whole."""
    return bool(int(field(pid, "ShdPnd"), 16) & 1 << signal.SIGTERM - 1)


def field(pid: int, name: str) -> str:
    """Of /proc/PID/status."""
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))


@pytest.mark.parametrize("name", ["STOP", "TSTP", "KILL", "QUIT", "ABRT", "SEGV", "USR1", "RTMIN"])
def test_from_inside_none_has_an_effect(fresh: Daemon, name: str) -> None:
    assert fresh.sh(f"kill -{name} 1; kill -{name} 1").exit_code == 0
    assert fresh.sh("echo still").stdout == b"still\n"
    assert field(fresh.pid, "State") in "SR"


def test_many_from_inside_do_not_hide_a_later_one_from_outside(fresh: Daemon) -> None:
    assert fresh.sh("for i in {1..2000}; do kill -TERM 1; done").exit_code == 0
    assert fresh.sh("echo still").stdout == b"still\n"
    os.kill(fresh.pid, signal.SIGTERM)
    assert fresh.process.wait(10) == 0


def poised(fresh: Daemon, tmp_path: Path) -> Callable[[], None]:
    """A process inside that sends its SIGTERM when told to, while the daemon itself stands still."""
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.01; done; kill -TERM 1; echo > {tmp_path}/sent"
    fresh.sh(f"({script}) > /dev/null 2>&1 &")
    os.kill(fresh.pid, signal.SIGSTOP)
    assert wait_until(lambda: field(fresh.pid, "State") == "T")

    def send() -> None:
        go.touch()
        assert wait_until((tmp_path / "sent").exists)

    return send


def test_one_from_outside_that_waits_is_not_hidden_by_one_from_inside(
    fresh: Daemon, tmp_path: Path
) -> None:
    send = poised(fresh, tmp_path)
    os.kill(fresh.pid, signal.SIGTERM)
    send()
    os.kill(fresh.pid, signal.SIGCONT)
    assert fresh.process.wait(10) == 0


def test_one_from_outside_is_lost_only_behind_one_that_waits(fresh: Daemon, tmp_path: Path) -> None:
    # The kernel keeps one SIGTERM at a time, with its first sender. Nobody can tell that another came.
    send = poised(fresh, tmp_path)
    send()
    assert has_pending_term(fresh.pid)
    os.kill(fresh.pid, signal.SIGTERM)
    os.kill(fresh.pid, signal.SIGCONT)
    assert wait_until(lambda: not has_pending_term(fresh.pid))
    assert fresh.sh("echo still").stdout == b"still\n"
    os.kill(fresh.pid, signal.SIGTERM)
    assert fresh.process.wait(10) == 0


def test_a_flood_from_inside_hides_those_from_outside_only_for_a_while(fresh: Daemon) -> None:
    body = {"shell": "while :; do kill -TERM 1; done", "exec_id": "flood", "detached": True}
    assert fresh.client.post("/v1/processes", json=body).status_code in {200, 201}

    def ended() -> bool:
        if fresh.process.poll() is None:
            try:
                os.kill(fresh.pid, signal.SIGTERM)
            except ProcessLookupError:
                return fresh.process.wait(5) == 0
        return fresh.process.poll() == 0

    assert wait_until(ended, 20)


FILL_AND_FORGE = """
import ctypes, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 3})
queued = 0
try:
    while True:
        signal.pthread_kill(threading.get_ident(), signal.SIGRTMIN + 3)
        queued += 1
except BlockingIOError:
    pass
info = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1)  # SI_QUEUE
assert ctypes.CDLL(None).syscall(129, 1, signal.SIGTERM, info) == 0  # rt_sigqueueinfo
print(queued)
"""


@pytest.mark.runtime
@pytest.mark.timeout(1200)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a number of a system call")
def test_a_forged_sender_is_not_lost_though_the_queue_is_full(
    native: Path, start: Callable[..., Daemon]
) -> None:
    # A full queue loses the sender, and a signal without one looks like one from outside.
    limit = ("prlimit", "--sigpending=4000:4000")
    running = start(*IN_ITS_OWN_NAMESPACE, *limit, program=serve_by(native))
    result = running.exec(argv=[sys.executable, "-c", FILL_AND_FORGE])
    assert (result.exit_code, result.stderr) == (0, b"")
    assert 0 < int(result.stdout) < 4000 - 60
    assert running.sh("echo still").stdout == b"still\n"
    assert running.process.poll() is None
