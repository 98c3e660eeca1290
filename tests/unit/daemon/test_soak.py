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


def test_no_regular_expression_is_compiled_for_a_start(home: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(home / 'app')!r}); import daemon.application; print(*sys.modules)"
    argv = [str(home / "bin" / "python3"), "-I", "-S", "-c", script]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "daemon.processes" in loaded
    assert not {"re", "json", "base64", "contextlib", "dataclasses", "subprocess"} & set(loaded)
