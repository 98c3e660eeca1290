"""How a patch is applied, and what of the repository has a say in it."""

from __future__ import annotations

import os
import subprocess

from sandman.evaluation import ladder

CONFIG = (
    ("core.fsmonitor", "touch ran; false"),
    ("diff.external", "touch ran; true"),
    ("diff.own.textconv", "touch ran; cat"),
)


def git(place, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=place, check=True, capture_output=True, text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
    ).stdout  # fmt: skip


def test_what_changed_is_asked_without_programs_that_the_repository_names(tmp_path):
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "file").write_text("before\n")
    (tmp_path / ".gitattributes").write_text("file diff=own\n")
    git(tmp_path, "add", "-A")
    for name, value in CONFIG:
        git(tmp_path, "config", name, value)
    (tmp_path / "file").write_text("after\n")
    (tmp_path / "ran").unlink(missing_ok=True)
    program, *arguments = ladder.DIFF
    assert program == "git"
    assert "+after" in git(tmp_path, *arguments)
    assert not (tmp_path / "ran").exists()
