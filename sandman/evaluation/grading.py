"""Statuses of tests → whether the task is resolved. Pure; a fault of the infrastructure never comes here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman.evaluation import log

if TYPE_CHECKING:
    from sandman.evaluation.parsers import Parser
    from sandman.evaluation.rows import TaskRow

TESTS_FAILED = "tests_failed"
_PASSED = frozenset({"PASSED", "XFAIL"})
_FAILED = frozenset({"FAILED", "ERROR", "SKIPPED"})

Judge = Callable[[str, Mapping[str, str]], bool | None]
"""Whether a test did what was expected of it; None: nobody can tell."""


@dataclass(frozen=True, slots=True)
class Split:
    """Tests that did what was expected of them, and those that did not."""

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict; `reason` says why a task is not resolved, `graded_by` whose rules they were."""

    resolved: bool
    reason: str | None
    fail_to_pass: Split = Split()
    pass_to_pass: Split = Split()
    exit_code: int | None = None
    graded_by: str = "sandman"


def grade(row: TaskRow, text: str, parser: Parser) -> Grade:
    """The verdict on a whole log."""
    found = log.read(text, parser)
    if found.problem is not None:
        return Grade(False, found.problem, exit_code=found.exit_code)
    strict, kept = (
        (_fixed, _maintained) if row.eval_type == "pass_and_fail" else (_unmentioned, _unmentioned)
    )
    fail_to_pass = _split(row.fail_to_pass, found.statuses, strict)
    pass_to_pass = _split(row.pass_to_pass, found.statuses, kept)
    resolved = not fail_to_pass.failed and not pass_to_pass.failed
    reason = None if resolved else TESTS_FAILED
    return Grade(resolved, reason, fail_to_pass, pass_to_pass, found.exit_code)


def _split(names: Iterable[str], statuses: Mapping[str, str], judge: Judge) -> Split:
    verdicts = [(name, judge(name, statuses)) for name in names]
    return Split(
        tuple(name for name, ok in verdicts if ok is True),
        tuple(name for name, ok in verdicts if ok is False),
    )


def _key(name: str, statuses: Mapping[str, str]) -> str | None:
    """The test in the log. Some data sets cut names off within their parameter (`test_a[log(photon`): such a one stands for all that
    begin so, where they agree."""
    if name in statuses:
        return name
    if name.count("[") > name.count("]"):
        found = [key for key in statuses if key.startswith(name)]
        if found and len({statuses[key] in _PASSED for key in found}) == 1:
            return found[0]
    return None


def _fixed(name: str, statuses: Mapping[str, str]) -> bool | None:
    """It must pass; one that is skipped has not been mended."""
    key = _key(name, statuses)
    if key is None or statuses[key] in _FAILED:
        return False
    return True if statuses[key] in _PASSED else None


def _maintained(name: str, statuses: Mapping[str, str]) -> bool | None:
    """It must not break; one that is skipped has not."""
    key = _key(name, statuses)
    if key is not None and statuses[key] == "SKIPPED":
        return True
    return _fixed(name, statuses)


def _unmentioned(name: str, statuses: Mapping[str, str]) -> bool:
    """Where the log names failures alone."""
    return statuses.get(name) != "FAILED"
