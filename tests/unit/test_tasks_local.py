"""The real tasks on this machine, without a cluster: proves the catalog. Downloads by pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.tasks import catalog, fetch, scenario, unified
from tests.tasks.local import LocalClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = pytest.mark.parametrize("task", catalog.TASKS, ids=lambda task: task.name)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> scenario.Toolchain:
    """The static Python, compiled when no build of it is in the cache."""
    out = tmp_path_factory.mktemp("toolchain") / "toolchain.tar"
    command = [sys.executable, "-m", "daemon.runtime", "toolchain", f"--out={out}"]
    subprocess.run(command, cwd=ROOT, check=True)
    return scenario.Toolchain(out)


@TASKS
async def test_a_task_is_solved(task, tmp_path):
    await solve(task, tmp_path, "system")


@pytest.mark.runtime
@TASKS
async def test_a_task_is_solved_with_a_python_of_our_own(task, tmp_path, toolchain):
    await solve(task, tmp_path, toolchain)


async def solve(
    task: catalog.Task, tmp_path: Path, python: Literal["system"] | scenario.Toolchain
) -> None:
    top = tmp_path / "box"
    client = LocalClient(top)
    log: list[str] = []
    report = await scenario.solve_and_evaluate(
        client, task, "none", python=python, workdir=str(top), log=log.append
    )
    without = scenario.grade(task, report.solution.before)
    assert without.fail_to_pass.failed == task.fail_to_pass
    assert without.pass_to_pass.failed == ()
    assert scenario.grade(task, report.solution.after).resolved
    assert report.resolved
    assert len(report.pass_to_pass.ok) == task.pass_to_pass_count
    assert client.released == 2
    assert len(log) == len(report.timings)
    assert report.solution.patch == fetch.materials(task).gold_patch


async def evaluated(task: catalog.Task, tmp_path: Path, patch: str) -> scenario.Evaluation:
    place = scenario.Place("none", workdir=str(tmp_path / "box"))
    client = LocalClient(tmp_path / "box")
    return await scenario.evaluate(client, fetch.materials(task), patch, place)


async def test_no_patch_resolves_nothing(tmp_path):
    evaluation = await evaluated(catalog.H11, tmp_path, "")
    assert not evaluation.resolved
    assert evaluation.fail_to_pass.failed == catalog.H11.fail_to_pass
    assert evaluation.pass_to_pass.failed == ()


async def test_a_patch_that_breaks_the_package_is_unresolved(tmp_path):
    materials = fetch.materials(catalog.H11)
    path = "h11/__init__.py"
    broken = unified.file_diff(path, materials.buggy[path], b"import nonsense\n")
    evaluation = await evaluated(catalog.H11, tmp_path, materials.gold_patch + broken)
    assert not evaluation.resolved
    assert evaluation.pass_to_pass.ok == ()


async def test_a_patch_that_ends_the_test_run_is_unresolved(tmp_path):
    materials = fetch.materials(catalog.H11)
    path = "h11/__init__.py"
    deadly = unified.file_diff(path, materials.buggy[path], b"import os\nos._exit(0)\n")
    evaluation = await evaluated(catalog.H11, tmp_path, deadly)
    assert evaluation.results == {}
    assert not evaluation.resolved


async def test_a_patch_that_rewrites_the_tests_gains_nothing(tmp_path):
    materials = fetch.materials(catalog.H11)
    path = "h11/tests/test_io.py"
    cheat = unified.file_diff(path, materials.buggy[path], b"def test_ChunkedReader():\n    pass\n")
    evaluation = await evaluated(catalog.H11, tmp_path, cheat)
    assert evaluation.fail_to_pass.failed == catalog.H11.fail_to_pass
