"""Fails when a test was skipped: `python scripts/no_skips.py junit.xml…`. For CI.

A skip is right on a developer's machine that lacks something; in CI it would be a test that nobody
runs and everybody trusts. An expected failure is not a skip: it ran.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def skipped(report: Path) -> list[str]:
    """The tests of a JUnit report that did not run, each with its reason."""
    found = []
    for case in ET.parse(report).iter("testcase"):  # nosec B314  # noqa: S314 - what our own pytest wrote
        skip = case.find("skipped")
        if skip is not None and skip.get("type") != "pytest.xfail":
            name = f"{case.get('classname')}::{case.get('name')}"
            found.append(f"{name}: {skip.get('message')}")
    return found


def main(arguments: list[str]) -> int:
    """Print what was skipped; 1 if anything was."""
    found = [line for report in arguments for line in skipped(Path(report))]
    for line in found:
        print(f"skipped: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
