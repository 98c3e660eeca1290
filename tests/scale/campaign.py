"""All that the scale bed measures, one after another: `python -m tests.scale.campaign`. A report a line in
`build/scale/report.jsonl`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass

from tests.cluster.bed.shell import say
from tests.scale import control, measure, model

LARGEST = 11_858
"""Sandboxes at once in the largest run that was published."""


@dataclass(frozen=True, slots=True)
class Step:
    """A bed, and what is measured on it."""

    name: str
    plan: control.Plan
    measures: tuple[str, ...]


STEPS = (
    Step(
        "burst",
        control.Plan(600, 4000),
        ("burst --count 300 --callers 300", "sustained --seconds 60 --rate 100"),
    ),
    Step("abandon", control.Plan(5000), ("abandon --count 5000 --callers 300 --ttl 60",)),
    Step("broken", control.Plan(5000), ("broken --count 4000 --callers 300",)),
    Step("hold", control.Plan(LARGEST), (f"hold --count {LARGEST} --callers 300 --seconds 600",)),
)


def main() -> int:
    """Run the steps that are named, or all; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.campaign", description=__doc__)
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(one.name for one in STEPS)}")
    wanted = parser.parse_args().steps
    failed = 0
    for step in STEPS:
        if not wanted or step.name in wanted:
            failed += not _measured(step)
    say(f"{measure.REPORT} has all of it")
    return min(failed, 1)


def _measured(step: Step) -> bool:
    bed = model.bed()
    control.up(bed, step.plan)
    try:
        for one in step.measures:
            command = [sys.executable, "-m", "tests.scale.measure", *one.split()]
            if subprocess.run(command, check=False, cwd=model.ROOT).returncode:
                return False
    finally:
        control.down(bed)
    return True


if __name__ == "__main__":
    sys.exit(main())
