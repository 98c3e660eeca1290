"""A real bug of a real package is fixed and evaluated in sandboxes of the cluster, in unlike images."""

from __future__ import annotations

import tarfile
import uuid
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio

from tests.tasks import catalog, fetch, scenario
from tests.tasks.catalog import H11, SQLPARSE, TOMLKIT, Task

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Case:
    """A task in an image; `brings_python` where the image has none of its own."""

    image: str
    task: Task
    pool: str | None = None
    brings_python: bool = False

    def __str__(self) -> str:
        return "-".join(filter(None, [self.image, self.pool, self.task.name]))

    def place(self, sandman: Any) -> scenario.Place:
        """Where the task's sandboxes come from; a run of its own, to be found by."""
        return scenario.Place(
            sandman.image(self.image),
            python=scenario.Toolchain(sandman.toolchain()) if self.brings_python else "system",
            pool=self.pool,
            run=f"task-{uuid.uuid4().hex[:8]}",
        )


CASES = [
    *(Case("debian", task) for task in catalog.TASKS),
    Case("busybox", H11, brings_python=True),
    Case("busybox", TOMLKIT, brings_python=True),
    # Nobody's root and a root file system that cannot be written: only /tmp is left to work in.
    Case("nonroot", SQLPARSE, pool="readonly"),
]


async def listed_until_empty(client: Any, run: str | None) -> list[Any]:
    """What stays listed: another replica hears of a release within moments, not at once."""
    left = await client.list(run=run)
    with trio.move_on_after(5):
        while left:
            await trio.sleep(0.1)
            left = await client.list(run=run)
    return list(left)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_task_is_solved_and_evaluated(sandman, case):
    place = case.place(sandman)
    async with sandman.client() as client:
        report = await scenario.solve_and_evaluate(
            client,
            case.task,
            place.image,
            python=place.python,
            pool=place.pool,
            run=place.run,
            log=print,
        )
        left = await listed_until_empty(client, place.run)
    assert scenario.grade(case.task, report.solution.before).fail_to_pass.ok == ()
    assert scenario.grade(case.task, report.solution.after).resolved
    assert report.resolved, (report.fail_to_pass.failed, report.pass_to_pass.failed)
    assert len(report.pass_to_pass.ok) == case.task.pass_to_pass_count
    assert left == []


async def test_no_patch_resolves_nothing(sandman):
    place = Case("debian", H11).place(sandman)
    async with sandman.client() as client:
        evaluation = await scenario.evaluate(client, fetch.materials(H11), "", place)
    assert not evaluation.resolved
    assert evaluation.fail_to_pass.failed == H11.fail_to_pass
    assert evaluation.pass_to_pass.failed == ()


async def test_a_task_is_solved_in_a_directory_of_the_callers_choice(sandman):
    place = replace(Case("nonroot", H11).place(sandman), workdir="/home/agent/a place")
    async with sandman.client() as client:
        solution = await scenario.solve(client, fetch.materials(H11), place)
    assert scenario.grade(H11, solution.after).resolved


async def test_an_image_with_nothing_in_it_takes_files_and_runs_programs(sandman):
    data = bytes(range(256)) * 4096
    with tarfile.open(sandman.toolchain()) as tar:
        member = tar.extractfile("python/bin/python3")
        assert member
        program = member.read()
    async with (
        sandman.client() as client,
        client.sandbox(image=sandman.image("empty")) as box,
    ):
        await box.files.write("/deep/below/data", data)
        assert await box.files.read("/deep/below/data") == data
        await box.files.write("/deep/python3", program, mode=0o755)
        result = await box.exec(["/deep/python3", "-V"])
    assert result.ok
    assert result.stdout_text.startswith("Python 3.")
