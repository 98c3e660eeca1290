"""The command line: bytes through, exit codes, what is said on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sandman import errors, wire
from sandman.version import __version__
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, frames, problem

CREATE = "POST /v1/sandboxes"


def process(gateway: FakeGateway, *arguments: str, **options) -> subprocess.Popen:
    """The command line as a process of its own; heeds signals also where the tests run under `nohup`."""
    heeding = ["env", "--default-signal=HUP,INT,TERM"]
    return subprocess.Popen(
        [*heeding, sys.executable, "-m", "sandman.cli", *arguments],
        env={**os.environ, "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN},
        **{
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **options,
        },
    )


# --- run and exec --------------------------------------------------------------------------------


def test_run_passes_bytes_and_exit_code_through(cli, gateway: FakeGateway) -> None:
    script = r"printf 'a\r\n\0\377'; printf 'e\r\n' >&2; exit 7"
    result = cli("run", "--image", "img:1", "--", "sh", "-c", script)
    assert result.exit_code == 7
    assert result.stdout_bytes == b"a\r\n\0\xff"
    assert result.stderr_bytes.endswith(b"e\r\n")
    assert "waiting for a sandbox in img:1" in result.stderr
    assert "(warm, 9 ms)" in result.stderr
    assert gateway.released


def test_run_options_travel(cli, gateway: FakeGateway) -> None:
    result = cli(
        "run", "--image", "i", "--pool", "p", "--env", "A=1=2", "-e", "B=", "--workdir", "/w",
        "--cpu", "500m", "--memory", "2Gi", "--node-class", "gpu", "--user", "1000", "--run", "r", "--eval", "--wait", "9", "--max-life", "99", "true", "--help",
    )  # fmt: skip
    assert result.exit_code == 0
    assert gateway.requests[0].json() == {
        "image": "i", "pool": "p", "resources": {"cpu": "500m", "memory": "2Gi"},
        "node_class": "gpu", "env": {"A": "1=2", "B": ""}, "workdir": "/w", "user": 1000,
        "run": "r", "purpose": "eval", "wait_s": 9.0, "lease": {"ttl_s": 300.0, "max_s": 99.0, "run": True},
    }  # fmt: skip
    assert gateway.requests[1].json() == {"argv": ["true", "--help"]}


def test_run_times_out_with_124(cli, gateway: FakeGateway) -> None:
    result = cli("run", "--timeout", "0.3", "--", "sh", "-c", "echo early; sleep 30")
    assert (result.exit_code, result.stdout) == (124, "early\n")
    assert "timed out after" in result.stderr


def test_run_says_what_did_not_start(cli) -> None:
    result = cli("run", "nope")
    assert result.exit_code == 127
    assert "nope: not found" in result.stderr


def test_run_says_when_memory_ran_out(cli, gateway: FakeGateway) -> None:
    gateway.plan("POST /v1/sandboxes/", frames((wire.EXIT, {"exit_code": 137, "oom_killed": True})))
    result = cli("run", "true")
    assert result.exit_code == 137
    assert "want of memory" in result.stderr


def test_run_sends_stdin_when_asked(cli) -> None:
    assert cli("run", "cat", input=b"in\0").stdout_bytes == b""
    assert cli("run", "--stdin", "cat", input=b"in\0\xff").stdout_bytes == b"in\0\xff"


def test_run_prints_json(cli, gateway: FakeGateway) -> None:
    result = cli("run", "--json", "sh", "-c", "printf '\\377'; exit 3")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert (told["exit_code"], told["stdout_b64"]) == (3, "/w==")
    assert told["sandbox"] in gateway.by_key.values()


def test_run_keeps_the_sandbox_when_asked(cli, gateway: FakeGateway) -> None:
    result = cli("run", "--keep", "sh", "-c", "exit 4")
    assert result.exit_code == 4
    (kept,) = gateway.sandboxes
    assert f"kept: {kept}" in result.stderr
    assert cli("exec", kept, "--", "ls", "-a").stdout.startswith(".\n")
    assert cli("exec", "-e", "A=x", "-w", ".", kept, "sh", "-c", "echo $A").stdout == "x\n"
    assert cli("exec", kept, "--").exit_code == 2
    assert cli("release", kept).exit_code == 0
    assert gateway.released


def test_quiet_is_quiet(cli) -> None:
    assert cli("-q", "run", "sh", "-c", "echo out").output == "out\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.ImageNotFoundError("no such image"), "check the name given by --image"),
        (errors.PathDeniedError("no"), "error: path_denied: no"),
        (errors.ForbiddenError("no", sandbox="box-1"), "sandbox: box-1"),
    ],
)
def test_what_sandman_cannot_do_is_125(cli, gateway: FakeGateway, error, says: str) -> None:
    gateway.plan(CREATE, problem(error))
    result = cli("run", "--image", "i", "true")
    assert result.exit_code == 125
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_retries_are_told(cli, gateway: FakeGateway) -> None:
    gateway.plan(CREATE, problem(errors.CapacityError("full")))
    result = cli("run", "true")
    assert result.exit_code == 0
    assert "capacity: full; again in 0.1 s (attempt 2)" in result.stderr


def test_an_error_that_may_pass_says_so(cli, gateway: FakeGateway) -> None:
    gateway.plan("POST /v1/sandboxes/", problem(errors.UnreachableError("gone")))
    result = cli("run", "true")
    assert result.exit_code == 125
    assert "this may pass" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--image", "i"], "Missing argument"),
        (["run", "--env", "A", "x"], "'A' is not of the form K=V"),
        (["run", "--nope", "x"], "No such option"),
        (["release"], "give either ids"),
        (["release", "a", "--run", "r"], "give either ids"),
        (["cp", "a", "b"], "exactly one"),
        (["cp", "a:b", "c:d"], "exactly one"),
        (["cp", "-", "-"], "exactly one"),
        (["cp", "a", "box:"], "needs a path"),
        (["cp", "-", "box:d/"], "no name of its own"),
    ],
)
def test_wrong_usage_is_2(cli, arguments: list[str], says: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_missing_settings_are_2(cli) -> None:
    result = cli("ls", env={"SANDMAN_URL": None, "SANDMAN_TOKEN": None})
    assert result.exit_code == 2
    assert "SANDMAN_URL" in result.stderr


# --- the rest ------------------------------------------------------------------------------------


def test_ls(cli, gateway: FakeGateway) -> None:
    cli("run", "--keep", "--run", "r1", "--image", "i", "true")
    heading, row = cli("ls").stdout.splitlines()
    assert heading.split("\t")[:3] == ["id", "state", "tier"]
    assert row.split("\t")[1:4] == ["ready", "warm", "i"]
    assert json.loads(cli("ls", "--json").stdout)[0]["run"] == "r1"
    assert cli("ls", "--run", "other").stdout.splitlines() == [heading]
    assert "released 1" in cli("release", "--run", "r1").stderr
    assert gateway.released


def test_pools(cli) -> None:
    assert cli("pools").stdout.splitlines()[1].split("\t") == [
        "root", "default", "3", "1", "4", "-", "False",
    ]  # fmt: skip
    [shown] = json.loads(cli("pools", "--json").stdout)
    assert (shown["free"], shown["resize"], shown["resources"]) == (3, True, {})


def test_network(cli, gateway: FakeGateway) -> None:
    cli("run", "--keep", "--network", "model", "--network-wait", "true")
    asked = gateway.requests[0].json()
    assert (asked["network"], asked["network_wait"]) == ("model", True)
    (box,) = gateway.sandboxes
    heading, row = cli("network", box, "open").stdout.splitlines()
    assert heading.split("\t") == ["what", "expected", "outcome"]
    assert row.split("\t") == ["10.0.0.1:443", "open", "reachable"]
    shown = json.loads(cli("network", box, "none", "--wait", 5, "--json").stdout)
    assert (shown["network"], shown["took_ms"]) == ("none", 12.5)
    assert gateway.requests[-1].json() == {"network": "none", "wait_s": 5.0}


def test_run_asks_for_one_resource_or_none(cli, gateway: FakeGateway) -> None:
    cli("run", "--memory", "2Gi", "true")
    assert gateway.requests[0].json()["resources"] == {"memory": "2Gi"}
    cli("run", "true")
    assert "resources" not in gateway.requests[-3].json() | gateway.requests[-2].json()


def test_reserve(cli, gateway: FakeGateway, tmp_path) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text('[{"exec": {"argv": ["make"]}}]')
    made = cli("reserve", "--image", "i:1", "--count", 2, "--for", 60, "--prepare", steps)
    name = made.stdout.strip()
    assert gateway.reservations[name] | {} == {
        "id": name, "state": "preparing", "ready": 0, "new_member": 1, "image": "i:1", "count": 2,
        "for_s": 60.0, "prepare": [{"exec": {"argv": ["make"]}}],
    }  # fmt: skip
    row = cli("reserve", "--list").stdout.splitlines()[1].split("\t")
    assert row[:3] == [name, "preparing", "i:1"]
    assert json.loads(cli("reserve", "--list", "--json").stdout)[0]["count"] == 2
    late = cli("reserve", "--count", 1, "--for", 60, "--wait", 0.1)
    assert (late.exit_code, "0 of 1 are ready" in late.stderr) == (125, True)
    assert "ended" in cli("reserve", "--end", name).stderr
    assert name not in gateway.reservations
    assert "it has ended, or never was" in cli("reserve", "--end", name).stderr


def test_reserve_as_json_waits(cli, gateway: FakeGateway) -> None:
    gateway.ready_at_once = True
    made = cli("reserve", "--count", 1, "--for", 60, "--wait", 5, "--json")
    assert json.loads(made.stdout)["state"] == "ready"


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_reserve_refuses_what_is_no_list_of_steps(cli, tmp_path, text) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(text)
    wrong = cli("reserve", "--count", 1, "--for", 60, "--prepare", steps)
    assert (wrong.exit_code, "--prepare" in wrong.stderr) == (2, True)
    assert cli("reserve", "--count", 1).exit_code == 2


def test_cp_there_and_back(cli, gateway: FakeGateway, tmp_path) -> None:
    cli("run", "--keep", "true")
    (box,) = gateway.sandboxes
    local = tmp_path / "odd:name"
    local.write_bytes(b"\0\xff\r\n")
    local.chmod(0o755)
    assert cli("cp", local, f"{box}:d/").exit_code == 0
    assert cli("cp", local, f"{box}:e").exit_code == 0
    (tmp_path / "in").mkdir()
    assert cli("cp", f"{box}:d/odd:name", tmp_path / "in").exit_code == 0
    assert cli("cp", f"{box}:e", tmp_path / "e").exit_code == 0
    for copy in (tmp_path / "in" / "odd:name", tmp_path / "e"):
        assert copy.read_bytes() == b"\0\xff\r\n"
        assert copy.stat().st_mode & 0o777 == 0o755
    absent = cli("cp", f"{box}:nope", tmp_path / "x")
    assert (absent.exit_code, "path_not_found" in absent.stderr) == (125, True)


def test_cp_by_standard_input_and_output(cli, gateway: FakeGateway, tmp_path) -> None:
    cli("run", "--keep", "true")
    (box,) = gateway.sandboxes
    data = bytes(range(256)) * 3000
    assert cli("cp", "-", f"{box}:f", input=data).exit_code == 0
    out = cli("cp", f"{box}:f", "-")
    assert (out.exit_code, out.stdout_bytes, out.stderr) == (0, data, "")
    empty = cli("cp", "-", f"{box}:empty")
    assert (empty.exit_code, cli("cp", f"{box}:empty", "-").stdout_bytes) == (0, b"")
    (tmp_path / "d").mkdir()
    assert cli("cp", tmp_path / "d", f"{box}:d").exit_code == 0
    directory = cli("cp", f"{box}:d", "-")
    assert (directory.exit_code, "is_a_directory" in directory.stderr) == (125, True)


def test_cp_as_somebody(cli, gateway: FakeGateway, tmp_path) -> None:
    cli("run", "--keep", "true")
    (box,) = gateway.sandboxes
    (tmp_path / "f").write_text("x")
    (tmp_path / "d").mkdir()
    for arguments in (
        (tmp_path / "f", f"{box}:f"),
        (f"{box}:f", tmp_path / "g"),
        (f"{box}:f", "-"),
        ("-", f"{box}:h"),
        (tmp_path / "d", f"{box}:d"),
        (f"{box}:d", tmp_path / "e"),
    ):
        assert cli("cp", "--user", "agent", *arguments).exit_code == 0, arguments
        assert gateway.requests[-1].query["user"] == "agent"
    cli("cp", "-u", "7", tmp_path / "f", f"{box}:f")
    assert gateway.requests[-1].query["user"] == "7"


def test_cp_takes_directories(cli, gateway: FakeGateway, tmp_path) -> None:
    cli("run", "--keep", "true")
    (box,) = gateway.sandboxes
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "f").write_text("x")
    os.mkfifo(tmp_path / "tree" / "fifo")
    sent = cli("cp", tmp_path / "tree", f"{box}:d/")
    assert (sent.exit_code, "skipped 'f': fifo" in sent.stderr) == (0, True)
    assert "copied 2 files and directories, 1 bytes" in sent.stderr
    assert cli("-q", "cp", tmp_path / "tree", f"{box}:e").stderr == ""
    (tmp_path / "in").mkdir()
    assert cli("cp", f"{box}:d/tree/", tmp_path / "in").exit_code == 0
    assert cli("cp", f"{box}:e", tmp_path / "e").exit_code == 0
    for copy in (tmp_path / "in" / "tree", tmp_path / "e"):
        assert (copy / "sub" / "f").read_text() == "x"
    many = answer(200, json.dumps({"members": 1, "bytes": 2, "skipped_count": 500}).encode())
    gateway.plan("PUT", many)
    assert "skipped 500 in all" in cli("cp", tmp_path / "e", f"{box}:e").stderr


def test_version_and_help(cli) -> None:
    assert __version__ in cli("--version").stdout
    for verb in ("run", "exec", "ls", "release", "cp", "pools"):
        assert cli(verb, "-h").exit_code == 0
        assert verb in cli("--help").stdout
