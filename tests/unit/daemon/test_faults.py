"""Faults of the daemon itself, and of what it stands on: they stay small."""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from daemon.exchange import Exchange
from daemon.http1 import Head
from sandman import wire
from sandman.errors import (
    BadRequestError,
)
from tests.unit.daemon.harness import Daemon, exec_request, joined, problem, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def broken(tmp_path: Path, patch: str) -> tuple[str, ...]:
    """A program that runs a daemon with a fault built in."""
    script = tmp_path / "broken.py"
    script.write_text(f"import sys\n{patch}\nfrom daemon.__main__ import main\nsys.exit(main())\n")
    return (sys.executable, str(script))


FAULTY_LOOP = """
from daemon import attach
attach.Attachment._is_over = lambda self, now: [][len(self._process.streams["stdout"].log.kept)]
"""


def test_a_fault_of_ours_is_internal_logged_and_ends_the_command(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=broken(tmp_path, FAULTY_LOOP))
    found = problem(fresh.post({"argv": ["sleep", "60"]}))
    assert (found["status"], found["reason"], found["cause"]) == (500, "internal", "infrastructure")
    assert wait_until(lambda: any("IndexError" in line for line in fresh.lines))
    assert fresh.client.get("/v1/info").json()["running"] == 0


@pytest.mark.parametrize("fault", ["OSError(24, 'Too many open files')", "MemoryError()"])
def test_want_of_room_is_the_sandboxs_and_nobody_knows_what_was_done(
    start: Callable[..., Daemon], tmp_path: Path, fault: str
) -> None:
    patch = (
        "from daemon import handshake\n"
        f"def fail(self, exchange): raise {fault}\n"
        "handshake.Handshake.info = fail"
    )
    fresh = start(program=broken(tmp_path, patch))
    found = problem(fresh.client.get("/v1/info"))
    assert (found["reason"], found["cause"]) == ("outcome_unknown", "sandbox")


FAULTY_LATER = """
from daemon import attach
step = attach.Attachment._keep_time
def keep_time(self, now):
    step(self, now)
    if self._process.streams["stdout"].log.total:
        raise RuntimeError("boom")
attach.Attachment._keep_time = keep_time
"""


def test_a_fault_within_a_live_answer_is_an_error_frame(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=broken(tmp_path, FAULTY_LATER))
    frames = fresh.frames(shell="echo x; sleep 60")
    assert joined(frames, wire.STDOUT) == b"x\n"
    assert frames[-1].type == wire.ERROR
    assert json.loads(frames[-1].payload)["reason"] == "internal"


def test_a_name_that_is_forgotten_is_refused(start: Callable[..., Daemon], tmp_path: Path) -> None:
    fresh = start(program=broken(tmp_path, "from daemon import processes\nprocesses.MAX_ENDED = 1"))
    counts = {"shell": f"echo >> {tmp_path}/runs", "exec_id": "once"}
    assert fresh.exec(**counts).ok
    assert fresh.exec(**counts).ok  # the same result again
    assert fresh.exec(argv=["true"]).ok
    found = fresh.refuse(**counts)
    assert (found["status"], found["reason"]) == (502, "outcome_unknown")
    told = problem(fresh.client.get("/v1/processes/once"))
    assert told["reason"] == "outcome_unknown"
    assert problem(fresh.client.get("/v1/processes/never"))["reason"] == "not_found"
    assert (tmp_path / "runs").read_text() == "\n"


def test_frames_need_http_1_1(daemon: Daemon) -> None:
    request = exec_request({"argv": ["true"]}, "Accept: application/vnd.sandman.frames")
    answer = daemon.raw(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert b"HTTP/1.1 400" in answer


def test_a_retry_after_travels_as_a_header(daemon: Daemon) -> None:
    from daemon import routes  # noqa: PLC0415

    ours, theirs = socket.socketpair()
    with ours, theirs:
        exchange = Exchange(ours, Head("GET", "/", "", {}, 0, keep_alive=True))
        routes._refuse(exchange, BadRequestError("x", retry_after=2.5))
        assert b"Retry-After: 2\r\n" in theirs.recv(4096)
        routes._refuse(exchange, BadRequestError("again"))
        assert exchange.is_answered
    assert daemon.pid


def test_ignored_signals_are_given_up() -> None:
    from daemon import signals  # noqa: PLC0415

    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signals.reset_signals()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    signal.signal(signal.SIGUSR2, old)
