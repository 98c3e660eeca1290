"""`/v1/processes`: stdin, signals, the end."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.commands import MIB, ask, begin, call, ended
from tests.unit.daemon.harness import (
    Daemon,
    problem,
    processes_with,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx


# --- stdin, signals, the end ---------------------------------------------------------------------


def feed(daemon: Daemon, name: str, data: bytes, query: str = "") -> httpx.Response:
    return call(daemon, "POST", f"/{name}/stdin{query}", content=data)


def test_26_stdin_comes_in_pieces_each_byte_once(daemon: Daemon) -> None:
    begin(daemon, argv=["cat"], exec_id="fed", stdin="one ", stdin_open=True)
    assert feed(daemon, "fed", b"two ").json()["stdin_bytes"] == 8
    assert feed(daemon, "fed", b"three", "?offset=8").json()["stdin_bytes"] == 13
    assert feed(daemon, "fed", b"three", "?offset=8").json()["stdin_bytes"] == 13
    assert feed(daemon, "fed", b"ree!", "?offset=10").json()["stdin_bytes"] == 14
    ahead = problem(feed(daemon, "fed", b"x", "?offset=99"))
    assert (ahead["reason"], ahead["facts"]) == ("conflict", {"stdin_bytes": 14})
    assert ask(daemon, "fed").state == "running"
    assert feed(daemon, "fed", b"", "?close=1").status_code == 200
    assert ended(daemon, "fed").stdout == b"one two three!"
    assert feed(daemon, "fed", b"ee!", "?offset=11&close=1").status_code == 200
    assert problem(feed(daemon, "fed", b"late"))["field"] == "stdin"


def test_26_much_stdin_through_a_slow_command(daemon: Daemon) -> None:
    data = os.urandom(MIB)
    begin(daemon, shell="sleep 0.3; sha256sum", exec_id="much", stdin_open=True)
    assert feed(daemon, "much", data, "?close=1").json()["stdin_bytes"] == MIB
    assert ended(daemon, "much").stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert problem(feed(daemon, "much", bytes(MIB + 1)))["reason"] == "too_large"


def test_26_stdin_that_is_not_read_is_taken_in_part(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys\nfrom daemon import handles\nhandles._STDIN_WAIT_S = 0.2\n"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    fresh = start(program=(sys.executable, str(script)))
    begin(fresh, argv=["sleep", "30"], exec_id="deaf", stdin_open=True)
    taken = feed(fresh, "deaf", bytes(MIB), "?close=1").json()["stdin_bytes"]
    assert 0 < taken < MIB
    assert ask(fresh, "deaf").state == "running"


def test_26_without_an_open_stdin_there_is_nothing_to_feed(daemon: Daemon) -> None:
    begin(daemon, argv=["cat"], exec_id="closed")
    assert ended(daemon, "closed").exit_code == 0
    assert problem(feed(daemon, "closed", b"x"))["field"] == "stdin_open"
    begin(daemon, argv=["cat"], exec_id="given", stdin="given")
    assert ended(daemon, "given").stdout == b"given"


@pytest.mark.parametrize("given", ["USR1", "sigusr1", int(signal.SIGUSR1)])
def test_26_signals_by_name_and_number(daemon: Daemon, given: object) -> None:
    name = f"sig-{given}"
    begin(
        daemon,
        shell="trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.01; done",
        exec_id=name,
    )
    assert wait_until(lambda: ask(daemon, name).stdout_bytes)
    assert call(daemon, "POST", f"/{name}/signal", json={"signal": given}).status_code == 204
    result = ended(daemon, name)
    assert (result.exit_code, result.stdout) == (9, b"up\ngot\n")
    late = problem(call(daemon, "POST", f"/{name}/signal", json={"signal": given}))
    assert late["reason"] == "conflict"


def test_26_signals_to_the_leader_or_to_all(daemon: Daemon, mark: str) -> None:
    script = f"setsid sh -c 'sleep 60; : {mark}' & trap '' TERM; echo up; wait; wait"
    begin(daemon, shell=script, exec_id="tree")
    assert wait_until(lambda: processes_with(mark))
    assert wait_until(lambda: ask(daemon, "tree").stdout_bytes)  # its trap is set
    call(daemon, "POST", "/tree/signal", json={"signal": "TERM"})
    time.sleep(0.1)
    assert ask(daemon, "tree").state == "running"
    call(daemon, "POST", "/tree/signal", json={"signal": "KILL", "tree": True})
    assert ended(daemon, "tree").signal == signal.SIGKILL
    assert wait_until(lambda: not processes_with(mark))


@pytest.mark.parametrize("given", ["NOPE", "", 0, 9999, None, True])
def test_26_signals_that_are_none(daemon: Daemon, given: object) -> None:
    begin(daemon, argv=["sleep", "5"], exec_id="nosig")
    answer = call(daemon, "POST", "/nosig/signal", json={"signal": given})
    assert problem(answer)["field"] == "signal"


def test_26_a_kill_ends_the_whole_tree_and_may_be_repeated(daemon: Daemon, mark: str) -> None:
    script = f"trap 'echo bye; exit 1' TERM; setsid sh -c 'sleep 60; : {mark}' & sleep 60 & wait"
    begin(daemon, shell=script, exec_id="doomed")
    assert wait_until(lambda: processes_with(mark))
    for _ in range(3):
        assert call(daemon, "DELETE", "/doomed").status_code == 204
    result = ended(daemon, "doomed")
    assert (result.exit_code, result.stdout, result.timed_out) == (1, b"bye\n", False)
    assert wait_until(lambda: not processes_with(mark))
    assert call(daemon, "DELETE", "/doomed").status_code == 204


def test_26_a_kill_after_the_end_ends_what_was_left(daemon: Daemon, mark: str) -> None:
    begin(daemon, shell=f"setsid sh -c 'sleep 60; : {mark}' >/dev/null 2>&1 & :", exec_id="server")
    assert ended(daemon, "server").exit_code == 0
    assert wait_until(lambda: processes_with(mark))
    call(daemon, "DELETE", "/server")
    assert wait_until(lambda: not processes_with(mark), 3)


def test_15_a_detached_command_has_its_timeout(daemon: Daemon) -> None:
    begin(daemon, shell="echo early; sleep 60", exec_id="timed", timeout_s=0.3)
    result = ended(daemon, "timed")
    assert (result.timed_out, result.stdout) == (True, b"early\n")


@pytest.mark.parametrize("name", ["SIGRTMIN", "rtmax"])
def test_26_real_time_signals_have_numbers_alone(daemon: Daemon, name: str) -> None:
    """Which number is the first is the C library's own matter, and ours may not be the command's."""
    exec_id = begin(daemon, argv=["sleep", "30"], detached=True).exec_id
    refused = problem(call(daemon, "POST", f"/{exec_id}/signal", json={"signal": name}))
    assert (refused["reason"], refused["field"]) == ("bad_request", "signal")
    assert call(daemon, "POST", f"/{exec_id}/signal", json={"signal": 40}).status_code == 204
    assert ended(daemon, exec_id).signal == 40
