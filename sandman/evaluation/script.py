"""The evaluation script of a row: what surrounds it, and the marks that it leaves in the log."""

from __future__ import annotations

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
BROKEN = (
    ">>>>> Patch Apply Failed",
    ">>>>> Reset Failed",
    ">>>>> Tests Errored",
    ">>>>> Tests Timed Out",
)
"""Marks of a run that says nothing about tests."""

HEAD = ("#!/bin/bash", "set -uxo pipefail")
_CODE = "SWEBENCH_TEST_EXIT_CODE"


def whole_script(text: str) -> str:
    """The script as it is run.

    Scripts end with a `git checkout` that takes the tests back, so that their own exit status is not that of the tests: that one is
    kept and told behind the mark of the end, outside of what is parsed. A script without that mark stays as it is.
    """
    lines = [line for line in text.strip().split("\n") if line not in HEAD]
    end = next((index for index, line in enumerate(lines) if END in line), None)
    if end is not None:
        told = f'echo "{EXIT_CODE}: ${_CODE}"'
        lines = [*lines[:end], f"{_CODE}=$?", lines[end], told, *lines[end + 1 :]]
    return "\n".join([*HEAD, *lines]) + "\n"
