"""The short form of `make soak`: marker `runtime`."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter, tree
from tests.soak import soak

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What goes into pods."""
    return tree.compose(interpreter.build(), tmp_path_factory.mktemp("soak") / "tree")


def test_orphans_of_hundreds_of_commands_leave_nothing_and_no_output_is_cut(home: Path) -> None:
    report = soak.run(home, commands=300, outputs=3)
    assert (report.commands, report.outputs) == (300, 3)
    assert report.rss_after - report.rss_before < soak.GROWTH_KIB


def test_a_start_loads_what_a_claim_needs_and_no_more(home: Path) -> None:
    modules = "daemon.__main__, daemon.signals, daemon.listener, daemon.serve, daemon.application, daemon.state"
    script = f"import sys; sys.path.insert(0, {str(home / 'app')!r}); import {modules}; print(*sys.modules)"
    argv = [str(home / "bin" / "python3"), "-I", "-S", "-c", script]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    ours = {name.partition(".")[2] for name in loaded if name.startswith(("daemon.", "sandman."))}
    assert ours == {
        "__main__", "application", "config", "connection", "documents", "exchange", "front", "handshake", "http1",
        "init", "kernel", "lease", "listener", "log", "routes", "serve", "server", "signals", "state", "tree", "users",
        "claims", "errors", "fields", "names", "notation", "records", "version",
    }  # fmt: skip
    late = {"re", "json", "base64", "contextlib", "dataclasses", "subprocess", "typing", "struct"}
    assert not late & set(loaded)
