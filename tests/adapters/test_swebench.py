"""SWE-bench's own package, in a Python of its own, grades logs made here: its verdicts are ours, test by test.

Almost nothing but the package is installed there: most that it depends on is not needed for grading (`sandman/evaluation/packaged.py`).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sandman import local
from sandman.client import Client
from sandman.evaluation import log, packaged
from sandman.evaluation.graders import GradingError, OwnGrader, PackageGrader
from sandman.evaluation.grading import Grade, grade
from sandman.evaluation.parsers import PARSERS
from sandman.evaluation.rows import TaskRow, read_rows
from tests import venvs
from tests.adapters import frameworks
from tests.tasks import catalog, fetch, unified
from tests.tasks.rows import RealRow
from tests.unit.evaluation.samples import document, row, text

if TYPE_CHECKING:
    from pathlib import Path

LOCK = frameworks.HERE / "swebench.lock"
LOGS = 400
SEED = 20260101


@pytest.fixture(scope="module")
def python() -> str:
    return str(venvs.environment(LOCK))


# --- a real task ---


def test_a_real_task_has_the_same_verdict(gateway, python, tmp_path):
    found = local.read(os.environ | gateway)
    assert found is not None
    ca = tmp_path / "ca.pem"
    ca.write_text(found.ca)
    real = RealRow(fetch.materials(catalog.H11), "task:1")
    rows = [real.row()]
    name = rows[0]["instance_id"]
    patches = [one["model_patch"] for one in predictions(real)]

    async def main() -> None:
        how: dict[str, Any] = {"workdir": real.workdir, "setup": real.setup}
        async with Client(found.url, found.token, ca=ca) as client:
            ours = await client.evaluate(
                rows, predictions(real), tmp_path / "own", grader="own", **how
            )
            theirs = await client.evaluate(
                rows, "gold", tmp_path / "package", grader="swebench", swebench_python=python, **how
            )
        assert [one.outcome for one in ours.records] == ["resolved", "unresolved", "unresolved"]
        [task] = read_rows(rows)
        for sample, (record, patch) in enumerate(zip(ours.records, patches, strict=True)):
            assert record.graded_by == "sandman"
            file = tmp_path / "own/logs/m" / name / f"{sample}.0/test_output.txt"
            same(await PackageGrader(python).grade(task, patch, file),
                 await OwnGrader(PARSERS).grade(task, patch, file))  # fmt: skip
        [gold] = theirs.records
        assert (gold.outcome, gold.graded_by, gold.exit_code) == ("resolved", "swebench 5.0.2", 0)

    anyio.run(main)


def predictions(real: RealRow) -> list[dict[str, str]]:
    """The fix, one line that mends nothing, and one that breaks all."""
    path, name = "h11/__init__.py", real.row()["instance_id"]
    before = real.materials.buggy[path]
    texts = [
        str(real.row()["patch"]),
        unified.file_diff(path, before, before + b"# mended\n"),
        unified.file_diff(path, before, b"import nonsense\n"),
    ]
    return [
        {"instance_id": str(name), "model_patch": text, "model_name_or_path": "m"} for text in texts
    ]


def same(theirs: Grade, ours: Grade) -> None:
    assert theirs.graded_by == "swebench 5.0.2"
    assert (theirs.resolved, theirs.exit_code) == (ours.resolved, ours.exit_code)
    assert theirs.fail_to_pass == ours.fail_to_pass
    assert theirs.pass_to_pass == ours.pass_to_pass


# --- logs that nobody would write ---

TESTS = ("t.py::a", "t.py::b[x y]", "t.py::c[/p/q.txt]", "t.py::d[log(x", "[3]", "[100%]", "PASSED")
STATUSES = ("PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL", "PASSEDx", "xPASSED", "XPASS")
FORMS = (
    "{status} {test}", "{status} {test} - assert 1 - 2", "{test} {status}", "\x1b[31m{status}\x1b[0m {test}",
    "{status} {test})-1]", "{status}", "  {status} {test}", "{status} {test}\r", "{status} [3] t.py:1: why",
    "12 passing", "Executed 0 of 0", "Executed 3 of 4", ": ok", "': ok", ">>>>> Start Test Output",
    ">>>>> End Test Output", ">>>>> Test Exit Code: -1", "\udcff{status} {test}", "{status} MouseButton.LEFT", "",
)  # fmt: skip
RARE = (*(">>>>> " + mark for mark in ("Tests Errored", "Reset Failed", "Patch Apply Failed")),)


def odd_log(dice: random.Random) -> str:
    lines = [
        dice.choice(FORMS[: len(FORMS) if dice.random() < 0.2 else 9]).format(
            status=dice.choice(STATUSES[: dice.choice((2, 5, 8))]), test=dice.choice(TESTS)
        )
        for _ in range(dice.randrange(12))
    ]
    whole = text(*lines, code=dice.choice((None, 0, 1)))
    if dice.random() < 0.1:
        whole = whole.replace(dice.choice((">>>>> Start", ">>>>> End")), "gone")
    return whole + (f"\n{dice.choice(RARE)}" if dice.random() < 0.05 else "")


def odd_row(dice: random.Random) -> dict[str, Any]:
    names = dice.sample(TESTS, dice.randrange(4))
    cut = dice.randrange(len(names) + 1)
    return document(
        log_parser=dice.choice(sorted(PARSERS)),
        eval_type=dice.choice(("pass_and_fail", "fail_only")),
        FAIL_TO_PASS=names[:cut],
        PASS_TO_PASS=names[cut:],
    )


def test_odd_logs_have_the_same_verdicts(python, tmp_path):
    dice = random.Random(SEED)
    cases: list[tuple[TaskRow, Path]] = []
    for number in range(LOGS):
        file = tmp_path / f"{number}.txt"
        file.write_bytes(odd_log(dice).encode("utf-8", "surrogateescape"))
        cases.append((read_rows([odd_row(dice)])[0], file))
    asked = [{"row": task.document(), "patch": "p", "log": str(file)} for task, file in cases]
    done = subprocess.run(
        [python, packaged.__file__], input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = [json.loads(line)["report"] for line in done.stdout.splitlines()]
    verdicts = set()
    for (task, file), report in zip(cases, answers, strict=True):
        content = log.text_of(file.read_bytes())
        ours = grade(task, content, PARSERS[task.log_parser])
        verdicts.add(ours.reason)
        assert report["resolved"] == ours.resolved, (task, content)
        if "tests_status" not in report:
            assert ours.reason not in {None, "tests_failed"}, (task, content)
            continue
        for name, split in (
            ("FAIL_TO_PASS", ours.fail_to_pass),
            ("PASS_TO_PASS", ours.pass_to_pass),
        ):
            told = report["tests_status"][name]
            assert (tuple(told["success"]), tuple(told["failure"])) == (split.passed, split.failed), (task, content)  # fmt: skip
    assert verdicts == {
        None, "tests_failed", "no_test_output", "no_results", "exit_code_contradicts",
    }  # fmt: skip


# --- its faults ---


def test_what_it_cannot_grade_is_no_verdict(python, tmp_path):
    file = tmp_path / "log"
    file.write_text(text("PASSED t.py::fixed"))

    async def main() -> None:
        with pytest.raises(GradingError, match="KeyError: 'parse_log_nobody'"):
            await PackageGrader(python).grade(row(log_parser="parse_log_nobody"), "p", file)
        with pytest.raises(GradingError, match="more than 0 s"):
            await PackageGrader(python, limit_s=0.0).grade(row(), "p", file)
        with pytest.raises(GradingError, match="No such file"):
            await PackageGrader("/nowhere/python").grade(row(), "p", file)
        with pytest.raises(GradingError, match="No module named 'swebench'"):
            await PackageGrader(venv_without(tmp_path)).grade(row(), "p", file)

    anyio.run(main)


def venv_without(place: Path) -> str:
    """A Python that has not even its own packages."""
    program = place / "bare-python"
    program.write_text(f"#!/bin/sh\nexec '{os.path.realpath(sys.executable)}' -S \"$@\"\n")
    program.chmod(0o755)
    return str(program)
