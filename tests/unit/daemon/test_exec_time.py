"""`POST /v1/exec`: time-outs, trees, callers that leave: points 13 to 19."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from sandman import names, wire
from tests.stopwatch import Stopwatch
from tests.unit.daemon.harness import (
    Daemon,
    decode,
    exec_request,
    head,
    joined,
    processes_with,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLEEP = "exec -a {mark} sleep 60"
"""A process that is found by its name."""


def timed(daemon: Daemon, **body: object) -> tuple[wire.ExecResult, float]:
    """A result, and how long after its deadline it came, on a machine that has time for it."""
    watch = Stopwatch()
    result = daemon.exec(**body)
    return result, watch.seconds() - float(str(body["timeout_s"]))


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "sleep 60 & sleep 60 & wait",
        "while :; do echo busy; done",
        "while :; do :; done",
        "sleep 60 | cat | cat",
        "exec >&- 2>&-; sleep 60",
    ],
)
def test_13_timeout_fires_within_a_second(daemon: Daemon, script: str) -> None:
    result, late = timed(daemon, shell=script, timeout_s=0.2)
    assert result.timed_out
    assert late < 1, late
    assert (result.exit_code, result.signal) == (143, 15)


def test_13_timeout_fires_within_a_second_while_children_hold_the_pipes(
    daemon: Daemon, mark: str
) -> None:
    # The leader obeys TERM, its child does not and holds both pipes.
    child = f"trap '' TERM; echo up; while :; do sleep 0.1; done; : {mark}"
    script = f'setsid bash -c "{child}" & wait'
    result, late = timed(daemon, shell=script, timeout_s=0.3)
    assert result.timed_out
    assert late < 1, late
    assert result.stdout == b"up\n"
    assert not processes_with(mark)


def test_13_a_program_that_ends_in_time_is_not_timed_out(daemon: Daemon) -> None:
    result = daemon.sh("exit 3", timeout_s=5)
    assert (result.exit_code, result.timed_out) == (3, False)


def test_14_term_is_a_chance_to_clean_up(daemon: Daemon, tmp_path: Path) -> None:
    script = f"trap 'echo bye; touch {tmp_path}/clean; exit 9' TERM; sleep 60 & wait"
    result = daemon.sh(script, timeout_s=0.2)
    assert (result.exit_code, result.signal, result.timed_out) == (9, None, True)
    assert result.stdout == b"bye\n"
    assert (tmp_path / "clean").exists()


def test_14_who_cleans_up_may_start_programs(daemon: Daemon, tmp_path: Path) -> None:
    # Their own TERM would end them: only who was there when the end began is asked.
    script = f"trap 'sleep 0.5; touch {tmp_path}/clean; exit 9' TERM; sleep 60 & wait"
    result = daemon.sh(script, timeout_s=0.2)
    assert (result.exit_code, result.timed_out) == (9, True)
    assert (tmp_path / "clean").exists()
    script = f"trap 'sleep 0.3 && touch {tmp_path}/slept; exit 9' TERM; sleep 60 & wait"
    assert daemon.sh(script, timeout_s=0.2).exit_code == 9
    assert (tmp_path / "slept").exists()


def test_14_kill_follows_for_who_ignores_term(daemon: Daemon, mark: str) -> None:
    script = f"trap '' TERM; : {mark}; while :; do sleep 0.05; done"
    watch = Stopwatch()
    result = daemon.exec(argv=["bash", "-c", script], timeout_s=0.1)
    assert (result.exit_code, result.signal, result.timed_out) == (137, 9, True)
    assert watch.all_seconds() >= wire.TERM_GRACE_S
    assert watch.seconds() < wire.TERM_GRACE_S + 1.1
    assert not processes_with(mark)


def test_14_a_stopped_command_is_ended_too(daemon: Daemon, mark: str) -> None:
    script = f"kill -STOP $$; : {mark}"
    result, late = timed(daemon, argv=["bash", "-c", script], timeout_s=0.2)
    assert result.timed_out
    assert late < 1, late
    assert not processes_with(mark)


DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        env = {} if "clear" in sys.argv else os.environ
        os.execve("/bin/sleep", [sys.argv[1], "60"], env)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("clear", ["", "clear"])
def test_14_double_forked_and_setsid_is_killed(first: Daemon, mark: str, clear: str) -> None:
    # PID 1 also gets those that cleared their environment.
    argv = [sys.executable, "-S", "-c", DOUBLE_FORK, mark, clear]
    result, late = timed(first, argv=argv, timeout_s=0.7)
    assert result.timed_out
    assert late < 1, late
    assert not processes_with(mark)


def test_14_the_tag_finds_a_daemon_that_left_its_parents(daemon: Daemon, mark: str) -> None:
    argv = [sys.executable, "-S", "-c", DOUBLE_FORK, mark]
    result, late = timed(daemon, argv=argv, timeout_s=0.7)
    assert result.timed_out
    assert late < 1, late
    assert not processes_with(mark)


def test_14_a_fork_bomb_is_ended(first: Daemon, mark: str) -> None:
    # Seven generations, 255 processes at most: no limit holds root, and a bomb that a killed test run
    # left behind would take the machine.
    script = f"f() {{ sleep 0.01; [ $1 = 0 ] || {{ f $(($1-1)) & f $(($1-1)) & }}; sleep 20; }}; f 7; : {mark}"
    bomb = f"exec 2>&-; {script}"
    result, late = timed(first, argv=["bash", "-c", bomb], timeout_s=0.3)
    assert result.timed_out
    assert late < 8
    assert wait_until(lambda: not processes_with(mark))


def test_15_partial_output_comes_back(daemon: Daemon) -> None:
    script = "echo out; echo err >&2; printf tail; sleep 60"
    result = daemon.sh(script, timeout_s=0.3)
    assert (result.stdout, result.stderr) == (b"out\ntail", b"err\n")


def test_16_a_timeout_touches_no_other_command(daemon: Daemon, mark: str) -> None:
    results: list[wire.ExecResult] = []
    other = threading.Thread(target=lambda: results.append(daemon.sh("sleep 0.8; echo fine")))
    other.start()
    server = daemon.sh(f"exec -a {mark} sleep 60 >/dev/null 2>&1 &")
    assert server.exit_code == 0
    assert daemon.sh("sleep 60", timeout_s=0.2).timed_out
    assert daemon.sh("echo next").stdout == b"next\n"
    assert processes_with(mark)
    other.join()
    assert results[0].stdout == b"fine\n"
    daemon.sh(f"pkill -f {mark}")


def test_16_pid_1_spares_another_commands_orphan(first: Daemon, mark: str) -> None:
    argv = [sys.executable, "-S", "-c", DOUBLE_FORK.replace("time.sleep(60)", ""), mark, "clear"]
    assert first.exec(argv=argv).exit_code == 0
    assert first.sh("sleep 60", timeout_s=0.1).timed_out
    assert processes_with(mark)
    first.sh(f"pkill -f {mark}")


def test_17_keepalive_frames_while_nothing_is_said(
    start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Fifteen seconds are too long for a test: the daemon is started with another constant.
    (tmp_path / "short.py").write_text(
        "import sys\nfrom sandman import wire\nwire.KEEPALIVE_S = 0.1\n"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    fresh = start(program=(sys.executable, str(tmp_path / "short.py")))
    started = time.monotonic()
    frames = fresh.frames(shell="sleep 0.5; echo x")
    took = time.monotonic() - started
    kinds = [frame.type for frame in frames]
    assert kinds[0] == wire.STARTED
    assert 2 <= kinds.count(wire.KEEPALIVE) <= took / 0.1
    assert kinds[-1] == wire.EXIT


def test_18_a_caller_that_leaves_ends_the_whole_tree(first: Daemon, mark: str) -> None:
    script = f"setsid bash -c 'exec -a {mark} sleep 60' & exec -a {mark} sleep 60"
    for accept in (names.MEDIA_JSON, names.MEDIA_FRAMES):
        with first.connect() as sock:
            body = {"argv": ["bash", "-c", script], "timeout_s": 50}
            sock.sendall(exec_request(body, f"Accept: {accept}"))
            assert wait_until(lambda: len(processes_with(mark)) == 2)
        assert wait_until(lambda: not processes_with(mark), 3), accept
        assert wait_until(lambda: first.client.get("/v1/info").json()["running"] == 0, 3)


def test_18_a_caller_that_leaves_while_it_does_not_read(daemon: Daemon, mark: str) -> None:
    with daemon.connect() as sock:
        body = {"argv": ["bash", "-c", f": {mark}; while :; do echo $RANDOM$RANDOM; done"]}
        sock.sendall(exec_request(body, f"Accept: {names.MEDIA_FRAMES}"))
        assert wait_until(lambda: processes_with(mark))
        time.sleep(0.1)
    assert wait_until(lambda: not processes_with(mark), 3)


def test_18_a_caller_that_leaves_within_its_upload(daemon: Daemon, mark: str) -> None:
    request = json.dumps({"argv": ["bash", "-c", f": {mark}; cat; :"]}).encode()
    frames = wire.encode_frame(wire.REQUEST, request) + wire.encode_frame(wire.STDIN, b"x")
    with daemon.connect() as sock:
        sock.sendall(
            head(
                "POST", "/v1/exec", f"Content-Type: {names.MEDIA_FRAMES}", "Content-Length: 999999"
            )
        )
        sock.sendall(frames)
        assert wait_until(lambda: processes_with(mark))
    assert wait_until(lambda: not processes_with(mark), 3)


def test_18_a_half_closed_connection_is_one_that_left(daemon: Daemon, mark: str) -> None:
    with daemon.connect() as sock:
        sock.sendall(exec_request({"argv": ["bash", "-c", SLEEP.format(mark=mark)]}))
        assert wait_until(lambda: processes_with(mark))
        sock.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: not processes_with(mark), 3)


def test_19_timeouts_are_fractions_or_none(daemon: Daemon) -> None:
    assert daemon.sh("sleep 60", timeout_s=0.05).timed_out
    assert not daemon.sh("sleep 0.1", timeout_s=None).timed_out
    for bad in (0, -1, "1", True):
        assert daemon.refuse(argv=["true"], timeout_s=bad)["field"] == "timeout_s"


def test_53_an_answer_that_breaks_off_has_no_exit_frame(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start()
    with fresh.connect() as sock:
        body = {"shell": f"echo begin; {SLEEP.format(mark=mark)}"}
        sock.sendall(exec_request(body, f"Accept: {names.MEDIA_FRAMES}"))
        assert wait_until(lambda: processes_with(mark))
        os.kill(fresh.pid, 9)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    assert b"begin" in data
    assert not data.endswith(b"0\r\n\r\n")
    for pid in processes_with(mark):
        os.kill(pid, 9)


def test_timed_out_in_frames(daemon: Daemon) -> None:
    frames = daemon.frames(shell="echo a; sleep 60", timeout_s=0.2)
    assert joined(frames, wire.STDOUT) == b"a\n"
    result = wire.ExecResult.from_json(json.loads(frames[-1].payload))
    assert result.timed_out
    assert decode(b"") == []
