"""Sessions: timeouts, Ctrl-C, and what is left of a command. Points 13 to 16, 23 and 24."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.unit.daemon.harness import Daemon, problem, processes_with, wait_until
from tests.unit.daemon.shells import Shell

if TYPE_CHECKING:
    from pathlib import Path


def test_13_15_16_a_timeout_leaves_the_shell_as_it_was(shell: Shell, mark: str) -> None:
    shell.out("x=kept")
    started = time.monotonic()
    result = shell.run(f"echo before; sleep 60 # {mark}\necho not this", timeout_s=0.5)
    assert time.monotonic() - started < 15
    assert result.timed_out
    assert result.interrupted
    assert not result.ok
    assert (result.output, result.state) == (b"before\n", "idle")
    assert result.exit_code == 130
    assert shell.out("echo $x") == "kept\n"


def test_14_a_loop_of_the_shells_own_is_interrupted(shell: Shell) -> None:
    result = shell.run("while :; do :; done", timeout_s=0.2)
    assert (result.timed_out, result.state) == (True, "idle")
    assert shell.out("echo fine") == "fine\n"


def test_14_who_ignores_ctrl_c_is_killed_with_its_tree_and_the_shell_is_not(
    shell: Shell, mark: str
) -> None:
    shell.out("x=kept")
    script = f"trap '' INT TERM TSTP; setsid sleep 60 & sleep 60; : {mark}; sleep 61"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(shell.run, f'sh -c "{script}"; echo; : rest', timeout_s=30)
        assert wait_until(lambda: processes_with(mark), 15)
        stopped = shell.interrupt(grace_s=0.2)
        result = running.result(20)
    assert (stopped.state, stopped.interrupted) == ("idle", True)
    assert (result.interrupted, result.timed_out, result.state) == (True, False, "idle")
    assert wait_until(lambda: not processes_with(mark), 15)
    assert shell.out("echo $x") == "kept\n"


def test_24_background_jobs_survive_timeouts_of_later_commands(shell: Shell, mark: str) -> None:
    shell.run(f"sh -c 'sleep 30; : {mark}' >/dev/null 2>&1 &")
    assert wait_until(lambda: processes_with(mark), 15)
    shell.run("sleep 60", timeout_s=0.1)
    shell.run("sh -c \"trap '' INT; sleep 60; sleep 61\"", timeout_s=0.1, on_timeout="leave")
    assert shell.interrupt(grace_s=0.1).state == "idle"
    assert processes_with(mark)
    assert shell.out("echo fine") == "fine\n"


def test_23_a_background_job_does_not_hold_the_answer(shell: Shell) -> None:
    started = time.monotonic()
    assert shell.run("(sleep 30; echo late) & sleep 31 & true").exit_code == 0
    assert time.monotonic() - started < 15


def test_23_what_a_job_writes_between_commands_is_told_apart(shell: Shell, tmp_path: Path) -> None:
    shell.run("(sleep 0.3; echo from the job; touch done) &")
    assert wait_until((tmp_path / "done").exists, 15)
    notices = b""
    for _ in range(50):
        result = shell.run("echo mine")
        assert result.output == b"mine\n"
        notices += result.notices
        if b"from the job\n" in notices:
            return
        time.sleep(0.05)
    raise AssertionError(notices)


def test_a_shell_beyond_help_goes_with_its_session(bash: Shell, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(bash.run, "trap '' INT; touch set; while :; do :; done")
        assert wait_until((tmp_path / "set").exists, 15)
        stopped = bash.interrupt(grace_s=0.1)
        result = running.result(20)
    assert (stopped.state, result.state) == ("ended", "ended")
    assert result.exit_code is not None
    assert result.exit_code >= 128


def test_interrupt_without_a_command_changes_nothing(shell: Shell) -> None:
    result = shell.interrupt()
    assert (result.state, result.exit_code, result.output) == ("idle", None, b"")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(shell.run, "sleep 0.3; echo whole", command_id="mine")
        assert wait_until(lambda: shell.told().command_id == "mine")
        assert shell.interrupt(target="another").state == "running"
        assert running.result().output == b"whole\n"
    assert shell.out("echo fine") == "fine\n"


def test_a_command_that_is_left_is_found_again(shell: Shell, tmp_path: Path) -> None:
    left = shell.run("echo a; until [ -e go ]; do sleep 0.02; done; echo b; (exit 7)", timeout_s=0.5, on_timeout="leave")  # fmt: skip
    assert (left.state, left.timed_out, left.output) == ("running", True, b"a\n")
    assert left.exit_code is None
    (tmp_path / "go").touch()
    rest = shell.input(timeout_s=20)
    assert (rest.state, rest.exit_code, rest.output) == ("idle", 7, b"b\n")
    shell.run("sleep 0.2; echo c", timeout_s=0.05, on_timeout="leave")
    assert wait_until(lambda: shell.told().state == "idle")
    late = shell.input()
    assert (late.exit_code, late.output) == (0, b"c\n")
    shell.run("sleep 0.2; echo d", timeout_s=0.05, on_timeout="leave")
    assert wait_until(lambda: shell.told().state == "idle")
    next_one = shell.run("echo e")
    assert next_one.output == b"e\n"
    assert next_one.notices.endswith(b"d\n")


def test_interrupt_brings_the_rest_of_the_output(shell: Shell) -> None:
    shell.run("sh -c 'trap \"echo caught; exit 9\" INT; echo ready; while :; do sleep 0.05; done'", expect=["ready\n"])  # fmt: skip
    stopped = shell.interrupt(grace_s=20)
    assert stopped.output == b"caught\n"
    assert (stopped.state, stopped.interrupted) == ("idle", True)


# --- the end -----------------------------------------------------------------------------------


def test_27_exit_ends_the_session_and_says_so(shell: Shell) -> None:
    result = shell.run("echo bye; exit 3")
    assert (result.state, result.exit_code) == ("ended", 3)
    assert result.output.startswith(b"bye\n")
    told = shell.told()
    assert (told.state, told.exit_code) == ("ended", 3)
    refused = problem(shell.post("run", command="echo x"))
    assert refused["reason"] == "conflict"
    assert refused["facts"] == {"state": "ended", "exit_code": 3}


def test_27_a_shell_that_is_killed_is_no_result_of_its_command(shell: Shell) -> None:
    result = shell.run("kill -9 $$")
    assert (result.state, result.exit_code) == ("ended", 137)
    idle = Shell(shell.daemon, shell=shell.info.shell)
    os.kill(idle.info.pid, signal.SIGKILL)
    assert wait_until(lambda: idle.told().state == "ended")
    assert idle.told().exit_code == 137


def test_24_jobs_outlive_a_shell_that_exits_until_its_session_is_closed(
    daemon: Daemon, mark: str
) -> None:
    one = Shell(daemon)
    one.run(f"setsid sh -c 'sleep 60; : {mark}' >/dev/null 2>&1 &\nsleep 0.3; exit 0")
    assert one.told().state == "ended"
    assert wait_until(lambda: processes_with(mark), 15)
    one.close()
    assert wait_until(lambda: not processes_with(mark), 10)


def test_14_the_end_of_another_command_spares_a_session(first: Daemon, mark: str) -> None:
    with Shell(first) as one:
        one.run(f"(setsid env -i sleep 60 {mark} &)\nsleep 0.05; x=kept")
        ended = first.sh("setsid env -i sleep 61 & sleep 60", timeout_s=0.1)
        assert ended.timed_out
        assert one.out("echo $x") == "kept\n"
        info = first.client.get("/v1/info").json()
        assert info["running"] == 1
        listed = first.client.get("/v1/processes").json()["processes"]
        assert one.name not in {item["exec_id"] for item in listed}
