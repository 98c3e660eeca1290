"""What this machine refuses: exit code 1, and one line that names the path that was given."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile

import pytest

from tests.unit.client.fake_gateway import TOKEN, answer


@pytest.fixture
def box(cli, gateway) -> str:
    assert cli("run", "--keep", "true").exit_code == 0
    (kept,) = gateway.sandboxes
    assert cli("cp", "-", f"{kept}:f", input=b"x").exit_code == 0
    return kept


def refusal(result) -> str:
    """The one line that it said."""
    assert result.exit_code == 1, result.output
    [line] = result.stderr.splitlines()
    return line


def test_cp_of_a_file_that_is_not_here(cli, box, tmp_path):
    path = tmp_path / "nope"
    said = refusal(cli("cp", path, f"{box}:x"))
    assert said == f"sandman: {path}: No such file or directory"


def test_cp_to_where_no_directory_is(cli, box, tmp_path):
    path = tmp_path / "no" / "dir" / "x"
    said = refusal(cli("cp", f"{box}:f", path))
    assert said == f"sandman: {path}: No such file or directory"


def test_cp_to_what_cannot_be_replaced(cli, box, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "f").mkdir(parents=True)
    assert refusal(cli("cp", f"{box}:f", "in")) == "sandman: in/f: Is a directory"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_cp_of_a_tree_to_where_a_file_is(cli, box, tmp_path):
    (tmp_path / "d").mkdir()
    assert cli("cp", tmp_path / "d", f"{box}:d").exit_code == 0
    (tmp_path / "file").write_text("x")
    said = refusal(cli("cp", f"{box}:d", tmp_path / "file"))
    assert said == f"sandman: {tmp_path / 'file'}: File exists"


def test_cp_names_the_member_that_was_refused(cli, box, gateway, tmp_path):
    (tmp_path / "d").mkdir()
    assert cli("cp", tmp_path / "d", f"{box}:d").exit_code == 0
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("n" * 256))
    gateway.plan(f"GET /v1/sandboxes/{box}/archive", answer(200, stream.getvalue()))
    said = refusal(cli("cp", f"{box}:d", tmp_path / "in"))
    assert said == f"sandman: {tmp_path / 'in'}: {'n' * 256}: File name too long"


def test_cp_to_a_standard_output_that_is_full(gateway, box):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "sandman.cli", "cp", f"{box}:f", "-"],
            env={**os.environ, "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.stderr == "sandman: standard output: No space left on device\n"
    assert done.returncode == 1


def test_steps_that_cannot_be_read(cli, tmp_path):
    path = tmp_path / "steps.json"
    given = ("--count", 1, "--for", 60, "--prepare", path)
    assert refusal(cli("reserve", *given)) == f"sandman: {path}: No such file or directory"


def test_contexts_that_cannot_be_written(cli, gateway, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    said = refusal(cli("login", gateway.url, input=TOKEN))
    assert f"cannot write {tmp_path / 'file' / 'sandman' / 'contexts.json'}" in said
