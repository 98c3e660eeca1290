"""Prove the catalog's facts on this machine, and write the lists of tests that must not break.

    python -m tests.tasks.calibrate [--runs 3] [--write] [INTERPRETER ...]

Each task is evaluated with no patch and with the gold patch, several times under each interpreter.
A test is in `fail_to_pass` when it never passes without the patch and always passes with it, in
`pass_to_pass` when it always passes. Anything in between is unsteady and is an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from tests.tasks import catalog, fetch, scenario
from tests.tasks.local import LocalClient
from tests.tasks.stopwatch import Stopwatch

if TYPE_CHECKING:
    from tests.tasks.catalog import Task
    from tests.tasks.runner import Results


class Facts(NamedTuple):
    """What was seen of a task."""

    fail_to_pass: list[str]
    pass_to_pass: list[str]
    unsteady: list[str]


def facts(without: list[Results], with_patch: list[Results]) -> Facts:
    """Sort every test that ran by what it did in all runs; skipped tests are in no list."""
    names = sorted({name for results in without + with_patch for name in results})
    sorted_out = Facts([], [], [])
    for name in names:
        before = {results.get(name) == "passed" for results in without}
        after = {results.get(name) == "passed" for results in with_patch}
        if len(before) != 1 or len(after) != 1 or (before, after) == ({True}, {False}):
            sorted_out.unsteady.append(name)
        elif after == {True}:
            (sorted_out.pass_to_pass if before == {True} else sorted_out.fail_to_pass).append(name)
    return sorted_out


async def observe(task: Task, python: Path, runs: int) -> tuple[list[Results], list[Results]]:
    """Results of all runs without and with the gold patch."""
    materials = fetch.materials(task)
    watch = Stopwatch()
    seen: tuple[list[Results], list[Results]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch) / "box"
        client = LocalClient(top, python)
        place = scenario.Place("none", workdir=str(top))
        for _ in range(runs):
            for patch, results in zip(("", materials.gold_patch), seen, strict=True):
                results.append(await scenario.try_patch(client, materials, patch, place, watch))
    print(f"  {python}: {watch.seconds['evaluate: tests'] / runs / 2:.1f} s a run of the tests")
    return seen


def report(task: Task, found: Facts) -> bool:
    """Print what was found; whether it is what the catalog says."""
    print(
        f"  fail_to_pass {len(found.fail_to_pass)}, pass_to_pass {len(found.pass_to_pass)},"
        f" unsteady {found.unsteady}"
    )
    listed = task.list_file.exists() and list(task.pass_to_pass()) == found.pass_to_pass
    as_said = (
        found.fail_to_pass == sorted(task.fail_to_pass)
        and len(found.pass_to_pass) == task.pass_to_pass_count
    )
    print(f"  as the catalog says: {as_said}; as the list says: {listed}")
    return as_said and listed and not found.unsteady


async def main(arguments: list[str]) -> int:
    """Calibrate every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the lists of tests")
    parser.add_argument("pythons", nargs="*", type=Path, default=[Path(sys.executable)])
    options = parser.parse_args(arguments)
    good = True
    for task in catalog.TASKS:
        print(task.name)
        seen = [await observe(task, python, options.runs) for python in options.pythons]
        found = facts([r for one in seen for r in one[0]], [r for one in seen for r in one[1]])
        if options.write:
            task.list_file.parent.mkdir(exist_ok=True)
            task.list_file.write_text("".join(f"{name}\n" for name in found.pass_to_pass))
        good = report(task, found) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1:]))
