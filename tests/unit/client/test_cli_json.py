"""`--json` of commands whose other output is for people."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from sandman.cli import main

PEOPLE_ONLY = {"shell", "serve", "completion"}
"""A terminal's bytes, a program that runs until interrupted, a script."""


def commands(group: click.Group, path: tuple[str, ...] = ()):
    for name in group.list_commands(None):  # type: ignore[arg-type]
        found = group.get_command(None, name)  # type: ignore[arg-type]
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def test_every_command_has_it():
    without = {
        name
        for name, command in commands(main)
        if not any("--json" in one.opts for one in command.params)
    }
    assert without == PEOPLE_ONLY


@pytest.fixture
def box(cli, gateway) -> str:
    assert cli("run", "--keep", "true").exit_code == 0
    (kept,) = gateway.sandboxes
    return kept


def test_release(cli, box):
    assert json.loads(cli("release", "--json", box).stdout) == {
        "run": None, "sandboxes": [box], "released": 1,
    }  # fmt: skip
    told = json.loads(cli("release", "--json", "--run", "r").stdout)
    assert (told["run"], told["sandboxes"], told["released"]) == ("r", [], 0)


def test_cp(cli, box, tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    there = f"{box}:{tmp_path}/there"
    told = json.loads(cli("cp", "--json", tmp_path / "a", there).stdout)
    assert told == {
        "source": str(tmp_path / "a"), "target": there, "members": 1, "bytes": 5, "skipped": [], "skipped_count": 0,
    }  # fmt: skip
    assert json.loads(cli("cp", "--json", there, tmp_path / "b").stdout)["bytes"] == 5
    assert (tmp_path / "b").read_bytes() == b"12345"
    assert json.loads(cli("cp", "--json", "-", there, input=b"123").stdout)["bytes"] == 3
    refused = cli("cp", "--json", there, "-")
    assert (refused.exit_code, "standard output" in refused.stderr) == (2, True)


def test_inject_of_a_manifest_prints_it_as_it_is(cli):
    refused = cli("inject", "--json", "-f", Path(__file__))
    assert (refused.exit_code, "--json goes with KIND/NAME" in refused.stderr) == (2, True)
