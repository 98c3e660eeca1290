"""Who judges a log: SWE-bench's own package where it is installed, else the same rules written here."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from sandman.evaluation import log, packaged
from sandman.evaluation.grading import TESTS_FAILED, Grade, Split, grade
from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.parsers import PARSERS, Parser
from sandman.evaluation.script import END, START

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping

    from sandman.evaluation.options import Plan
    from sandman.evaluation.rows import TaskRow

GRADE_LIMIT_S = 300.0
"""For one log. The package takes a fraction of a second for ten MB; what takes longer was written to take longer."""


GRADINGS = 2
"""At once: each has its log in memory, and several times at that."""
UNGRADABLE = "ungradable"
"""The grader fails on this log and on no other: what the patch made of the log is no reason to try again."""
_BLANK = f"{START}\n{END}\n"
"""A log that any grader takes."""


class GradingError(Exception):
    """The grader failed, which says nothing about the patch."""


class UngradableError(GradingError):
    """It failed on this log; of a `CarefulGrader`: and takes others of the same task."""


class Grader(Protocol):
    """Judges logs."""

    async def grade(self, row: TaskRow, patch: str, file: Path) -> Grade:
        """The verdict on a whole log.

        Raises:
            UngradableError: there is none on this log.
            GradingError: the grader is not to be had.
        """


@dataclass(frozen=True, slots=True)
class OwnGrader:
    """The rules written here; a parser may be the caller's."""

    parsers: Mapping[str, Parser]

    async def grade(self, row: TaskRow, patch: str, file: Path) -> Grade:
        """The verdict on a whole log."""
        del patch
        return await anyio.to_thread.run_sync(self._grade, row, file)

    def _grade(self, row: TaskRow, file: Path) -> Grade:
        text = log.text_of(file.read_bytes())
        try:
            return grade(row, text, self.parsers[row.log_parser])
        except Exception as error:  # a parser may be anybody's
            raise UngradableError(f"{row.log_parser}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class CarefulGrader:
    """Tells a grader that does not work from a log that was written to break one; judges few at once."""

    grader: Grader
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(GRADINGS))

    async def grade(self, row: TaskRow, patch: str, file: Path) -> Grade:
        """The verdict on a whole log.

        Raises:
            UngradableError: there is none on this log.
            GradingError: nor would there be on any other.
        """
        async with self.limiter:
            try:
                return await self.grader.grade(row, patch, file)
            except UngradableError:
                await self._try(row, patch)
            # What this machine did to it, by want of memory or of time, it mostly does once.
            return await self.grader.grade(row, patch, file)

    async def _try(self, row: TaskRow, patch: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "blank.txt"
            await anyio.Path(file).write_text(_BLANK)
            try:
                await self.grader.grade(row, patch, file)
            except UngradableError as error:
                raise GradingError(str(error)) from error


@dataclass(frozen=True, slots=True)
class PackageGrader:
    """SWE-bench's package, in a process of its own.

    Args:
        python: the interpreter that has it.
    """

    python: str
    limit_s: float = GRADE_LIMIT_S

    async def grade(self, row: TaskRow, patch: str, file: Path) -> Grade:
        """The verdict on a whole log."""
        told = {"row": row.document(), "patch": patch, "log": str(await anyio.Path(file).resolve())}
        try:
            with anyio.fail_after(self.limit_s):
                done = await anyio.run_process(
                    [self.python, packaged.__file__],
                    input=json.dumps(told).encode() + b"\n",
                    check=False,
                )
        except TimeoutError:
            raise UngradableError(
                f"SWE-bench's grading took more than {self.limit_s:g} s"
            ) from None
        except OSError as error:
            raise GradingError(f"{self.python}: {error.strerror or error}") from None
        except Exception as error:  # as a group, where it ended before it had read what it was told
            raise UngradableError(f"{self.python}: {type(error).__name__}: {error}") from error
        return replace(_parsed(done), exit_code=await anyio.to_thread.run_sync(_exit_code, file))


def _exit_code(file: Path) -> int | None:
    return log.exit_code_of(log.text_of(file.read_bytes()))


def _parsed(done: subprocess.CompletedProcess[bytes]) -> Grade:
    lines = done.stdout.splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise UngradableError(f"SWE-bench's grading ended with {done.returncode}: {said}") from None
    if "error" in answer:
        raise UngradableError(f"SWE-bench's grading: {answer['error']}")
    return _grade(answer["report"], f"swebench {answer['version']}")


def _grade(report: Mapping[str, Any], graded_by: str) -> Grade:
    tests = report.get("tests_status")
    if tests is None:
        # It tells what it takes for a sign of a broken environment; otherwise nothing.
        reason = report.get("infra_failure_reason") or log.NO_TEST_OUTPUT
        return Grade(resolved=False, reason=reason, graded_by=graded_by)
    splits = [_split(tests[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
    resolved = bool(report["resolved"])
    reason = None if resolved else TESTS_FAILED
    return Grade(resolved, reason, splits[0], splits[1], graded_by=graded_by)


def _split(body: Mapping[str, Iterable[str]]) -> Split:
    return Split(tuple(body["success"]), tuple(body["failure"]))


def choose(plan: Plan, rows: Iterable[TaskRow]) -> Grader:
    """The grader for these rows.

    Raises:
        TaskListError: nobody here can read the log of one of them, or the package is wanted and not there.
    """
    python = plan.swebench_python or sys.executable
    is_there = plan.swebench_python is not None or importlib.util.find_spec("swebench") is not None
    if plan.grader == "swebench" and not is_there:
        raise TaskListError("swebench is not installed here: pip install swebench", place="grader")
    parsers = {**PARSERS, **(plan.parsers or {})}
    own = {row.log_parser for row in rows} & set(plan.parsers or {})
    if is_there and plan.grader != "own" and not own:
        return PackageGrader(python)
    for row in rows:
        if row.log_parser not in parsers:
            raise TaskListError(
                f"{row.log_parser} is not known here: the package swebench has more (pip install swebench)",
                place=row.instance_id, field="log_parser",
            )  # fmt: skip
    return OwnGrader(parsers)
