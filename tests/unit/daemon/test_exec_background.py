"""Background processes and zombies: points 23, 24 and 28, and PID 1's exact waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sandman import wire
from tests.stopwatch import Stopwatch
from tests.unit.daemon.harness import Daemon, children_of, joined, processes_with, wait_until


def zombies_of(pid: int) -> list[int]:
    """Ended children that nobody has waited for."""
    found = []
    for child in children_of(pid):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(child)
    return found


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exec -a {mark} sleep 60 &", 0),
        ("(exec -a {mark} sleep 60 &) ; exit 42", 42),
        ("nohup bash -c 'exec -a {mark} sleep 60' > /dev/null 2>&1 &", 0),
        ("setsid bash -c 'exec -a {mark} sleep 60' & echo", 0),
    ],
)
def test_23_a_background_child_does_not_hold_the_reply(
    daemon: Daemon, mark: str, script: str, code: int
) -> None:
    watch = Stopwatch()
    result = daemon.sh(script.format(mark=mark), timeout_s=20)
    assert watch.seconds() < 1
    assert (result.exit_code, result.timed_out) == (code, False)
    assert wait_until(lambda: processes_with(mark))
    daemon.sh(f"pkill -f {mark}")


def test_23_in_frames_too(daemon: Daemon, mark: str) -> None:
    watch = Stopwatch()
    frames = daemon.frames(shell=f"echo up; exec -a {mark} sleep 60 &")
    assert watch.seconds() < 1
    assert joined(frames, wire.STDOUT) == b"up\n"
    assert frames[-1].type == wire.EXIT
    daemon.sh(f"pkill -f {mark}")


def test_23_a_noisy_background_child_does_not_hold_the_reply(daemon: Daemon, mark: str) -> None:
    watch = Stopwatch()
    result = daemon.sh(f"bash -c 'while :; do echo noise; done; : {mark}' & echo up")
    assert watch.seconds() < 2
    assert result.exit_code == 0
    assert b"up\n" in result.stdout
    daemon.sh(f"pkill -f {mark}")


def test_24_it_goes_on_writing_to_the_pipe_that_it_was_given(
    daemon: Daemon, tmp_path: Path
) -> None:
    # Two megabytes: neither a broken nor a full pipe may stop it.
    script = f"(sleep 0.3; head -c 2M /dev/zero && echo whole > {tmp_path}/done) & echo started"
    assert daemon.sh(script, timeout_s=5).stdout == b"started\n"
    assert wait_until((tmp_path / "done").exists)
    assert daemon.sh(f"cat {tmp_path}/done").stdout == b"whole\n"


def test_24_its_launchers_timeout_does_not_reach_it(
    daemon: Daemon, tmp_path: Path, mark: str
) -> None:
    daemon.sh(f"(sleep 0.6; touch {tmp_path}/late; : {mark}) &", timeout_s=0.3)
    time.sleep(0.4)
    assert daemon.sh("true").ok
    assert wait_until((tmp_path / "late").exists)


def test_28_orphans_become_no_zombies(first: Daemon) -> None:
    result = first.sh("for i in $(seq 200); do (sleep 0.0$((i % 10)) &) ; done")
    assert result.exit_code == 0
    assert wait_until(lambda: not zombies_of(first.pid))


def test_28_orphans_of_processes_that_are_not_ours(first: Daemon, tmp_path: Path) -> None:
    # As `kubectl exec` does: a process from outside, whose child comes to PID 1.
    import subprocess  # noqa: PLC0415

    entered = ["nsenter", "-t", str(first.pid), "-p", "-m", "sh", "-c", "(sleep 0.1 &) ; :"]
    for _ in range(5):
        subprocess.run(entered, check=True)
    time.sleep(0.2)
    assert wait_until(lambda: not zombies_of(first.pid), 2)


@pytest.mark.parametrize("which", ["daemon", "first"])
def test_exit_codes_are_exact(request: pytest.FixtureRequest, which: str) -> None:
    running: Daemon = request.getfixturevalue(which)
    codes: list[int] = []

    def work() -> None:
        codes.extend(running.sh("exit 7").exit_code for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [7] * 200
    assert wait_until(lambda: not zombies_of(running.pid))


def test_a_thousand_commands_that_leave_two_orphans_each(first: Daemon) -> None:
    wrong: list[wire.ExecResult] = []

    def work() -> None:
        for number in range(250):
            result = first.exec(
                argv=["/bin/sh", "-c", f"(true & true &) ; exit {number % 200}"], output_limit=0
            )
            if result.exit_code != number % 200:
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert wait_until(lambda: not zombies_of(first.pid))
    assert first.client.get("/v1/info").json()["running"] == 0
