"""Local mode that cannot start says so in a line, and harms nobody who runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sandman import local
from tests.flow.local_mode import running

pytestmark = pytest.mark.timeout(120)


def start(state, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Of one that is to end by itself."""
    command = [sys.executable, "-m", "sandman.cli", "serve", "--local", "--offline", *arguments]
    environ = {**os.environ, local.ENV_STATE: str(state)}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_second_one_with_the_same_files_leaves_the_first_alone(tmp_path):
    with running(tmp_path) as first:
        done = start(tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "sandman: a gateway of local mode runs already: end it, or give this one files of its own "
            "(SANDMAN_LOCAL_STATE)\n"
        )
        assert local.read(first.environ) == first.connection
    with running(tmp_path):
        pass


def test_a_port_in_use_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start(tmp_path, f"--port={port}")
    assert done.returncode == 1
    expected = f"sandman: port {port} is in use: another --port, or none for any that is free\n"
    assert done.stderr == expected


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--image=x=/nosuch"], 2, "argument --image: /nosuch: there is no such file or directory"),
        (["--default-image=nope"], 1, "no image is named nope; there are: host"),
        (["--memory=0"], 2, "sandman serve --local: error: argument --memory: '0' is no amount"),
    ],
)
def test_what_makes_no_sense_is_told_before_it_serves(tmp_path, arguments, code, words):
    done = start(tmp_path, *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert local.read({local.ENV_STATE: str(tmp_path)}) is None
