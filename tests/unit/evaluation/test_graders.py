"""Who judges, and what the package's answer becomes. tests/adapters/test_swebench.py has the package itself."""

from __future__ import annotations

import json
import subprocess
import sys

import anyio
import pytest

from sandman.evaluation import graders
from sandman.evaluation.graders import (
    GRADINGS,
    CarefulGrader,
    GradingError,
    OwnGrader,
    PackageGrader,
    choose,
)
from sandman.evaluation.grading import Grade, Split
from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.options import Plan
from tests.unit.evaluation.samples import row, text


def done(stdout: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess([], code, stdout.encode(), b"last words")


def answer(**report: object) -> str:
    return json.dumps({"version": "5.0.2", "report": {"resolved": False, **report}})


def test_a_verdict_of_the_package():
    status = {
        "FAIL_TO_PASS": {"success": ["a"], "failure": []},
        "PASS_TO_PASS": {"success": [], "failure": ["b"]},
    }
    found = graders._parsed(done(answer(tests_status=status)))
    assert (found.resolved, found.reason, found.graded_by) == (
        False,
        "tests_failed",
        "swebench 5.0.2",
    )
    assert (found.fail_to_pass, found.pass_to_pass) == (Split(("a",)), Split((), ("b",)))
    found = graders._parsed(done("noise\n" + answer(tests_status=status, resolved=True)))
    assert (found.resolved, found.reason) == (True, None)


def test_a_log_that_says_nothing_to_the_package():
    assert graders._parsed(done(answer())).reason == "no_test_output"
    told = answer(infra_failure=True, infra_failure_reason="out_of_memory")
    assert graders._parsed(done(told)).reason == "out_of_memory"


@pytest.mark.parametrize("said", ["", "no JSON"])
def test_no_answer_is_no_verdict(said):
    with pytest.raises(GradingError, match="ended with 1: last words"):
        graders._parsed(done(said, 1))


async def test_where_it_is_not_installed(tmp_path):
    file = tmp_path / "log"
    file.write_text(text("PASSED t.py::fixed"))
    with pytest.raises(GradingError, match="No module named 'swebench'"):
        await PackageGrader(sys.executable).grade(row(), "p", file)
    assert isinstance(choose(Plan(), [row()]), OwnGrader)
    with pytest.raises(TaskListError, match="swebench is not installed here"):
        choose(Plan(grader="swebench"), [row()])


def test_where_it_is():
    there = Plan(swebench_python="/opt/python")
    assert choose(there, [row(log_parser="parse_log_django")]) == PackageGrader("/opt/python")
    # A parser of the caller's own is nothing that it could know.
    mine = Plan(swebench_python="/opt/python", parsers={"mine": lambda _text: {}})
    assert isinstance(choose(mine, [row(log_parser="mine")]), OwnGrader)
    assert isinstance(choose(mine, [row()]), PackageGrader)
    assert isinstance(choose(Plan(swebench_python="/opt/python", grader="own"), [row()]), OwnGrader)


class Counting:
    """Grades nothing, and knows how many wait for it at once."""

    now = most = 0

    async def grade(self, row: object, patch: str, file: object) -> Grade:
        del row, patch, file
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        self.now -= 1
        return Grade(True, None)


async def test_few_logs_are_in_memory_at_once(tmp_path):
    counting = Counting()
    careful = CarefulGrader(counting)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(careful.grade, row(), "p", tmp_path / "log")
    assert (counting.most, counting.now) == (GRADINGS, 0)
