"""Daemons to talk to: one of each cell for all tests that leave nothing behind, and fresh ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter, tree
from tests.conformance import cells, container, inspect_run, rootfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
# The first test may wait for a cold build of the interpreter and of the root file systems.
SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.conformance)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="package")
def machine() -> None:
    """A developer's machine may lack what containers need; CI's may not."""
    lacking = rootfs.missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(" ".join(lacking))
    if lacking:
        pytest.skip(" ".join(lacking))
    container.sweep()


@pytest.fixture(scope="package")
def runtime(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that is mounted into pods, of the daemon as it is in this checkout."""
    return tree.compose(interpreter.build(), tmp_path_factory.mktemp("runtime") / "tree")


@pytest.fixture(scope="package")
def boxes(
    runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[cells.Cell], cells.Box]]:
    """The shared daemon of a cell, started when it is first asked for."""
    running: dict[cells.Cell, cells.Box] = {}

    def get(cell: cells.Cell) -> cells.Box:
        if cell not in running:
            running[cell] = cells.start(cell, runtime, tmp_path_factory.mktemp(cell.name))
        return running[cell]

    yield get
    cells.close(running.values())


@pytest.fixture(scope="package", autouse=True)
def inspect_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, inspect_run.Run]]:
    """inspect_ai's checks on each of its images, begun before all other tests: they mostly sleep."""
    runs: dict[str, inspect_run.Run] = {}
    if any(item.path.name == "test_inspect.py" for item in request.session.items):
        runtime = request.getfixturevalue("runtime")
        python = inspect_run.environment()
        for name, subject in inspect_run.IMAGES.items():
            scratch = tmp_path_factory.mktemp(f"inspect-{name}")
            runs[name] = inspect_run.Run(python, subject, runtime, scratch)
    yield runs
    for run in runs.values():
        run.close()


@pytest.fixture
def verdicts(
    inspect_runs: dict[str, inspect_run.Run],
) -> Callable[[str], dict[str, inspect_run.Verdict]]:
    """What became of the checks on an image."""
    return lambda name: inspect_runs[name].verdicts()


@pytest.fixture
def box(
    request: pytest.FixtureRequest, boxes: Callable[[cells.Cell], cells.Box]
) -> Iterator[cells.Box]:
    """The shared daemon of the cell that `cells.over` names; no process of the test may outlive it."""
    one = boxes(request.param)
    assert one.container.is_alive(), "".join(one.container.lines)
    yield one
    assert one.wait_alone() == {}, "the test left processes behind"


@pytest.fixture
def place(box: cells.Box) -> Iterator[str]:
    """A directory in the box."""
    path = box.new_place()
    yield path
    box.files.delete(path, recursive=True)


@pytest.fixture
def fresh(runtime: Path, tmp_path: Path) -> Iterator[Callable[..., cells.Box]]:
    """Starts daemons that end with the test: for faults."""
    running: list[cells.Box] = []

    def make(name: str, **options: object) -> cells.Box:
        scratch = tmp_path / f"{name}-{len(running)}"
        scratch.mkdir()
        running.append(cells.start(cells.BY_NAME[name], runtime, scratch, **options))
        return running[-1]

    yield make
    cells.close(running)
