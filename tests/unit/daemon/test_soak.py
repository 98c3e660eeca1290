"""The short form of `make soak`: marker `runtime`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter, tree
from tests.soak import soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
@pytest.mark.timeout(600)
def test_orphans_of_hundreds_of_commands_leave_nothing_and_no_output_is_cut(
    tmp_path: Path,
) -> None:
    home = tree.compose(interpreter.build(), tmp_path / "tree")
    report = soak.run(home, commands=300, outputs=3)
    assert (report.commands, report.outputs) == (300, 3)
    assert report.rss_after - report.rss_before < soak.GROWTH_KIB
