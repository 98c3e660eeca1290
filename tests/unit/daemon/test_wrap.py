"""Wrap mode: to the cluster the pod's own command looks as if no daemon were there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon import wrap
from daemon.init import Reaper
from sandman import names
from tests.ports import free_port
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import (
    Daemon,
    environment,
    processes_with,
    wait_until,
    with_prctl,
)
from tests.unit.daemon.test_init import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

DAEMON = (sys.executable, "-m", "daemon")


def wrapped(*command: str) -> tuple[str, ...]:
    return (*DAEMON, "serve", "--", *command)


def sh(script: str) -> tuple[str, ...]:
    return wrapped("sh", "-c", script)


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The daemon and its workload, to their end."""
    return subprocess.run(
        command, env=environment(env), capture_output=True, text=True, check=False, timeout=25
    )


def named(mark: str) -> list[int]:
    """Live processes that call themselves so; the daemon's own command line holds the mark, too."""
    found = []
    for pid in processes_with(mark):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(mark.encode()):
                found.append(pid)
    return found


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -9 $$", 137)],
)
def test_its_end_is_the_daemons(script: str, code: int) -> None:
    assert run(*sh(script)).returncode == code


@needs_root
@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_its_end_is_that_of_process_1(script: str, code: int) -> None:
    assert run(*IN_ITS_OWN_NAMESPACE, *sh(script)).returncode == code


def test_its_output_is_the_containers_and_its_environment_the_pods() -> None:
    done = run(*DAEMON, "--", "sh", "-c", "echo out; echo err >&2; env", env={"FROM_POD": "yes"})
    out, *variables = done.stdout.splitlines()
    assert out == "out"
    assert "FROM_POD=yes" in variables
    assert not [one for one in variables if one.startswith(names.ENV_PREFIX)]
    assert "err\n" in done.stderr


@pytest.mark.parametrize("port", ["0", "x"], ids=["served", "not served"])
def test_a_callers_own_variables_stay_the_workloads(port: str) -> None:
    """A trainer calls Sandman from its pod: its variables have our prefix."""
    env = {names.ENV_URL: "https://gateway", names.ENV_PORT: port}
    variables = run(*wrapped("env"), env=env).stdout.splitlines()
    assert f"{names.ENV_URL}=https://gateway" in variables
    assert not [
        one for one in variables if one.startswith((names.ENV_TOKEN_SHA256, names.ENV_PORT))
    ]


def test_its_log_is_the_containers_to_the_byte() -> None:
    port = str(free_port())
    done = run(*sh("echo out; echo err >&2; exit 3"), env={names.ENV_PORT: port})
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)


def test_its_errors_are_the_containers() -> None:
    done = run(*wrapped("sh", "-c", "echo err >&2"))
    assert "err\n" in done.stderr


def test_it_reads_the_containers_stdin() -> None:
    done = subprocess.run(
        wrapped("cat"), input="in", env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("in", 0)


def test_it_leads_a_session_and_starts_with_clean_signals() -> None:
    done = run(*wrapped("cat", "/proc/self/stat", "/proc/self/status"))
    stat, *status = done.stdout.splitlines()
    pid, _, _, _, group, session = stat.split()[:6]
    assert (group, session) == (pid, pid)
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert int(fields["SigBlk"], 16) == 0
    for number in (*wrap.PASSED_ON, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        assert not int(fields["SigIgn"], 16) >> (number - 1) & 1, number


COUNTS = """
import signal, sys, time
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), note)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "prefix", [(), pytest.param(IN_ITS_OWN_NAMESPACE, marks=needs_root)], ids=["child", "first"]
)
def test_signals_are_passed_on(start: Callable[..., Daemon], prefix: tuple[str, ...]) -> None:
    fresh = start(*prefix, program=wrapped(sys.executable, "-c", COUNTS), stdout=subprocess.PIPE)
    told = fresh.process.stdout
    assert told is not None
    with told:
        assert told.readline() == "ready\n"
        for number in (*wrap.PASSED_ON[1:], signal.SIGTERM):
            os.kill(fresh.pid, number)
            assert told.readline() == f"{number.name}\n"
    assert fresh.process.wait(10) == 5


@needs_root
def test_a_signal_from_inside_is_the_commands_business(start: Callable[..., Daemon]) -> None:
    fresh = start(
        *IN_ITS_OWN_NAMESPACE,
        program=wrapped(sys.executable, "-c", COUNTS),
        stdout=subprocess.PIPE,
    )
    told = fresh.process.stdout
    assert told is not None
    with told:
        assert told.readline() == "ready\n"
        assert fresh.sh("kill -HUP 1").exit_code == 0
        assert told.readline() == "SIGHUP\n"


def test_a_signal_that_came_while_a_command_started_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[int] = []
    workload = wrap.Workload(Reaper())
    monkeypatch.setattr(workload, "_pass_on", passed.append)
    waits = iter([None])

    def wait(_numbers: object, _seconds: float) -> None:
        workload._end = type("End", (), {"status": 0})()
        return next(waits)

    monkeypatch.setattr(signal, "sigtimedwait", wait)
    assert workload.attend(print, [signal.SIGHUP, signal.SIGTERM]) == 0
    assert passed == [signal.SIGHUP, signal.SIGTERM]


def test_the_api_works_meanwhile_and_spares_it(start: Callable[..., Daemon], mark: str) -> None:
    fresh = start(program=wrapped("bash", "-c", f"exec -a {mark} sleep 600"))
    assert wait_until(lambda: named(mark))
    before = named(mark)
    assert fresh.sh("echo $((6*7))").stdout == b"42\n"
    assert fresh.sh("sleep 60 & sleep 60", timeout_s=0.2).timed_out
    assert named(mark) == before
    assert fresh.stop() == 143  # nobody but the command itself says how TERM ends it


@needs_root
def test_an_orphan_of_its_own_is_not_taken_for_a_commands(
    start: Callable[..., Daemon], tmp_path: Path, mark: str
) -> None:
    # Whenever told, it leaves a process behind that comes to process 1, as a server does that
    # restarts itself; just then a command runs, and is ended.
    go = tmp_path / "go"
    script = (
        f"while [ ! -e {go} ]; do sleep 0.01; done; "
        f"(setsid bash -c 'exec -a {mark} sleep 60' &); sleep 60"
    )
    fresh = start(*IN_ITS_OWN_NAMESPACE, program=sh(script))
    result = fresh.sh(f"touch {go}; sleep 60", timeout_s=0.7)
    assert result.timed_out
    assert wait_until(lambda: named(mark))
    time.sleep(0.2)
    assert named(mark)


def test_out_of_reach_its_commands_end_and_it_does_not(
    start: Callable[..., Daemon], mark: str
) -> None:
    fresh = start(program=sh("exec sleep 600"))
    body = {
        "argv": [
            "bash",
            "-c",
            f"(setsid bash -c 'exec -a {mark} sleep 60' &) ; exec -a {mark} sleep 60",
        ]
    }
    answer = fresh.client.post("/v1/processes", json={**body, "detached": True})
    assert answer.status_code == 200
    assert wait_until(lambda: len(named(mark)) == 2)
    claim = {"claim_id": "c", "lease": {"ttl_s": 0.05}}
    assert fresh.client.post("/v1/claim", json=claim).status_code == 200
    assert wait_until(lambda: not named(mark))
    assert fresh.process.poll() is None
    assert wait_until(lambda: fresh.client.get("/v1/info").json().get("claim_id", "") is None)


class TestGuests:
    """A workload outlives who uses its daemon, and the next finds nothing of the one before."""

    def claim(self, daemon: Daemon, name: str, **more: object) -> dict[str, object]:
        answer = daemon.client.post("/v1/claim", json={"claim_id": name, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def test_who_leaves_takes_his_commands_along_and_nothing_else(
        self, start: Callable[..., Daemon], mark: str
    ) -> None:
        daemon = start(program=sh(f"bash -c 'exec -a own{mark} sleep 60' & exec sleep 600"))
        first = self.claim(daemon, "a", env={"SECRET": "x"})
        body = {"argv": ["bash", "-c", f"setsid bash -c 'exec -a {mark} sleep 60' & wait"]}
        started = daemon.client.post(
            "/v1/processes", json={**body, "exec_id": "one", "detached": True}
        )
        assert started.status_code == 200
        assert wait_until(lambda: named(mark))
        info = daemon.client.post("/v1/release", json={"claim_id": "a"}).json()
        assert info["claim_id"] is None
        assert info["boot_id"] != first["boot_id"]
        assert not named(mark)
        assert named(f"own{mark}")
        self.claim(daemon, "b")
        assert daemon.client.get("/v1/processes").json() == {"processes": []}
        assert "SECRET" not in daemon.sh("env").stdout_text
        assert daemon.client.get("/v1/processes/one").status_code == 404
        assert daemon.process.poll() is None

    def test_calls_for_the_one_before_are_refused(self, start: Callable[..., Daemon]) -> None:
        daemon = start(program=sh("exec sleep 600"))
        first = self.claim(daemon, "a")
        assert daemon.client.post("/v1/release", json={"claim_id": "a"}).status_code == 200
        late = daemon.client.get("/v1/info", headers={names.HEADER_BOOT_ID: str(first["boot_id"])})
        assert (late.status_code, late.json()["reason"]) == (410, "died")

    def test_leaving_twice_is_leaving_once_and_nobody_leaves_for_another(
        self, start: Callable[..., Daemon]
    ) -> None:
        daemon = start(program=sh("exec sleep 600"))
        assert daemon.client.post("/v1/release", json={"claim_id": "a"}).status_code == 200
        there = self.claim(daemon, "b")
        refused = daemon.client.post("/v1/release", json={"claim_id": "a"})
        assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")
        assert daemon.client.get("/v1/info").json()["boot_id"] == there["boot_id"]
        bad = daemon.client.post("/v1/release", json={"claim_id": ""})
        assert (bad.status_code, bad.json()["field"]) == (400, "claim_id")

    def test_a_lease_of_one_does_not_end_the_next(self, start: Callable[..., Daemon]) -> None:
        daemon = start(program=sh("exec sleep 600"))
        self.claim(daemon, "a", lease={"ttl_s": 0.3})
        assert daemon.client.post("/v1/release", json={"claim_id": "a"}).status_code == 200
        there = self.claim(daemon, "b")
        time.sleep(0.5)
        assert daemon.client.get("/v1/info").json()["boot_id"] == there["boot_id"]

    def test_guests_cost_no_descriptors(self, start: Callable[..., Daemon]) -> None:
        daemon = start(program=sh("exec sleep 600"))

        def visit(name: str) -> int:
            self.claim(daemon, name)
            assert daemon.sh("(sleep 60 &) ; echo").exit_code == 0
            assert daemon.client.post("/v1/release", json={"claim_id": name}).status_code == 200
            return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

        visit("a")
        before = visit("b")
        assert wait_until(lambda: visit("c") <= before)

    def test_a_sandbox_has_no_guests(self, start: Callable[..., Daemon]) -> None:
        daemon = start()
        assert daemon.client.post("/v1/release", json={"claim_id": "a"}).status_code == 404


@pytest.mark.parametrize(
    "prefix", [(), pytest.param(IN_ITS_OWN_NAMESPACE, marks=needs_root)], ids=["child", "first"]
)
def test_with_it_go_its_commands_and_what_it_left(
    start: Callable[..., Daemon], prefix: tuple[str, ...], tmp_path: Path, mark: str
) -> None:
    go = tmp_path / "go"
    script = f"bash -c 'exec -a {mark} sleep 60' & while [ ! -e {go} ]; do sleep 0.02; done; exit 4"
    env = with_prctl(tmp_path)  # where it is not process 1, it must adopt the orphans
    fresh = start(*prefix, program=sh(script), env=env)
    fresh.sh(f"setsid bash -c 'exec -a {mark} sleep 60' & true")
    assert wait_until(lambda: len(named(mark)) == 2)
    go.touch()
    assert fresh.process.wait(10) == 4
    assert wait_until(lambda: not named(mark))
