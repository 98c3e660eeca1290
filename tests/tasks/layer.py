"""The real tasks as a layer over an image with git and Python: what SWE-bench's images bring, and `RealRow.setup` otherwise carries."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.tasks import catalog, fetch
from tests.tasks.rows import COMMIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tasks.catalog import Source, Task
    from tests.tasks.unified import Tree

TOP = "swe"
_DATE = "2026-01-01T00:00:00Z"
"""Of the one commit: the same layer each time."""


def top_of(task: Task) -> str:
    """Where its parts are in the image: the `top` of its row."""
    return f"/{TOP}/{task.name}"


def recipe() -> str:
    """What the layer is made of, as far as it may change."""
    sources: list[Source] = [one.buggy for one in catalog.TASKS] + list(fetch.RUNNER.values())
    return " ".join(["real tasks 1", *(one.sha256 for one in sources)])


def make(root: Path) -> None:
    """All tasks, each with its repository at the release before the fix, and with pytest.

    Raises:
        FetchError: a release could not be had.
    """
    for task in catalog.TASKS:
        parts, place = fetch.materials(task), root / TOP / task.name
        write(place / "testbed", parts.buggy)
        write(place / "pytest", parts.pytest)
        commit(place / "testbed")


def write(place: Path, tree: Tree) -> None:
    """The files of a tree."""
    for name, data in tree.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def commit(place: Path) -> None:
    """The tree as the one commit of a repository, by nobody's settings but these."""
    dates = {"GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE}
    alone = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    env = {"PATH": os.environ["PATH"], **dates, **alone}
    subprocess.run(["/bin/sh", "-c", COMMIT], cwd=place, env=env, check=True)
