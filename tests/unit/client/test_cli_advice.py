"""What the command line tells people who took a wrong turn."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import httpx
import pytest

from sandman import errors
from sandman._core import faults
from sandman.cli import guard
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, problem

LOG = 'E1130 19:06:33.780756   29271 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"'
REFUSED = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
FORBIDDEN = "Error from server (Forbidden): secrets is forbidden"


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """A kubectl that says this on stderr and fails."""

    def say(*lines: str) -> None:
        program = tmp_path / "bin/kubectl"
        program.parent.mkdir(exist_ok=True)
        text = "\n".join(lines)
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    return say


VERBS = [("keys", "list"), ("signing-keys", "list"), ("inject", "deploy/web"), ("doctor",)]


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_cluster_kubectls_log_is_left_out_and_the_way_out_told(cli, kubectl, verb):
    kubectl(LOG, LOG, REFUSED)
    done = cli(*verb)
    said = done.stdout + done.stderr
    assert done.exit_code == 1
    assert REFUSED in said
    assert "KUBECONFIG" in said
    assert "memcache" not in said


@pytest.mark.parametrize("verb", VERBS)
def test_what_else_kubectl_says_is_told_as_it_is(cli, kubectl, verb):
    kubectl(LOG, FORBIDDEN)
    done = cli(*verb)
    said = done.stdout + done.stderr
    assert FORBIDDEN in said
    assert ("KUBECONFIG" in said, "memcache" in said) == (False, False)
    kubectl(LOG)
    done = cli(*verb)
    assert "memcache" in done.stdout + done.stderr, "there is nothing else to tell"


def test_a_program_that_the_pools_own_image_lacks(cli) -> None:
    done = cli("run", "--", "no-such-program")
    assert done.exit_code == 127
    assert "pool's own image" in done.stderr
    assert "--image" in done.stderr
    assert "own image" not in cli("run", "--image", "i:1", "--", "no-such-program").stderr
    assert "own image" not in cli("run", "--", "sh", "-c", "exit 127").stderr


def test_where_there_is_no_workload_sandboxes_are_no_advice(cli, gateway: FakeGateway) -> None:
    gateway.plan("POST /v1/sandboxes/attach", problem(errors.NotFoundError("no such pod")))
    done = cli("attach", "-n", "shop", "web-0")
    assert done.exit_code == 125
    assert "what to do: sandman workloads shows what there is to attach to" in done.stderr
    assert "sandman ls" not in done.stderr


def test_a_pool_that_was_stopped_comes_by_no_waiting() -> None:
    stopped = errors.CapacityError("pool 'root' was stopped", facts={"pool": "broken"})
    [_, told] = guard.explain(stopped)
    assert "operator has to mend it" in told
    assert "wait" not in told
    assert "wait longer" in [*guard.explain(errors.CapacityError("none is free"))][-1]


def test_a_reservation_is_waited_for_and_not_ready_before_it_is(cli) -> None:
    late = cli("reserve", "--count", 2, "--for", 60, "--wait", 0.1)
    assert "waiting until 2 sandboxes are prepared" in late.stderr


def test_a_reservation_that_never_was_has_not_ended(cli) -> None:
    done = cli("reserve", "--end", "nope")
    assert done.exit_code == 0
    assert "there is no reservation nope: it has ended, or never was" in done.stderr


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ConnectTimeout])
def test_where_an_address_comes_from_is_not_always_the_environment(kind) -> None:
    told = str(faults.from_transport(kind("refused"), "https://127.0.0.1:1"))
    assert "Check its address (SANDMAN_URL, --url or the context) and" in told


def test_a_tree_has_no_place_on_standard_output(cli, tmp_path) -> None:
    box = json.loads(cli("run", "--keep", "--json", "--", "true").stdout)["sandbox"]
    assert cli("cp", tmp_path, f"{box}:d").exit_code == 0
    done = cli("cp", f"{box}:d", "-")
    assert (done.exit_code, done.stdout) == (125, "")
    assert "what to do: - takes one file: give a directory here for a tree" in done.stderr
    assert "takes one file" not in cli("cp", f"{box}:nosuch", "-").stderr


def test_an_encoding_that_lacks_a_character_ends_nothing(gateway: FakeGateway) -> None:
    own = {"PYTHONIOENCODING": "ascii", "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-m", "sandman.cli", "top", "--once"],
        env={**os.environ, **own}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert rb"\xb7" in done.stdout, "what it lacks is an escape"
