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
from tests.tasks import catalog, demo


async def show(deployed: Deployed, task: catalog.Task) -> bool:
    """Solve and evaluate the task; answers whether the patch was found good."""
    async with deployed.client() as client:
        return await demo.show(client, task, deployed.image("debian"))


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
