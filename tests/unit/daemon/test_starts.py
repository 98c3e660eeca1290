"""Why a command did not start: each refusal of the kernel has its own word, on both ways to start one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandman import wire
from tests.unit.daemon.harness import ROOT, Daemon, problem, serve_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 32 * os.sysconf("SC_PAGE_SIZE") - 1
"""Bytes of one argument."""
SUM = 2 * 1024 * 1024
"""Bytes of all, with the usual limit of the stack: a quarter of 8 MiB."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch users")


@pytest.fixture(params=["plain", pytest.param("native", marks=pytest.mark.runtime)])
def any_daemon(request: pytest.FixtureRequest) -> Daemon:
    """A daemon that starts commands by what any Python has, and one that does by `start.c`."""
    name = "daemon" if request.param == "plain" else "beside"
    found: Daemon = request.getfixturevalue(name)
    return found


def told(result: wire.ExecResult) -> tuple[int, str | None]:
    return result.exit_code, result.start_error


# --- what is too long ----------------------------------------------------------------------------


def test_one_argument_up_to_what_linux_takes(any_daemon: Daemon) -> None:
    result = any_daemon.exec(argv=["printf", "%s", "x" * MOST])
    assert (told(result), result.stdout_bytes) == ((0, None), MOST)
    result = any_daemon.exec(argv=["printf", "%s", "x" * (MOST + 1)])
    assert told(result) == (126, "arguments_too_long")
    assert f"argument 2 has {MOST + 1} bytes; Linux takes {MOST} bytes in one" in result.stderr_text


def test_a_text_for_the_shell_is_one_argument(any_daemon: Daemon) -> None:
    result = any_daemon.sh(f": {'x' * MOST}")
    assert told(result) == (126, "arguments_too_long")
    assert "argument 2 has" in result.stderr_text


def test_a_variable_counts_with_its_name(any_daemon: Daemon) -> None:
    fits = {"LONG": "x" * (MOST - len("LONG="))}
    assert told(any_daemon.exec(argv=["true"], env=fits)) == (0, None)
    result = any_daemon.exec(argv=["true"], env={"LONG": f"{fits['LONG']}x"})
    assert told(result) == (126, "arguments_too_long")
    assert f"variable LONG has {MOST + 1} bytes with its name" in result.stderr_text


def test_variables_of_the_sandbox_with_which_nothing_would_start(
    start: Callable[..., Daemon],
) -> None:
    daemon = start()
    piece = "x" * 65535
    for env, field in (
        ({"A": "1", "LONG": "x" * MOST}, "env.LONG"),
        ({f"V{number}": piece for number in range(40)}, "env"),
    ):
        found = problem(daemon.client.post("/v1/claim", json={"claim_id": "c", "env": env}))
        assert (found["reason"], found["field"]) == ("bad_request", field)
    assert daemon.client.get("/v1/info").json()["claim_id"] is None
    env = {f"V{number}": piece for number in range(28)}
    body = {"claim_id": "c", "env": env}
    assert daemon.client.post("/v1/claim", json=body).json()["claim_id"] == "c"
    assert daemon.sh("echo ${#V27}").stdout == b"65535\n"


def test_all_together(any_daemon: Daemon) -> None:
    piece = "x" * 65535
    assert told(any_daemon.exec(argv=["true", *[piece] * 16])) == (0, None)
    env = {f"V{number}": piece for number in range(16)}
    result = any_daemon.exec(argv=["true", *[piece] * 20], env=env)
    assert told(result) == (126, "arguments_too_long")
    assert "bytes together" in result.stderr_text
    size = int(result.stderr_text.partition("environment have ")[2].split()[0])
    assert SUM < size < 1.2 * SUM


def test_who_waits_for_no_end_is_told_too(any_daemon: Daemon) -> None:
    body = {"argv": ["true", "x" * (MOST + 1)], "detached": True}
    info = any_daemon.client.post("/v1/processes", json=body).json()
    assert (info["state"], info["result"]["start_error"]) == ("ended", "arguments_too_long")
    body = {"argv": ["true", "x" * (MOST + 1)], "terminal": {}}
    info = any_daemon.client.post("/v1/processes", json=body).json()
    assert info["result"]["start_error"] == "arguments_too_long"


def test_a_session_has_no_result_and_an_error(any_daemon: Daemon) -> None:
    def refused(**body: object) -> tuple[object, object]:
        found = problem(any_daemon.client.post("/v1/sessions", json={"name": "none", **body}))
        return found["reason"], found["field"]

    assert refused(env={"LONG": "x" * MOST}) == ("bad_request", "env")
    assert refused(shell="/etc/passwd") == ("path_denied", "shell")
    assert refused(shell="/no/shell") == ("path_not_found", "shell")


# --- what is no program --------------------------------------------------------------------------


def test_each_kind_of_file(any_daemon: Daemon, tmp_path: Path) -> None:
    def script(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    (tmp_path / "loop").symlink_to("loop")
    for program, wanted in (
        (script("text", "echo hello\n"), (126, "not_executable")),
        (script("empty", ""), (126, "not_executable")),
        (script("gone", "#!/no/such\n"), (127, "not_found")),
        (script("below", "#!/etc/passwd/x\n"), (127, "not_found")),
        (script("plain", "#!/etc/passwd\n"), (126, "not_executable")),
        (script("place", "#!/etc\n"), (126, "not_executable")),
        (script("self", f"#!{tmp_path}/self\n"), (126, "not_executable")),
        (str(tmp_path / "loop"), (126, "not_executable")),
        (str(tmp_path), (126, "not_executable")),
        (str(tmp_path / ("n" * 256)), (126, "not_executable")),
        ("/" + "n/" * 2100, (126, "not_executable")),
        (str(tmp_path / "text" / "x"), (127, "not_found")),
        ("n" * 100_000, (127, "not_found")),
    ):
        result = any_daemon.exec(argv=[program])
        assert told(result) == wanted, program[:80]
        assert 0 < result.stderr_bytes < 400


def test_a_program_that_is_being_written(any_daemon: Daemon, tmp_path: Path) -> None:
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        result = any_daemon.exec(argv=[str(program)])
        assert told(result) == (126, "busy")
        assert "open for writing" in result.stderr_text
    assert told(any_daemon.exec(argv=[str(program)])) == (0, None)


def test_each_word_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for word in wire.START_ERRORS:
        assert f"`{word}`" in text


# --- the directory -------------------------------------------------------------------------------


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A directory of uid 1 alone, below one that all may pass; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="sandman-starts-") as above:
        Path(above).chmod(0o755)
        place = Path(above) / "theirs"
        place.mkdir()
        os.chown(place, 1, 1)
        place.chmod(0o700)
        yield place


@as_root
def test_a_directory_is_entered_as_the_user(any_daemon: Daemon, theirs: Path) -> None:
    assert any_daemon.exec(argv=["pwd"], cwd=str(theirs), user=1).stdout_text == f"{theirs}\n"
    (theirs / "open").mkdir(mode=0o755)
    for cwd in (theirs, theirs / "open"):
        found = any_daemon.refuse(argv=["pwd"], cwd=str(cwd), user=2)
        assert (found["reason"], found["field"]) == ("path_denied", "cwd")
        assert found["facts"] == {"errno": "EACCES"}
    body = {"argv": ["pwd"], "cwd": str(theirs), "user": 2, "terminal": {}}
    assert problem(any_daemon.client.post("/v1/processes", json=body))["reason"] == "path_denied"
    body = {"cwd": str(theirs), "user": 2, "name": "none"}
    assert problem(any_daemon.client.post("/v1/sessions", json=body))["field"] == "cwd"


@as_root
def test_root_enters_what_is_anothers(any_daemon: Daemon, theirs: Path) -> None:
    assert any_daemon.exec(argv=["pwd"], cwd=str(theirs)).stdout_text == f"{theirs}\n"
    assert any_daemon.exec(argv=["pwd"], cwd=str(theirs), user=0).stdout_text == f"{theirs}\n"


@as_root
@pytest.mark.parametrize("program", ["plain", pytest.param("native", marks=pytest.mark.runtime)])
def test_the_sandboxs_own_directory_needs_no_rights(
    request: pytest.FixtureRequest, theirs: Path, program: str
) -> None:
    """As with `docker exec --user` and `su`: who did not ask for a directory is left where all are."""
    start = request.getfixturevalue("start")
    own = {}
    if program == "native":
        native = request.getfixturevalue("native")
        own = {"program": serve_by(native)}
    daemon = start(env={"PYTHONPATH": str(ROOT)}, cwd=theirs, **own)
    result = daemon.exec(argv=["/bin/sh", "-c", "readlink /proc/self/cwd; ls"], user=2)
    assert result.stdout_text == f"{theirs}\n"
    assert "ermission denied" in result.stderr_text
    assert daemon.refuse(argv=["true"], cwd=".", user=2)["reason"] == "path_denied"


@as_root
def test_root_without_its_capabilities_starts_what_the_user_may(
    request: pytest.FixtureRequest, theirs: Path
) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    start = request.getfixturevalue("start")
    (theirs / "in").mkdir()
    os.chown(theirs / "in", 1, 1)
    kept = "-all,+setuid,+setgid"
    daemon = start("setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}")
    for cwd in (theirs, theirs / "in"):
        assert daemon.exec(argv=["pwd"], cwd=str(cwd), user=1).stdout_text == f"{cwd}\n"
        assert daemon.refuse(argv=["pwd"], cwd=str(cwd))["reason"] == "path_denied"
