"""Sessions: beside each other, by name and id, and with programs that talk. Points 17, 27 and 52."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandman import sessions
from tests.unit.daemon.harness import Daemon, head, problem, processes_with, wait_until
from tests.unit.daemon.shells import Shell, alive

# --- sessions beside each other ----------------------------------------------------------------


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
    one.run(f"setsid sh -c 'sleep 60; : {mark}' & (sleep 60; : {mark}) &")
    assert wait_until(lambda: processes_with(mark), 15)
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
        time.sleep(0.5)
        one.close()
        result = waiting.result(10)
        assert (result.state, result.output) == ("ended", b"so far\n")
        assert result.exit_code is not None
        assert result.exit_code >= 128


# --- names and ids -----------------------------------------------------------------------------


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


# --- programs that talk ------------------------------------------------------------------------


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


def test_what_a_command_writes_on_the_shells_own_socket_harms_nothing(bash: Shell) -> None:
    # Within `eval` bash keeps its stdin, which is that socket, as descriptor 10.
    said = "printf 'x end \\xb2\\n' >&10; printf 'x end %05000d\\n' 0 >&10; echo on"
    assert bash.out(said) == "on\n"
    flood = bash.run("cat /dev/zero >&10", timeout_s=0.5)
    assert (flood.timed_out, flood.state) == (True, "idle")
    assert bash.out("echo back") == "back\n"
