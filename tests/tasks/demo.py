"""The demo on this machine alone: a real bug of a real package is fixed in one sandbox and evaluated in another.

    python -m tests.tasks.demo [TASK]

Starts the gateway in local mode, downloads the two releases, and tells each step with its time. Needs Python
and Linux, and neither root nor a cluster; afterwards nothing runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from sandman import local
from sandman.client import Client
from tests.tasks import catalog, scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 60.0
STOP_S = 30.0


async def show(client: Client, task: catalog.Task, image: str) -> bool:
    """Solve and evaluate the task; answers whether the patch was found good."""
    print(f"{task.name} {task.buggy.version} → {task.fixed.version}: {task.problem}\n")
    report = await scenario.solve_and_evaluate(client, task, image, run="demo", log=print)
    print(f"\nthe agent's patch:\n\n{report.solution.patch}")
    for name, split in (
        ("fail to pass", report.fail_to_pass),
        ("pass to pass", report.pass_to_pass),
    ):
        print(f"{name}: {len(split.ok)} of {len(split.ok) + len(split.failed)}")
    print("resolved" if report.resolved else "NOT resolved")
    return report.resolved


@contextmanager
def local_mode(state: str) -> Iterator[local.Connection]:
    """A gateway of local mode, as a person starts it; how to reach it."""
    environ = {**os.environ, local.ENV_STATE: state}
    command = [sys.executable, "-m", "sandman.cli", "serve", "--local"]
    process = subprocess.Popen(command, env=environ)
    try:
        until = time.monotonic() + START_S
        while (connection := local.read(environ)) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("local mode did not start")
            time.sleep(0.02)
        yield connection
    finally:
        process.terminate()
        process.wait(STOP_S)


async def run(connection: local.Connection, task: catalog.Task) -> bool:
    """The walk, by the client."""
    async with Client(connection.url, connection.token, ca=connection.trust()) as client:
        return await show(client, task, "host")


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    tasks = {task.name: task for task in catalog.TASKS}
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.demo", description=__doc__)
    parser.add_argument("task", nargs="?", choices=tasks, default=next(iter(tasks)))
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="sandman-demo-") as state,
        local_mode(state) as connection,
    ):
        print(f"local mode serves after {time.monotonic() - begun:.1f} s\n", flush=True)
        resolved = anyio.run(run, connection, tasks[arguments.task])
    print(f"\nstopped and cleaned up; all of it took {time.monotonic() - begun:.1f} s")
    return 0 if resolved else 1


if __name__ == "__main__":
    sys.exit(main())
