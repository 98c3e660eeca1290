"""`/v1/processes`: starting, never twice, bounds and faults."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sandman import handles, wire
from tests.unit.daemon.commands import MIB, ask, begin, call, ended, gaps, output
from tests.unit.daemon.harness import (
    Daemon,
    head,
    joined,
    peak_kib,
    problem,
    processes_with,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# --- starting ------------------------------------------------------------------------------------


def test_26_start_wait_and_read(daemon: Daemon) -> None:
    info = begin(daemon, shell="echo out; echo err >&2; sleep 0.2; exit 3", exec_id="p26")
    assert (info.exec_id, info.state, info.detached, info.result) == ("p26", "running", True, None)
    assert time.strptime(info.started_at, "%Y-%m-%dT%H:%M:%SZ")
    result = ended(daemon, "p26")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.stdout_bytes, result.exec_id) == (4, "p26")
    assert ask(daemon, "p26").state == "ended"
    frames = output(daemon, "p26")
    assert frames[0].type == wire.STARTED
    assert frames[-1].type == wire.EXIT
    assert (joined(frames, wire.STDOUT), joined(frames, wire.STDERR)) == (b"out\n", b"err\n")
    assert "stdout" not in json.loads(frames[-1].payload)
    assert joined(output(daemon, "p26", 2, 4), wire.STDOUT) == b"t\n"


def test_26_a_name_is_made_where_none_is_given(daemon: Daemon) -> None:
    info = begin(daemon, argv=["echo", "hi"])
    assert ended(daemon, info.exec_id).stdout == b"hi\n"


def test_26_all_are_listed(daemon: Daemon) -> None:
    begin(daemon, argv=["true"], exec_id="listed-1")
    begin(daemon, argv=["sleep", "30"], exec_id="listed-2")
    ended(daemon, "listed-1")
    found = {one["exec_id"]: one for one in call(daemon, "GET", "").json()["processes"]}
    assert (found["listed-1"]["state"], found["listed-2"]["state"]) == ("ended", "running")
    assert found["listed-1"]["result"]["exit_code"] == 0
    assert "stdout" not in found["listed-1"]["result"]
    call(daemon, "DELETE", "/listed-2")


def test_26_a_wait_that_is_over_before_the_command(daemon: Daemon) -> None:
    begin(daemon, argv=["sleep", "30"], exec_id="long")
    started = time.monotonic()
    assert ask(daemon, "long", 0.2).state == "running"
    assert 0.15 < time.monotonic() - started < 2
    call(daemon, "DELETE", "/long")
    assert ended(daemon, "long").signal == signal.SIGTERM


@pytest.mark.parametrize("wait_s", ["x", "-1", "nan", "1e9"])
def test_a_wait_that_is_none(daemon: Daemon, wait_s: str) -> None:
    begin(daemon, argv=["true"], exec_id="w")
    assert problem(call(daemon, "GET", f"/w?wait_s={wait_s}"))["field"] == "wait_s"


def test_what_is_not_there(daemon: Daemon) -> None:
    for method, path in (("GET", "/no"), ("GET", "/no/output"), ("POST", "/no/stdin")):
        assert problem(call(daemon, method, path))["reason"] == "not_found"
    assert problem(call(daemon, "POST", "/no/signal", json={}))["reason"] == "not_found"
    assert problem(call(daemon, "GET", "/no/such/thing"))["reason"] == "not_found"
    assert problem(call(daemon, "GET", "/{}/output"))["reason"] == "not_found"
    assert problem(call(daemon, "PUT", "/no/output"))["reason"] == "method_not_allowed"
    assert call(daemon, "DELETE", "/no").status_code == 204


def test_what_cannot_be_started(daemon: Daemon) -> None:
    assert (
        problem(call(daemon, "POST", "", json={"argv": ["true"], "cwd": "/no"}))["field"] == "cwd"
    )
    assert problem(call(daemon, "POST", "", json={"argv": ["x"], "no": 1}))["field"] == "no"
    info = begin(daemon, argv=["no-such"], exec_id="absent")
    assert info.result is not None
    assert (info.result.exit_code, info.result.start_error) == (127, "not_found")
    assert b"no-such" in info.result.stderr
    frames = output(daemon, "absent")
    assert [frame.type for frame in frames] == [wire.STDERR, wire.EXIT]
    assert daemon.refuse(argv=["true"], detached=True)["field"] == "detached"
    assert daemon.refuse(argv=["true"], attached_grace_s=1000)["field"] == "attached_grace_s"


# --- never twice ---------------------------------------------------------------------------------


def test_52_the_same_name_never_runs_twice(daemon: Daemon, tmp_path) -> None:
    body = {"shell": f"echo x >> {tmp_path}/runs; sleep 0.2", "exec_id": "once", "stdin": "a"}
    seen: list[int] = []

    def start() -> None:
        answer = daemon.client.post("/v1/processes", json={"detached": True, **body})
        seen.append(answer.status_code)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [200] * 8
    ended(daemon, "once")
    start()
    assert (tmp_path / "runs").read_text() == "x\n"


@pytest.mark.parametrize(
    "change", [{"stdin": "b"}, {"stdin": None}, {"shell": "false"}, {"env": {"A": "1"}}]
)
def test_52_the_same_name_with_another_command_is_a_conflict(daemon: Daemon, change) -> None:
    body = {"detached": True, "shell": "true", "exec_id": "mine", "stdin": "a"}
    begin(daemon, **body)
    found = problem(call(daemon, "POST", "", json={**body, **change}))
    assert (found["reason"], found["field"]) == ("conflict", "exec_id")


def test_52_exec_with_a_known_name_attaches(daemon: Daemon, tmp_path) -> None:
    body = {
        "shell": f"echo x >> {tmp_path}/runs; echo a; sleep 0.5; echo b",
        "exec_id": "p52-again",
    }
    answers: list[wire.ExecResult] = []
    frames: list[wire.Frame] = []
    threads = [
        threading.Thread(target=lambda: answers.append(daemon.exec(**body))),
        threading.Thread(target=lambda: answers.append(daemon.exec(**body))),
        threading.Thread(target=lambda: frames.extend(daemon.frames(**body))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.stdout for answer in answers] == [b"a\nb\n"] * 2
    assert joined(frames, wire.STDOUT) == b"a\nb\n"
    assert daemon.exec(**body) == answers[0]
    assert (tmp_path / "runs").read_text() == "x\n"


def test_52_a_framed_request_with_a_known_name_attaches(daemon: Daemon) -> None:
    request = wire.encode_frame(wire.REQUEST, b'{"argv":["cat"],"exec_id":"framed"}')
    request += wire.encode_frame(wire.STDIN, b"in") + wire.encode_frame(wire.STDIN_CLOSE)
    first, second = daemon.upload(request), daemon.upload(request)
    assert first.json()["stdout"] == "in"
    assert second.json() == first.json()


def test_53_a_command_that_did_not_start_tells_all_who_wait(start: Callable[..., Daemon]) -> None:
    fresh = start()
    body = {"argv": ["true"], "cwd": "/no", "exec_id": "never"}
    for _ in range(2):
        assert fresh.refuse(**body)["reason"] == "path_not_found"
    assert problem(call(fresh, "GET", "/never"))["reason"] == "not_found"


# --- bounds and faults ---------------------------------------------------------------------------


def test_20_the_kept_output_of_ended_commands_is_bounded(start: Callable[..., Daemon]) -> None:
    fresh = start()
    for number in range(8):
        begin(
            fresh,
            shell=f"head -c 9M /dev/zero | tr '\\0' a; echo {number}",
            exec_id=f"big-{number}",
        )
        ended(fresh, f"big-{number}")
    first = ask(fresh, "big-0").result
    assert first is not None
    assert (first.stdout, first.stdout_bytes, first.stdout_truncated) == (b"", 9 * MIB + 2, True)
    assert gaps(output(fresh, "big-0")) == [handles.Gap("stdout", 0, 9 * MIB + 2)]
    assert ended(fresh, "big-7").stdout_truncated is False
    assert peak_kib(fresh) < 160 * 1024


FAULTY = """
import sys
from daemon import attach
attach.Attachment._is_over = lambda self, now: 1 // 0
from daemon.__main__ import main
sys.exit(main())
"""


def test_a_fault_of_ours_is_told_to_whoever_asks(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    fresh = start(program=(sys.executable, str(script)))
    answer = call(fresh, "POST", "", json={"argv": ["sleep", "60"], "exec_id": "f"})
    assert answer.status_code in {200, 500}
    assert wait_until(lambda: call(fresh, "GET", "/f").status_code == 500)
    assert wait_until(lambda: call(fresh, "GET", "").json()["processes"][0]["state"] == "ended")
    assert problem(call(fresh, "GET", "/f/output"))["reason"] == "internal"
    assert wait_until(lambda: any("ZeroDivisionError" in line for line in fresh.lines))


NO_THREAD = """
import sys, threading
from daemon import runner
class Thread:
    def __init__(self, **kwargs): raise RuntimeError("can't start new thread")
runner.threading = type(sys)("threading")
runner.threading.Thread = Thread
from daemon.__main__ import main
sys.exit(main())
"""


def test_no_thread_for_a_command_is_an_error_and_leaves_nothing(
    start: Callable[..., Daemon], tmp_path, mark: str
) -> None:
    script = tmp_path / "full.py"
    script.write_text(NO_THREAD)
    fresh = start(program=(sys.executable, str(script)))
    answer = call(fresh, "POST", "", json={"shell": f"sleep 60; : {mark}", "exec_id": "f"})
    found = problem(answer)
    # It ran for a moment, and that there was no room is of the sandbox's making.
    assert (found["reason"], found["cause"]) == ("outcome_unknown", "sandbox")
    assert wait_until(lambda: not processes_with(mark))


def test_17_a_silent_command_keeps_its_reader_alive(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "fast.py"
    script.write_text(
        "import sys\nfrom sandman import wire\nwire.KEEPALIVE_S = 0.1\n"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    fresh = start(program=(sys.executable, str(script)))
    begin(fresh, argv=["sleep", "0.5"], exec_id="silent")
    assert [f.type for f in output(fresh, "silent")].count(wire.KEEPALIVE) >= 3


def test_descriptors_are_given_back(start: Callable[..., Daemon]) -> None:
    fresh = start()

    def count() -> int:
        return len(os.listdir(f"/proc/{fresh.pid}/fd"))  # noqa: PTH208

    fresh.exec(argv=["true"])
    before = count()
    for number in range(20):
        begin(fresh, argv=["echo", "x"], exec_id=f"d{number}", stdin_open=True)
        with closing(fresh.connect()) as sock:
            sock.sendall(head("GET", f"/v1/processes/d{number}/output"))
            sock.recv(10)
        ended(fresh, f"d{number}")
    assert wait_until(lambda: count() <= before + 2)


def test_18_no_grace_may_be_said_where_it_means_something(daemon: Daemon) -> None:
    assert daemon.exec(argv=["true"], attached_grace_s=0).exit_code == 0
    refused = problem(call(daemon, "POST", "", json={"argv": ["true"], "attached_grace_s": 0}))
    assert (refused["reason"], refused["field"]) == ("bad_request", "attached_grace_s")
    started = begin(daemon, argv=["true"], attached_grace_s=0, detached=True)
    assert ended(daemon, started.exec_id).exit_code == 0
