"""Sessions: shells that keep their state. Points 3, 7, 20, 22 and 27, in three shells."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.harness import ROOT, Daemon, problem
from tests.unit.daemon.shells import Shell

if TYPE_CHECKING:
    from pathlib import Path


def test_the_start_of_a_daemon_does_not_pay_for_sessions() -> None:
    script = "import sys, daemon.serve, daemon.application; print(*sorted(sys.modules))"
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert "daemon.application" in loaded
    late = {"sandman.sessions", "termios", "daemon.pty", "daemon.sessions", "daemon.session"}
    assert not late & set(loaded)


# --- what a command gives ----------------------------------------------------------------------


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


def test_27_a_trace_shows_the_command_alone(shell: Shell) -> None:
    shell.run("set -x")
    for command, code in (("echo hi", 0), ("(exit 3)", 3), ("echo again $?", 0)):
        result = shell.run(command)
        assert (result.exit_code, result.notices) == (code, b"")
        traced = [line.lstrip("+") for line in result.output_text.splitlines() if line[0] == "+"]
        assert traced == [f" {command}".replace("$?", "3").strip("()").replace("(", "")]
    assert shell.run("set +x").notices == b""


def test_27_a_trap_tells_of_the_command_alone(bash: Shell) -> None:
    bash.run("trap 'echo D:$BASH_COMMAND' DEBUG; trap 'echo E:$BASH_COMMAND' ERR")
    result = bash.run("echo hi; false")
    assert (result.output, result.notices) == (b"D:echo hi\nhi\nD:false\nD:false\nE:false\n", b"")
    assert (result.exit_code, bash.out("trap - DEBUG ERR")) == (1, "D:trap - DEBUG ERR\n")
    assert bash.out("echo quiet") == "quiet\n"


def test_27_jobs_are_shown_as_they_were_given(shell: Shell) -> None:
    shell.run("sleep 50 & sleep 60 & kill -STOP $!; sleep 0.1")
    shown = shell.out("jobs")
    assert shown.count("sleep") == 2
    assert not {"eval", "/dev/pts", "command", "/dev/null"} & set(shown.split())
    assert "sleep 50" in shown
    assert "sleep 60" in shown


CLOSE_ALL = 'for i in $(seq {} 255); do eval "exec $i>&-"; done; echo here'


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("options", [{}, {"interactive": True}, {"output_limit": 0}])
def test_27_a_shell_whose_descriptors_are_closed_says_so_and_goes(
    daemon: Daemon, first: int, options: dict[str, object]
) -> None:
    with Shell(daemon, shell="bash") as bash:
        bash.run("sleep 60 & kill -STOP $!")  # for which bash stays once
        result = bash.run(CLOSE_ALL.format(first), **options)
        assert (result.state, result.exit_code, result.cut_off) == ("ended", 129, True)
        assert b"lost" not in result.output + result.notices
        if first and not options:
            assert result.output.startswith(b"here\nbash: ")
            assert result.output_bytes == len(result.output)
        told = bash.told()
        assert (told.state, told.exit_code, told.cut_off) == ("ended", 129, True)
        refused = problem(bash.post("run", command="true"))
        facts = {"state": "ended", "exit_code": 129, "cut_off": True}
        assert (refused["reason"], refused["facts"]) == ("conflict", facts)
        assert "closed the shell's own descriptors" in refused["detail"]


def test_27_a_shell_that_goes_by_itself_is_not_cut_off(daemon: Daemon) -> None:
    for command in ("exit 129", "exec sh -c 'exit 129'"):
        with Shell(daemon, shell="bash") as bash:
            result = bash.run(command)
            assert (result.state, result.exit_code, result.cut_off) == ("ended", 129, False)


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


# --- refusals ----------------------------------------------------------------------------------


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


def test_a_key_closes_the_session_that_was_started_with_it_and_no_other(daemon: Daemon) -> None:
    with Shell(daemon, shell="sh", key="mine") as one:
        path = f"/v1/sessions/{one.name}"
        assert daemon.client.delete(f"{path}?key=yours").status_code == 204
        for none in ("?key=", "?kye=mine"):
            assert problem(daemon.client.delete(path + none))["reason"] == "bad_request"
        assert one.told().state == "idle"
        assert daemon.client.delete(f"{path}?key=mine").status_code == 204
        assert daemon.client.get(path).status_code == 404
        assert daemon.client.delete(f"{path}?key=mine").status_code == 204


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


def test_who_asks_again_for_a_session_that_has_ended_is_told_so(daemon: Daemon) -> None:
    body = {"name": "again", "shell": "sh", "rc": False, "key": "k"}
    with Shell(daemon, **body) as one:
        assert one.run("exit 3").exit_code == 3
        answer = daemon.client.post("/v1/sessions", json={**body, "startup_timeout_s": 20})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["state"], told["exit_code"], told["pid"]) == ("ended", 3, one.info.pid)


def test_its_terminal_may_be_as_large_as_any(daemon: Daemon) -> None:
    with Shell(daemon, shell="sh", rows=65535, columns=65535) as one:
        assert one.out("stty size", interactive=True) == "65535 65535\n"
