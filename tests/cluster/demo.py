"""The demo: a real bug of a real package is fixed in one sandbox and evaluated in another.

    python -m tests.cluster.demo [TASK]

Installs Sandman on the test cluster if it is not there, downloads the two releases, and tells each
step with its time.
"""

from __future__ import annotations

import argparse
import sys

import trio

from tests.cluster.bed import Bed
from tests.cluster.deployed import Deployed, deploy
from tests.tasks import catalog, scenario


async def show(deployed: Deployed, task: catalog.Task) -> bool:
    """Solve and evaluate the task; answers whether the patch was found good."""
    print(f"{task.name} {task.buggy.version} → {task.fixed.version}: {task.problem}\n")
    async with deployed.client() as client:
        report = await scenario.solve_and_evaluate(
            client, task, deployed.image("debian"), run="demo", log=print
        )
    print(f"\nthe agent's patch:\n\n{report.solution.patch}")
    for name, split in (
        ("fail to pass", report.fail_to_pass),
        ("pass to pass", report.pass_to_pass),
    ):
        print(f"{name}: {len(split.ok)} of {len(split.ok) + len(split.failed)}")
    print("resolved" if report.resolved else "NOT resolved")
    return report.resolved


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    tasks = {task.name: task for task in catalog.TASKS}
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.demo", description=__doc__)
    parser.add_argument("task", nargs="?", choices=tasks, default=next(iter(tasks)))
    arguments = parser.parse_args(argv)
    resolved = trio.run(show, deploy(Bed.from_env()), tasks[arguments.task])
    return 0 if resolved else 1


if __name__ == "__main__":
    sys.exit(main())
