"""Terminals: start, WebSocket, resize, come back, back-pressure, the end."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from sandman import wire
from tests.unit.daemon.harness import (
    Daemon,
    decode,
    joined,
    problem,
    processes_with,
    wait_until,
)
from tests.unit.daemon.terminals import Screen, ask, begin, call, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# --- the terminal itself -------------------------------------------------------------------------


def test_a_command_has_a_terminal_of_its_own(daemon: Daemon) -> None:
    script = (
        "tty; stty size; echo $TERM; stty -a | tr ';' '\\n' | grep -o iutf8; echo err >&2; exit 5"
    )
    result = run(daemon, script, terminal={"rows": 33, "cols": 99, "term": "vt100"})
    assert result.exit_code == 5
    assert re.fullmatch(rb"/dev/pts/\d+\r\n33 99\r\nvt100\r\niutf8\r\nerr\r\n", result.stdout), (
        result.stdout
    )
    assert (result.stderr, result.stdout_bytes) == (b"", len(result.stdout))


def test_defaults_and_an_environment_of_the_callers_own(daemon: Daemon) -> None:
    script = "stty size; echo $TERM"
    assert run(daemon, script).stdout == b"24 80\r\nxterm-256color\r\n"
    result = run(daemon, script, env={"TERM": "dumb"}, env_mode="replace")
    assert result.stdout == b"24 80\r\ndumb\r\n"


def test_it_is_the_controlling_one(daemon: Daemon) -> None:
    result = run(daemon, "echo by-its-name > /dev/tty; ps -o tpgid= -p $$ | tr -d ' '; echo $$")
    lines = result.stdout.split()
    assert lines[0] == b"by-its-name"
    assert lines[1] == lines[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="switches users")
def test_it_is_the_other_users(daemon: Daemon) -> None:
    script = "id -u; stty size; echo ok > /dev/tty; echo too > $(tty)"
    result = run(daemon, script, user=65534)
    assert result.stdout == b"65534\r\n24 80\r\nok\r\ntoo\r\n"


def test_a_missing_program_is_a_result(daemon: Daemon) -> None:
    exec_id = begin(daemon, argv=["no-such-program"])
    result = ask(daemon, exec_id).result
    assert result is not None
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert result.stdout == b"no-such-program: not found in PATH\n"
    assert (result.stdout_bytes, result.stderr_bytes) == (len(result.stdout), 0)
    with Screen(daemon, exec_id) as screen:
        assert screen.finish().exit_code == 127
        assert screen.data == result.stdout
        assert screen.got("started") == []


def test_what_cannot_be_with_a_terminal(daemon: Daemon) -> None:
    found = problem(call(daemon, "POST", "", json={"shell": "x", "terminal": {}, "stdin": "x"}))
    assert (found["reason"], found["field"]) == ("bad_request", "stdin")
    assert daemon.refuse(shell="x", terminal={})["field"] == "terminal"


def test_without_terminals_it_is_told(start: Callable[..., Daemon]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to hide /dev/pts")
    hide = ("unshare", "--mount", "--fork", "sh", "-c")
    for hidden in ("/dev/pts", "/dev/ptmx"):
        what = "-t tmpfs none" if hidden == "/dev/pts" else "--bind /dev/null"
        fresh = start(*hide, f'mount {what} {hidden} && exec "$@"', "sh")
        found = problem(call(fresh, "POST", "", json={"shell": "true", "terminal": {}}))
        assert (found["reason"], found["field"]) == ("terminal_unsupported", "terminal"), hidden
        assert "/dev/ptmx" in str(found["detail"])


def test_no_descriptors_are_left(start: Callable[..., Daemon]) -> None:
    fresh = start()

    def count() -> int:
        return len(os.listdir(f"/proc/{fresh.pid}/fd"))  # noqa: PTH208

    run(fresh, "true")
    before = count()
    for _ in range(5):
        run(fresh, "echo x")
        begin(fresh, argv=["no-such-program"])
    assert wait_until(lambda: count() <= before), os.popen(f"ls -l /proc/{fresh.pid}/fd").read()


def test_the_list_tells_which_have_one(daemon: Daemon) -> None:
    plain = call(daemon, "POST", "", json={"shell": "true"}).json()["exec_id"]
    exec_id = begin(daemon, shell="true")
    listed = {
        one["exec_id"]: one["terminal"] for one in call(daemon, "GET", "").json()["processes"]
    }
    assert (listed[plain], listed[exec_id]) == (False, True)


def test_the_same_id_attaches_and_never_runs_twice(daemon: Daemon, tmp_path: Path) -> None:
    name = tmp_path.name[:64]
    body = {"shell": f"echo run >> {tmp_path}/runs", "exec_id": name, "terminal": {"rows": 7}}
    assert {call(daemon, "POST", "", json=body).json()["exec_id"] for _ in range(3)} == {name}
    ask(daemon, name)
    assert call(daemon, "POST", "", json=body).json()["state"] == "ended"
    assert (tmp_path / "runs").read_text() == "run\n"
    other = call(daemon, "POST", "", json={**body, "terminal": {"rows": 8}})
    assert problem(other)["reason"] == "conflict"


# --- resize --------------------------------------------------------------------------------------


def test_resize_by_message_and_by_call(daemon: Daemon) -> None:
    script = "trap 'echo told' WINCH; echo ready; while :; do sleep 0.05; stty size; done"
    exec_id = begin(daemon, shell=script)
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready")
        screen.tell("resize", rows=10, cols=20)
        screen.expect(rb"told\r\n")
        screen.expect(rb"10 20\r\n")
        response = call(daemon, "POST", f"/{exec_id}/resize", json={"rows": 30, "cols": 40})
        assert response.status_code == 204
        screen.expect(rb"30 40\r\n")
        call(daemon, "DELETE", f"/{exec_id}")
        screen.finish()
    ended = call(daemon, "POST", f"/{exec_id}/resize", json={"rows": 30, "cols": 40})
    assert problem(ended)["reason"] == "conflict"


def test_what_cannot_be_resized(daemon: Daemon) -> None:
    plain = call(daemon, "POST", "", json={"shell": "true"}).json()["exec_id"]
    found = problem(call(daemon, "POST", f"/{plain}/resize", json={"rows": 1, "cols": 1}))
    assert (found["reason"], found["field"]) == ("conflict", "terminal")
    for body, field in (({"rows": 0, "cols": 1}, "rows"), ({"rows": 1}, "cols")):
        assert problem(call(daemon, "POST", f"/{plain}/resize", json=body))["field"] == field


# --- without a WebSocket -------------------------------------------------------------------------


def test_plain_calls_serve_as_well(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="read x; echo got $x", detached=True)
    typed = call(daemon, "POST", f"/{exec_id}/stdin?offset=0", content=b"ab").json()
    assert typed["stdin_bytes"] == 2
    call(daemon, "POST", f"/{exec_id}/stdin?offset=0", content=b"abc\n")
    found = problem(call(daemon, "POST", f"/{exec_id}/stdin?close=1"))
    assert (found["reason"], found["field"]) == ("conflict", "close")
    frames = decode(call(daemon, "GET", f"/{exec_id}/output").content)
    assert joined(frames, wire.STDOUT) == b"abc\r\ngot abc\r\n"
    assert frames[-1].type == wire.EXIT


# --- the end -------------------------------------------------------------------------------------


def test_the_last_words_are_there(daemon: Daemon) -> None:
    """Also those that the kernel holds while a child keeps the terminal open and nobody reads."""
    for script in ("seq 1 9000", "trap '' HUP; sleep 5 & seq 1 9000"):
        exec_id = begin(daemon, shell=script)
        with Screen(daemon, exec_id, rcvbuf=4096) as screen:
            screen.until(lambda: screen.data)
            time.sleep(0.2)
            assert screen.finish().exit_code == 0
        assert screen.data.endswith(b"\r\n8999\r\n9000\r\n"), script
        call(daemon, "DELETE", f"/{exec_id}")


def test_a_terminal_that_nobody_has_open_may_be_opened_again(daemon: Daemon) -> None:
    script = "echo one; exec 3>&1; exec <&- >&- 2>&- 3>&-; sleep 0.4; echo two > /dev/tty; exit 4"
    result = run(daemon, script)
    assert (result.exit_code, result.stdout) == (4, b"one\r\ntwo\r\n")


def test_delete_hangs_up_also_what_heeds_no_term(daemon: Daemon, mark: str) -> None:
    script = f"trap '' TERM; trap 'echo HUP; exit 9' HUP; echo ready; while :; do sleep 0.05; done # {mark}"
    exec_id = begin(daemon, shell=script)
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready")
        began = time.monotonic()
        call(daemon, "DELETE", f"/{exec_id}")
        assert screen.finish().exit_code == 9
    assert time.monotonic() - began < 4, "it was killed, not hung up"
    assert b"HUP" in screen.data
    assert processes_with(mark) == []


def test_delete_ends_the_whole_tree(daemon: Daemon, mark: str) -> None:
    script = f"(trap '' HUP TERM; exec sleep 33 {mark}) & setsid sleep 34 {mark} & nohup sleep 35 {mark} & wait"
    script = script.replace(f" {mark}", f"; : {mark}").replace("exec ", "")
    exec_id = begin(daemon, shell=script, detached=True)
    assert wait_until(lambda: len(processes_with(mark)) >= 1)
    call(daemon, "DELETE", f"/{exec_id}")
    result = ask(daemon, exec_id).result
    assert result is not None
    assert result.signal == 1
    assert wait_until(lambda: not processes_with(mark))
    rows = call(daemon, "GET", f"/{exec_id}").json()
    assert rows["state"] == "ended"


def test_its_time_limit_is_kept(daemon: Daemon) -> None:
    result = run(daemon, "echo begun; sleep 30", timeout_s=0.3)
    assert (result.timed_out, result.stdout) == (True, b"begun\r\n")


def test_a_result_of_json_is_whole(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="printf '\\377'", detached=True)
    with Screen(daemon, exec_id) as screen:
        screen.finish()
    (result,) = screen.got("exit")
    assert "stdout" not in result
    assert json.dumps(result)
    assert screen.data == b"\xff"
