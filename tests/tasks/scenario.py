"""The walk of a task: solve it in one sandbox, evaluate the patch in a second, fresh one.

Sandbox one gets the buggy release, then the tests that come with the fix; they fail. The agent
finds the file at fault, edits it, runs the tests again, and what differs from the release is its
patch. Sandbox two gets the buggy release and that patch, then the tests once more, so that nothing
the agent did elsewhere counts. As in SWE-bench the task is resolved when all of `fail_to_pass` pass
and all of `pass_to_pass` still do.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio

from tests.tasks import agent, fetch, runner, workshop
from tests.tasks.stopwatch import Log, Stopwatch
from tests.tasks.workshop import Place, ScenarioError, Toolchain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.tasks.catalog import Task
    from tests.tasks.contract import Client
    from tests.tasks.fetch import Materials
    from tests.tasks.runner import Results, Split

__all__ = [
    "Evaluation", "Place", "Report", "ScenarioError", "Solution", "Toolchain",
    "evaluate", "grade", "solve", "solve_and_evaluate", "try_patch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Solution:
    """What came of sandbox one: test results before and after, and the patch."""

    before: Results
    after: Results
    patch: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of sandbox two."""

    results: Results
    fail_to_pass: Split
    pass_to_pass: Split

    @property
    def resolved(self) -> bool:
        """SWE-bench's rule: the bug is gone and nothing else broke."""
        return not self.fail_to_pass.failed and not self.pass_to_pass.failed


@dataclass(frozen=True, slots=True)
class Report:
    """The whole walk; `timings` are seconds by step, in their order."""

    task: str
    image: str
    solution: Solution
    evaluation: Evaluation
    timings: Mapping[str, float]

    @property
    def resolved(self) -> bool:
        """Whether the patch solves the task."""
        return self.evaluation.resolved

    @property
    def fail_to_pass(self) -> Split:
        """Tests that the fix must turn green."""
        return self.evaluation.fail_to_pass

    @property
    def pass_to_pass(self) -> Split:
        """Tests that must stay green."""
        return self.evaluation.pass_to_pass


async def solve_and_evaluate(
    client: Client,
    task: Task,
    image: str,
    *,
    python: Literal["system"] | Toolchain = "system",
    workdir: str = workshop.WORKDIR,
    pool: str | None = None,
    run: str | None = None,
    log: Log | None = None,
) -> Report:
    """Solve a task as an agent would and evaluate the patch.

    Args:
        client: anything that gives sandboxes as `contract.Client` says.
        task: one of `catalog.TASKS`; its materials are downloaded unless the cache has them.
        image: reference of the image for both sandboxes; it need not hold the package.
        python: the image's own `python3`, or one that is uploaded.
        workdir: directory that the sandbox's user may make and write.
        pool: name of the pool; None: the service's default.
        run: name of the run; None: none.
        log: gets a line about every step.
    """
    place = Place(image, python, workdir, pool, run)
    watch = Stopwatch(log)
    with watch.step("download"):
        materials = await anyio.to_thread.run_sync(fetch.materials, task)
    solution = await solve(client, materials, place, watch)
    evaluation = await evaluate(client, materials, solution.patch, place, watch)
    return Report(task.name, image, solution, evaluation, watch.seconds)


# --- sandbox one ----------------------------------------------------------------------------------


async def solve(
    client: Client, materials: Materials, place: Place, watch: Stopwatch | None = None
) -> Solution:
    """See the tests fail, make the change, see them pass, take the patch."""
    watch = watch or Stopwatch()
    async with workshop.open_workshop(client, materials, place, watch, "solve") as shop:
        await shop.put_tests()
        with watch.step("solve: tests without the fix"):
            before = await shop.run_tests("before.xml")
        with watch.step("solve: edit"):
            await _edit(shop)
        with watch.step("solve: tests with the fix"):
            after = await shop.run_tests("after.xml")
        with watch.step("solve: take the patch"):
            patch = await shop.take_patch()
    return Solution(before, after, patch)


async def _edit(shop: workshop.Workshop) -> None:
    before, after = shop.materials.fix()
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            await shop.execute(["rm", path], cwd=shop.layout.source)
        elif path not in before:
            await shop.box.files.write(f"{shop.layout.source}/{path}", after[path])
        else:
            await _edit_file(shop, path, agent.edits(before[path], after[path]))


async def _edit_file(shop: workshop.Workshop, path: str, steps: list[agent.Edit]) -> None:
    """Find the file by a line of it, replace text in it, write it back."""
    where = f"{shop.layout.source}/{path}"
    search = f"grep -rlF -e {shlex.quote(agent.clue(steps[0]))} {shop.materials.task.package}"
    found = await shop.box.run(search, cwd=shop.layout.source, timeout_s=workshop.STEP_TIMEOUT_S)
    if path not in found.stdout_text.splitlines():
        raise ScenarioError(f"{search} should find {path}: {workshop.told(found)}")
    content = await shop.box.files.read(where)
    await shop.box.files.write(where, agent.replay(content, steps))


# --- sandbox two ----------------------------------------------------------------------------------


async def evaluate(
    client: Client, materials: Materials, patch: str, place: Place, watch: Stopwatch | None = None
) -> Evaluation:
    """Whether a patch solves the task; an empty one is a control that must not."""
    return grade(materials.task, await try_patch(client, materials, patch, place, watch))


async def try_patch(
    client: Client, materials: Materials, patch: str, place: Place, watch: Stopwatch | None = None
) -> Results:
    """Results of the fixed release's tests on the buggy release with a patch, in a fresh sandbox."""
    watch = watch or Stopwatch()
    async with workshop.open_workshop(client, materials, place, watch, "evaluate") as shop:
        with watch.step("evaluate: apply the patch"):
            await shop.apply_patch(patch)
            await shop.put_tests()
        with watch.step("evaluate: tests"):
            return await shop.run_tests("evaluation.xml")


def grade(task: Task, results: Results) -> Evaluation:
    """Sort results by the task's two lists; a test that did not run has not passed."""
    return Evaluation(
        results,
        fail_to_pass=runner.split(results, task.fail_to_pass),
        pass_to_pass=runner.split(results, task.pass_to_pass()),
    )
