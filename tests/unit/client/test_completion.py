"""Completion, in a real bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sandman import contexts
from sandman.cli import main
from tests.unit.client.fake_gateway import TOKEN
from tests.unit.daemon.harness import ROOT

COMPLETED = """
eval "$(sandman completion bash)"
while read -r -a COMP_WORDS; do
    [ "${COMP_WORDS[-1]}" = _ ] && COMP_WORDS[-1]=""
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _sandman_completion sandman
    (IFS=,; echo "${COMPREPLY[*]}")
done
"""


@pytest.fixture
def environ(gateway, tmp_path) -> dict[str, str]:
    """With `sandman` on the path, as an installation has it."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sandman"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sandman.cli "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(tmp_path),
    }  # fmt: skip


def completed(environ, *lines: str) -> list[list[str]]:
    done = subprocess.run(
        ["bash", "-c", COMPLETED], input="\n".join([*lines, ""]), env=environ,
        capture_output=True, text=True, check=True, timeout=80,
    )  # fmt: skip
    return [line.split(",") if line else [] for line in done.stdout.splitlines()]


@pytest.mark.timeout(300)
def test_bash_completes_commands_options_and_ids(environ, cli, gateway):
    assert shutil.which("bash") is not None
    assert cli("run", "--keep", "true").exit_code == 0
    (box,) = gateway.sandboxes
    contexts.change(environ, lambda before: before.with_one("prod", contexts.Context("u", "t")))
    boxes: list[str] = []
    for _ in range(10):
        commands, boxes, known = completed(
            environ, "sandman po", "sandman exec _", "sandman --context _"
        )
        # Who presses tab waits a second and a half for ids, and no longer: a busy machine may take more.
        if boxes:
            break
    assert commands == ["pools", "port-forward"]
    assert boxes == [box]
    assert known == ["prod", "local"]


def test_without_a_gateway_there_are_no_ids_and_no_errors(environ):
    asked = {**environ, "SANDMAN_URL": "http://127.0.0.1:1", "_SANDMAN_COMPLETE": "bash_complete"}
    asked |= {"COMP_WORDS": "sandman exec ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "sandman.cli"],
        env=asked,
        capture_output=True,
        check=False,
        timeout=28,
    )
    assert (done.stdout.strip(), done.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("words", "index", "offered"),
    [("sandman cp ./", "2", "file,./"), ("sandman cp s", "2", "plain,sandman-")],
)
def test_copies_are_completed_by_files_and_by_sandboxes(cli, gateway, words, index, offered):
    assert cli("run", "--keep", "true").exit_code == 0
    asked = {
        "SANDMAN_URL": gateway.url,
        "SANDMAN_TOKEN": TOKEN,
        "_SANDMAN_COMPLETE": "bash_complete",
    }
    shown = CliRunner(env={**asked, "COMP_WORDS": words, "COMP_CWORD": index}).invoke(
        main, [], prog_name="sandman"
    )
    assert shown.stdout.startswith(offered), json.dumps(shown.output)


@pytest.mark.parametrize(
    ("shell", "part"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")],
)
def test_each_shell_has_its_script(shell, part):
    shown = CliRunner().invoke(main, ["completion", shell])
    assert shown.exit_code == 0
    assert part in shown.stdout
    assert "_SANDMAN_COMPLETE" in shown.stdout
