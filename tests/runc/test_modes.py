"""How the daemon ends, and how it stands where it is not alone: before a pod's own command, or below another
init."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandman import names
from tests.runc.judge import client, is_right, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.cells import Box

BOTH = pytest.mark.parametrize("cell", ["debian-0", "debian-65534"])
SECONDS = 60.0


def wrapped(script: str) -> tuple[str, ...]:
    return (*names.DAEMON_COMMAND, "--", "sh", "-c", script)


def wait_for(box: Box, text: str) -> None:
    """Wait for a line of the container's log."""
    until = time.monotonic() + SECONDS
    while not any(text in line for line in box.container.lines):
        assert time.monotonic() < until, box.container.lines
        time.sleep(0.05)


@BOTH
def test_a_lease_that_runs_out_ends_the_container_with_a_code_of_its_own(
    fresh: Callable[..., Box], cell: str
) -> None:
    box = fresh(cell)
    is_right(box)
    with client(box) as http:
        body = {"argv": ["sh", "-c", "trap '' TERM; sleep 600"], "detached": True}
        assert http.post("/v1/processes", json=body).status_code == 200
        claim = {"claim_id": "c", "lease": {"ttl_s": 0.2, "grace_s": 0.2}}
        assert http.post("/v1/claim", json=claim).status_code == 200
    assert box.container.wait(SECONDS) == names.EXIT_EXPIRED
    assert any("not reached" in line for line in box.container.lines)


@BOTH
def test_a_pods_own_command_looks_as_if_it_were_process_1(
    fresh: Callable[..., Box], cell: str
) -> None:
    script = "trap 'echo got-hup >&2' HUP; echo up >&2; while sleep 0.1; do :; done"
    box = fresh(cell, command=wrapped(script))
    wait_for(box, "up\n")
    is_right(box)
    with client(box) as http:
        assert run(http, ["sh", "-c", "kill -HUP 1"]).json()["exit_code"] == 0
        wait_for(box, "got-hup")
        bomb = ["sh", "-c", "while :; do sleep 600 & sleep 0.01; done"]
        assert run(http, bomb, timeout_s=1).json()["timed_out"]
    is_right(box)
    os.kill(box.container.pid, signal.SIGTERM)
    assert box.container.wait(SECONDS) == 128 + signal.SIGTERM


@BOTH
def test_its_exit_code_is_the_containers(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell, command=wrapped("sleep 0.5; exit 7"))
    assert box.container.wait(SECONDS) == 7


BELOW_AN_INIT = """
sleep 1234 &
%s &
wait $!
echo daemon-ended-$? >&2
wait
"""
ORPHAN = "(setsid env -i sh -c 'sleep 4321' &) ; sleep 4321"


@BOTH
def test_below_another_init_it_ends_its_own_and_nothing_else(
    fresh: Callable[..., Box], cell: str
) -> None:
    init = BELOW_AN_INIT % " ".join(names.DAEMON_COMMAND)
    box = fresh(cell, command=("sh", "-c", init))
    is_right(box)
    with client(box) as http:
        assert run(http, ["sh", "-c", ORPHAN], timeout_s=0.5).json()["timed_out"]
        assert running(box, "sleep 4321") == []
        body = {"argv": ["sh", "-c", ORPHAN], "detached": True}
        assert http.post("/v1/processes", json=body).status_code == 200
    [daemon] = running(box, " serve")
    os.kill(daemon, signal.SIGTERM)
    wait_for(box, "daemon-ended-0")
    assert running(box, "sleep 4321") == []
    assert len(running(box, "sleep 1234")) == 1
    box.container.kill()


def running(box: Box, text: str) -> list[int]:
    """What runs in it whose command line ends so."""
    found = []
    for pid in box.container.processes():
        with contextlib.suppress(OSError):  # it ended since they were listed
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()
            if line.endswith(text):
                found.append(pid)
    return found
