"""Sessions: shells that keep their state. Points 13, 15, 16, 20, 23, 24, 27 and 52, in three shells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandman import sessions
from tests.unit.daemon.harness import ROOT, Daemon, head, problem, processes_with, wait_until
from tests.unit.daemon.shells import KINDS, Shell, alive, shell_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=KINDS)
def shell(request, daemon: Daemon, tmp_path: Path) -> Iterator[Shell]:
    """A session in each kind of shell."""
    with Shell(daemon, shell=shell_of(request.param, tmp_path), cwd=str(tmp_path)) as one:
        yield one


@pytest.fixture
def bash(daemon: Daemon, tmp_path: Path) -> Iterator[Shell]:
    with Shell(daemon, shell="bash", cwd=str(tmp_path)) as one:
        yield one


def test_the_start_of_a_daemon_does_not_pay_for_sessions() -> None:
    script = "import sys, daemon.serve, daemon.application; print(*sorted(sys.modules))"
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert "daemon.handles" in loaded
    late = {"sandman.sessions", "termios", "daemon.pty", "daemon.sessions", "daemon.session"}
    assert not late & set(loaded)


# --- what a command gives ------------------------------------------------------------------------


CASES = (
    ("echo hello", "hello\n"),
    ("printf '\\nx'", "\nx"),
    ("printf '  x  \\n\\n\\n'", "  x  \n\n\n"),
    ("printf 'a\\r\\nb\\tc\\033[0m'", "a\r\nb\tc\x1b[0m"),
    ("echo out; echo err >&2; echo out", "out\nerr\nout\n"),
    ("\n\n echo one \n  \n\n echo two\n\n", "one\ntwo\n"),
    ("cat <<'X'\n$a 'b' \"c\" \\\\\nX\n", "$a 'b' \"c\" \\\\\n"),
    ("for i in 1 2; do\n echo $i\ndone", "1\n2\n"),
    ("echo \"it's\" 'a\nb'", "it's a\nb\n"),
    ("echo hé✓ 'hi!' \"hi!\"", "hé✓ hi! hi!\n"),
    ("", ""),
    ("\n\n \n", ""),
    ("# only a comment", ""),
    ("echo x # and a comment", "x\n"),
    ("test -t 1 && test -t 2 && echo tty", "tty\n"),
    ("echo $TERM", "dumb\n"),
)


def test_27_output_is_what_was_written(shell: Shell) -> None:
    for command, output in CASES:
        result = shell.run(command)
        assert (result.output_text, result.exit_code, result.notices) == (output, 0, b""), command
        assert (result.state, result.done, result.ok) == ("idle", True, True)
        assert result.output_bytes == len(result.output)


def test_3_bytes_that_are_no_text(shell: Shell) -> None:
    result = shell.run("printf '\\377\\000\\001\\004'")
    assert result.output == b"\xff\x00\x01\x04"


def test_27_state_stays(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    shell.out("cd sub; x=5; export Y=6; f() { echo \"f $1\"; }; alias g='echo aliased'; umask 077")
    assert shell.out('pwd; echo $x; sh -c "echo \\$Y"; f 1; g; umask') == (
        f"{tmp_path}/sub\n5\n6\nf 1\naliased\n0077\n"
    )


def test_27_exit_codes(shell: Shell) -> None:
    assert shell.run("false").exit_code == 1
    assert shell.run("echo $?").output == b"1\n"
    assert shell.run("(exit 42)").exit_code == 42
    assert shell.run("no-such-program-here").exit_code == 127
    assert shell.run("sh -c 'kill -9 $$'").exit_code == 137
    assert shell.run("false || true").exit_code == 0
    assert shell.run("echo $?").output == b"0\n"


BROKEN = ("(a", "echo 'open", 'echo "open', "if true; then", "fi", "echo $(", "a ) b", "{ a", "`a")


def test_27_a_syntax_error_is_told_and_wedges_nothing(shell: Shell) -> None:
    told = ("yntax error", "nterminated", "unexpected")
    for broken in BROKEN:
        result = shell.run(broken, timeout_s=10)
        assert not result.timed_out, broken
        assert result.exit_code in {1, 2}, broken
        assert any(word in result.output_text for word in told), broken
        assert shell.out("echo fine") == "fine\n", broken
    # An open here-document ends with the text, in all shells.
    assert b"no end" in shell.run("cat <<X\nno end", timeout_s=10).output
    assert shell.out("echo fine") == "fine\n"


def test_27_errors_that_would_end_a_script_do_not(shell: Shell) -> None:
    for command in (
        "echo ${nothing?is set}; echo not this",
        "set -u; echo $nothing; echo nor this",
    ):
        result = shell.run(command)
        assert result.exit_code not in {0, None}
        assert b"this" not in result.output
        assert shell.out("set +u; echo fine") == "fine\n"


def test_7_27_a_command_that_reads_gets_nothing_and_swallows_nothing(shell: Shell) -> None:
    assert shell.out("cat; echo after") == "after\n"
    assert shell.run("read line").exit_code == 1
    assert shell.out("head -c 1; exec </dev/null; echo fine") == "fine\n"
    assert shell.out("echo still; exec 9>/dev/null 8<&0 2>/dev/null") == "still\n"
    assert shell.out("echo here; echo too >&2") == "here\ntoo\n"


def test_27_what_a_command_prints_is_never_taken_for_its_end(shell: Shell) -> None:
    lines = [f"{n:016x} {word} 0" for n in range(3) for word in ("begin", "end", "back")]
    text = "\n".join(lines)
    for _ in range(3):
        assert shell.out(f"echo '{text}'; sleep 0.02; echo last") == f"{text}\nlast\n"
        assert shell.out("set | head -c 0; echo $_ >/dev/null; echo ok") == "ok\n"


def test_27_what_a_user_names_does_not_get_between(bash: Shell) -> None:
    bash.run("echo() { false; }; eval() { :; }; printf() { :; }; exec() { :; }; test() { :; }")
    bash.run("alias echo=false eval=false printf=false pwd='echo never'; unset IFS")
    bash.run("set -o posix; set +o posix; trap 'x=$BASH_COMMAND' DEBUG; trap ': $?' ERR; set -f")
    assert bash.run("\\command pwd; (exit 5)").exit_code == 5
    assert bash.out("cat </proc/self/comm") == "cat\n"
    traced = bash.run("trap - DEBUG; set -x; cat </proc/self/comm")
    assert (traced.output.splitlines()[-1], traced.exit_code) == (b"cat", 0)
    again = bash.run("set +x")
    assert (again.output, again.exit_code) == (b"++ set +x\n", 0)


def test_14_a_stopped_shell_goes_on(shell: Shell) -> None:
    result = shell.run("kill -STOP $$; echo on", timeout_s=0.2)
    assert (result.state, result.timed_out) == ("idle", True)
    assert shell.out("echo fine") == "fine\n"


def test_27_set_e_ends_the_session_as_it_would_a_login(shell: Shell) -> None:
    assert shell.run("set -e; true").state == "idle"
    result = shell.run("echo x; false; echo y")
    assert (result.state, result.exit_code) == ("ended", 1)
    assert b"y\n" not in result.output


def test_27_the_prompt_and_words_on_jobs_stay_out(bash: Shell) -> None:
    assert bash.out("PS1='prompt> '; PS2='more> '; PROMPT_COMMAND='echo noise'") == ""
    assert bash.out("echo a\necho b") == "a\nb\n"
    bash.out("unset PROMPT_COMMAND")
    started = bash.run("sleep 0.1 & echo $!")
    assert started.exit_code == 0
    notices = b""
    for _ in range(100):
        result = bash.run("echo x")
        assert result.output == b"x\n"
        notices += result.notices
        if b"Done" in notices:
            return
        time.sleep(0.02)
    raise AssertionError(notices)


def test_27_a_long_command(shell: Shell) -> None:
    text = "".join(f"echo {n} 'it''s'\n" for n in range(4000))
    assert shell.out(text).splitlines()[-1] == "3999 its"


def test_20_output_over_the_limit_is_cut_in_the_middle(shell: Shell) -> None:
    result = shell.run("seq 1 100000", output_limit=1000)
    assert result.output_truncated
    assert result.output_bytes == 588_895
    assert len(result.output) == 1000
    assert result.output.startswith(b"1\n2\n3\n")
    assert result.output.endswith(b"99999\n100000\n")
    exact = shell.run("printf 12345", output_limit=5)
    assert (exact.output, exact.output_truncated) == (b"12345", False)


def test_22_large_output_is_whole(shell: Shell) -> None:
    numbers = "".join(f"{n}\n" for n in range(1, 200_001))
    assert shell.out("seq 1 200000") == numbers


def test_27_hundreds_of_commands_in_one_session(shell: Shell) -> None:
    for n in range(200):
        assert shell.out(f"echo {n}") == f"{n}\n"


# --- sessions beside each other ------------------------------------------------------------------


def test_27_sessions_know_nothing_of_each_other(daemon: Daemon) -> None:
    with Shell(daemon) as one, Shell(daemon) as two, ThreadPoolExecutor() as pool:
        first = pool.submit(one.out, "x=1; sleep 0.3; echo done one")
        second = pool.submit(two.out, 'echo "[$x]"; sleep 0.1; echo done two')
        assert second.result() == "[]\ndone two\n"
        assert first.result() == "done one\n"
        assert two.out('echo "[$x]"') == "[]\n"
        assert one.told().pid != two.told().pid


def test_one_command_at_a_time(shell: Shell) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(shell.run, "sleep 0.5; echo first", command_id="first")
        assert wait_until(lambda: shell.told().state == "running")
        assert shell.told().command_id == "first"
        refused = problem(shell.post("run", command="echo second"))
        assert (refused["reason"], refused["facts"]["command_id"]) == ("conflict", "first")
        typed = problem(shell.post("input", data="x"))
        assert typed["reason"] == "conflict"
        assert first.result().output == b"first\n"
    assert shell.told().state == "idle"
    assert problem(shell.post("input", data="x"))["reason"] == "conflict"


def test_list_and_close(daemon: Daemon) -> None:
    with Shell(daemon) as one:
        listed = daemon.client.get("/v1/sessions").json()["sessions"]
        mine = next(item for item in listed if item["name"] == one.name)
        assert (mine["state"], mine["pid"], mine["exit_code"]) == ("idle", one.info.pid, None)
        assert alive(one.info.pid)
        one.close()
        assert wait_until(lambda: not alive(one.info.pid))
        gone = daemon.client.get(f"/v1/sessions/{one.name}")
        assert problem(gone)["reason"] == "not_found"
        assert problem(one.post("run", command="x"))["reason"] == "not_found"


def test_close_ends_all_that_it_started_and_frees_the_name(daemon: Daemon, mark: str) -> None:
    one = Shell(daemon)
    one.run(f"setsid sh -c 'sleep 60; : {mark}' & (sleep 60; : {mark}) &\nsleep 0.1")
    assert processes_with(mark)
    running = threading.Thread(target=one.post, args=("run",), kwargs={"command": "sleep 60"})
    running.start()
    assert wait_until(lambda: one.told().state == "running")
    one.close()
    with Shell(daemon, one.name) as again:
        assert again.out("echo new") == "new\n"
        assert wait_until(lambda: not processes_with(mark), 10)
    running.join(10)
    assert not running.is_alive()


def test_a_session_that_is_closed_tells_who_waits(daemon: Daemon) -> None:
    with Shell(daemon) as one, ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.run, "echo so far; sleep 60")
        assert wait_until(lambda: one.told().state == "running")
        time.sleep(0.1)
        one.close()
        result = waiting.result(10)
        assert (result.state, result.output) == ("ended", b"so far\n")
        assert result.exit_code is not None
        assert result.exit_code >= 128


# --- names and ids -------------------------------------------------------------------------------


def test_a_name_is_taken_until_its_session_ends(daemon: Daemon) -> None:
    with Shell(daemon, key="k1") as one:
        body = {"name": one.name, "rc": False, "startup_timeout_s": 20}
        for other in (body, {**body, "key": "k2"}):
            refused = problem(daemon.client.post("/v1/sessions", json=other))
            assert (refused["reason"], refused["field"]) == ("conflict", "name")
        same = daemon.client.post("/v1/sessions", json={**body, "key": "k1"}).json()
        assert same["pid"] == one.info.pid
        one.run("exit 0")
        anew = daemon.client.post("/v1/sessions", json={**body, "key": "k3"})
        assert anew.status_code == 200
        assert anew.json()["pid"] != one.info.pid


def test_52_the_same_id_never_runs_twice(shell: Shell) -> None:
    with ThreadPoolExecutor() as pool:
        body = {"command_id": "once", "timeout_s": 20}
        script = "n=$((n+1)); echo $n; sleep 0.3; echo end"
        both = [pool.submit(shell.run, script, **body) for _ in range(2)]
        results = [one.result() for one in both]
    assert results[0] == results[1]
    assert results[0].output == b"1\nend\n"
    assert shell.run(script, **body) == results[0]
    assert shell.out("echo $n") == "1\n"
    refused = problem(shell.post("run", command="other", **body))
    assert (refused["reason"], refused["field"]) == ("conflict", "command_id")


def test_17_who_waits_may_ask_in_short_calls(shell: Shell) -> None:
    body = {"command": "sleep 0.4; echo x", "command_id": "long"}
    first = sessions.SessionResult.from_json(shell.post("run", {"wait_s": 0}, **body).json())
    assert (first.done, first.state, first.exit_code) == (False, "running", None)
    second = sessions.SessionResult.from_json(shell.post("run", {"wait_s": 0.1}, **body).json())
    assert not second.done
    last = sessions.SessionResult.from_json(shell.post("run", {"wait_s": 20}, **body).json())
    assert (last.done, last.output, last.exit_code) == (True, b"x\n", 0)


def test_17_a_caller_that_leaves_changes_nothing(daemon: Daemon) -> None:
    with Shell(daemon) as one:
        body = b'{"command": "sleep 0.3; echo there", "command_id": "left"}'
        with daemon.connect() as sock:
            path = f"/v1/sessions/{one.name}/run"
            sock.sendall(head("POST", path, f"Content-Length: {len(body)}") + body)
            assert wait_until(lambda: one.told().command_id == "left")
        result = one.run("sleep 0.3; echo there", command_id="left")
        assert result.output == b"there\n"


def test_answers_are_remembered_for_long_and_their_output_for_less(bash: Shell) -> None:
    big = {"command": "head -c 3000000 /dev/zero | tr '\\0' x", "command_id": "big"}
    assert len(bash.run(**big).output) == 3_000_000
    for n in range(3):
        bash.run(big["command"], command_id=f"more-{n}")
    again = bash.run(**big)
    assert (again.output, again.output_truncated, again.exit_code) == (b"", True, 0)
    assert again.output_bytes == 3_000_000


# --- time ----------------------------------------------------------------------------------------


def test_13_15_16_a_timeout_leaves_the_shell_as_it_was(shell: Shell, mark: str) -> None:
    shell.out("x=kept")
    started = time.monotonic()
    result = shell.run(f"echo before; sleep 60 # {mark}\necho not this", timeout_s=0.2)
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
    shell.run(f"sh -c 'sleep 30; : {mark}' >/dev/null 2>&1 &\nsleep 0.1")
    assert processes_with(mark)
    shell.run("sleep 60", timeout_s=0.1)
    shell.run("sh -c \"trap '' INT; sleep 60; sleep 61\"", timeout_s=0.1, on_timeout="leave")
    assert shell.interrupt(grace_s=0.1).state == "idle"
    assert processes_with(mark)
    assert shell.out("echo fine") == "fine\n"


def test_23_a_background_job_does_not_hold_the_answer(shell: Shell) -> None:
    started = time.monotonic()
    assert shell.run("(sleep 30; echo late) & sleep 31 & true").exit_code == 0
    assert time.monotonic() - started < 15


def test_23_what_a_job_writes_between_commands_is_told_apart(shell: Shell) -> None:
    shell.run("(sleep 0.2; echo from the job) &")
    time.sleep(0.5)
    result = shell.run("echo mine")
    assert result.output == b"mine\n"
    assert b"from the job\n" in result.notices


def test_a_shell_beyond_help_goes_with_its_session(bash: Shell, monkeypatch) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(bash.run, "trap '' INT; while :; do :; done", timeout_s=30)
        assert wait_until(lambda: bash.told().state == "running")
        time.sleep(0.1)
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


def test_a_command_that_is_left_is_found_again(shell: Shell) -> None:
    left = shell.run("echo a; sleep 0.4; echo b; exit_code() { return 7; }; exit_code", timeout_s=0.2, on_timeout="leave")  # fmt: skip
    assert (left.state, left.timed_out, left.output) == ("running", True, b"a\n")
    assert left.exit_code is None
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
    shell.run("sh -c 'trap \"echo caught; exit 9\" INT; echo ready; while :; do sleep 0.05; done'", timeout_s=0.5, on_timeout="leave")  # fmt: skip
    stopped = shell.interrupt(grace_s=20)
    assert stopped.output == b"caught\n"
    assert (stopped.state, stopped.interrupted) == ("idle", True)


# --- the end -------------------------------------------------------------------------------------


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
    one.run(f"setsid sh -c 'sleep 60; : {mark}' >/dev/null 2>&1 &\nsleep 0.1; exit 0")
    assert one.told().state == "ended"
    assert processes_with(mark)
    one.close()
    assert wait_until(lambda: not processes_with(mark), 10)


def test_14_the_end_of_another_command_spares_a_session(first: Daemon, mark: str) -> None:
    with Shell(first) as one:
        one.run(f"(setsid env -i sleep 60 {mark} &)\nsleep 0.05; x=kept", timeout_s=1)
        ended = first.sh("setsid env -i sleep 61 & sleep 60", timeout_s=0.1)
        assert ended.timed_out
        assert one.out("echo $x") == "kept\n"
        info = first.client.get("/v1/info").json()
        assert info["running"] == 1
        listed = first.client.get("/v1/processes").json()["processes"]
        assert one.name not in {item["exec_id"] for item in listed}


# --- programs that talk --------------------------------------------------------------------------


def test_27_a_python_repl(bash: Shell) -> None:
    begun = bash.run("python3 -q", interactive=True, expect=[">>> "], timeout_s=20)
    assert (begun.state, begun.expected, begun.output) == ("running", ">>> ", b">>> ")
    said = bash.input("print(6*7)\n", expect=[">>> "], timeout_s=20)
    assert (said.output, said.expected, said.exit_code) == (b"42\n>>> ", ">>> ", None)
    late = bash.input("import time; time.sleep(30)\n", expect=[">>> "], timeout_s=0.3)
    assert (late.timed_out, late.state, late.expected) == (True, "running", None)
    os.killpg(_foreground(bash), signal.SIGINT)
    caught = bash.input(expect=[">>> "], timeout_s=20)
    assert b"KeyboardInterrupt" in caught.output
    left = bash.input("raise SystemExit(4)\n", timeout_s=20)
    assert (left.state, left.exit_code, left.output) == ("idle", 4, b"")
    assert bash.out("echo back") == "back\n"


def _foreground(shell: Shell) -> int:
    return int(Path(f"/proc/{shell.info.pid}/stat").read_text().rpartition(")")[2].split()[5])


def test_27_texts_are_found_across_pieces_and_what_follows_is_kept(shell: Shell) -> None:
    script = "printf 'abc'; sleep 0.1; printf 'def rest'; sleep 0.1; printf ' end'; cat >/dev/null"
    first = shell.run(script, interactive=True, expect=["nope", "cde"], timeout_s=20)
    assert (first.output, first.expected) == (b"abcde", "cde")
    second = shell.input(expect=["end"], timeout_s=20)
    assert (second.output, second.expected) == (b"f rest end", "end")
    last = shell.input("\x04", timeout_s=20)
    assert (last.state, last.exit_code, last.output) == ("idle", 0, b"")


def test_27_input_arrives_as_it_was_typed_and_no_echo_comes(shell: Shell) -> None:
    shell.run("cat", interactive=True, timeout_s=0.05)
    said = shell.input("one line\n", expect=["\n"], timeout_s=20)
    assert said.output == b"one line\n"
    shell.interrupt()
    assert shell.out("cat") == ""


def test_a_terminal_that_was_upset_is_set_right(shell: Shell) -> None:
    shell.run("stty -F /dev/tty raw echo opost onlcr; printf 'a\\nb'")
    assert shell.run("printf 'a\\nb'").output == b"a\nb"


def test_8_variables_and_the_size_of_the_terminal(daemon: Daemon) -> None:
    env = {"ASKED": "yes", "PAGER": "mine"}
    with Shell(daemon, env=env, rows=50, columns=132) as one:
        assert one.out("echo $ASKED $PAGER $GIT_PAGER $FROM_IMAGE") == "yes mine cat yes\n"
        assert one.out("stty size </dev/tty") == "50 132\n"


def test_rc_files_of_bash_are_read_when_asked_for(daemon: Daemon, tmp_path: Path) -> None:
    rc = '[ -z "$PS1" ] && return\nPS1="(env) $ "; MARK=from-rc; echo hello from rc; cat\n'
    (tmp_path / ".bashrc").write_text(rc)
    env = {"HOME": str(tmp_path)}
    with Shell(daemon, shell="bash", rc=True, env=env) as one:
        assert one.info.startup == b"hello from rc\n"
        assert one.out("echo $MARK") == "from-rc\n"
    with Shell(daemon, shell="bash", env=env) as one:
        assert one.out('echo "[$MARK]"') == "[]\n"


def test_a_shell_that_does_not_come_up_is_told(daemon: Daemon, tmp_path: Path) -> None:
    body = {"name": "late", "shell": "bash", "env": {"HOME": str(tmp_path)}}
    (tmp_path / ".bashrc").write_text("echo waiting; sleep 60\n")
    late = problem(daemon.client.post("/v1/sessions", json={**body, "startup_timeout_s": 0.5}))
    assert late["reason"] == "conflict"
    assert "0.5 s" in str(late["detail"])
    (tmp_path / ".bashrc").write_text("echo leaving; exit 5\n")
    gone = problem(daemon.client.post("/v1/sessions", json=body))
    assert "exit code 5" in str(gone["detail"])
    assert "leaving" in gone["facts"]["output"]
    assert problem(daemon.client.get("/v1/sessions/late"))["reason"] == "not_found"


# --- refusals ------------------------------------------------------------------------------------


def test_12_an_image_without_that_shell(daemon: Daemon) -> None:
    refused = problem(daemon.client.post("/v1/sessions", json={"shell": "no-such-shell"}))
    assert (refused["reason"], refused["field"]) == ("path_not_found", "shell")
    bare = {"env": {"PATH": "/nowhere"}, "cwd": "/no/such/directory"}
    assert problem(daemon.client.post("/v1/sessions", json=bare))["field"] == "cwd"


def test_a_shell_that_cannot_be_executed(daemon: Daemon, tmp_path: Path) -> None:
    broken = tmp_path / "bash"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    refused = problem(daemon.client.post("/v1/sessions", json={"shell": str(broken)}))
    assert (refused["reason"], refused["field"]) == ("path_not_found", "shell")


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("run", {}, "command"),
        ("run", {"command": 1}, "command"),
        ("run", {"command": "x", "expect": [""]}, "expect"),
        ("run", {"command": "x", "expect": ["x"] * 33}, "expect"),
        ("run", {"command": "x", "timeout_s": -1}, "timeout_s"),
        ("run", {"command": "x", "on_timeout": "hope"}, "on_timeout"),
        ("run", {"command": "x", "command_id": "a/b"}, "command_id"),
        ("run", {"command": "x", "grace_s": 1}, "grace_s"),
        ("input", {"command": "x"}, "command"),
        ("interrupt", {"grace_s": 61}, "grace_s"),
        ("interrupt", {"expect": ["x"]}, "expect"),
    ],
)
def test_bad_requests_name_the_field(daemon: Daemon, verb: str, body: dict, field: str) -> None:
    answer = daemon.client.post(f"/v1/sessions/any/{verb}", json=body)
    refused = problem(answer)
    assert (refused["reason"], refused["field"]) == ("bad_request", field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a b"}, "name"), ({"shell": ""}, "shell"), ({"rows": 0}, "rows"),
        ({"startup_timeout_s": 301}, "startup_timeout_s"), ({"colour": 1}, "colour"),
    ],
)  # fmt: skip
def test_bad_sessions_name_the_field(daemon: Daemon, body: dict, field: str) -> None:
    refused = problem(daemon.client.post("/v1/sessions", json=body))
    assert (refused["reason"], refused["field"]) == ("bad_request", field)


def test_the_number_of_sessions_is_limited(start) -> None:
    daemon = start()
    shells = [Shell(daemon, shell="sh") for _ in range(64)]
    refused = problem(daemon.client.post("/v1/sessions", json={"name": "one-more"}))
    assert refused["reason"] == "conflict"
    shells[0].close()
    with Shell(daemon, shell="sh") as one:
        assert one.out("echo fine") == "fine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch")
@pytest.mark.parametrize("kind", ["bash", "dash"])
def test_10_another_user_has_a_terminal_and_job_control(daemon: Daemon, kind: str) -> None:
    with Shell(daemon, shell=kind, user=65534, cwd="/") as one:
        assert one.out("id -u; test -t 1 && echo tty") == "65534\ntty\n"
        result = one.run("sleep 60", timeout_s=0.2)
        assert (result.state, result.timed_out) == ("idle", True)
        assert one.out("echo back") == "back\n"
