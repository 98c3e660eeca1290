"""Logs are written by code that nobody vouches for: one costs its own record at most, and no time that grows faster than it."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman.evaluation import faults, log, parsers, trial
from sandman.evaluation.attempt import LOG, Ran
from sandman.evaluation.faults import Fault
from sandman.evaluation.graders import (
    UNGRADABLE,
    CarefulGrader,
    Grader,
    OwnGrader,
    PackageGrader,
)
from sandman.evaluation.grading import Grade
from sandman.evaluation.log import exit_code_of
from sandman.evaluation.parsers import PARSERS
from sandman.evaluation.script import EXIT_CODE
from tests.unit.evaluation.samples import text
from tests.unit.evaluation.test_trial import GOOD, job

PARSER = "parse_log_pytest"


async def graded(place, grader: Grader, content: str, ran: Ran | None = None) -> Grade | Fault:
    (place / LOG).write_text(content)
    return await trial._grade(job(), ran or Ran(), CarefulGrader(grader), place)


def of_package(place, *lines: str, limit_s: float = 60.0) -> PackageGrader:
    """A program in the place of the Python that has the package; `$log` holds the log."""
    program = place / "python"
    get = """log=$(sed 's/.*"log": "\\([^"]*\\)".*/\\1/')"""
    program.write_text("\n".join(["#!/bin/sh", get, *lines, ""]))
    program.chmod(0o755)
    return PackageGrader(str(program), limit_s)


ANSWER = """echo '{"version": "5", "report": {"resolved": false}}'"""


async def test_a_number_that_is_none_is_passed_over(tmp_path):
    told = f"{EXIT_CODE}: {'9' * 5000}"
    assert exit_code_of(told) is None
    assert exit_code_of(f"{told}\n{EXIT_CODE}: 3") == 3
    assert exit_code_of(f"{EXIT_CODE}: -1") == -1
    found = await graded(tmp_path, OwnGrader(PARSERS), text(told, *GOOD, code=0))
    assert isinstance(found, Grade)
    assert (found.resolved, found.exit_code) == (True, 0)


async def test_a_parser_that_fails_on_one_log_fails_for_that_one(tmp_path):
    def picky(content: str) -> dict[str, str]:
        return {"t": str(1 // ("zero" not in content))}

    grader, ran = OwnGrader({PARSER: picky}), Ran()
    found = await graded(tmp_path, grader, text("zero"), ran)
    assert isinstance(found, Grade)
    assert (found.resolved, found.reason) == (False, UNGRADABLE)
    assert "ZeroDivisionError" in ran.detail


async def test_a_parser_that_fails_on_any_log_is_a_setting(tmp_path):
    def broken(content: str) -> dict[str, str]:
        raise LookupError(content[:1])

    found = await graded(tmp_path, OwnGrader({PARSER: broken}), text(*GOOD))
    assert isinstance(found, Fault)
    assert (found.reason, found.cause) == (faults.GRADING, "caller")
    assert "LookupError" in found.detail


async def test_what_this_machine_did_to_a_grading_is_no_verdict(tmp_path):
    """Killed once, for want of memory here, say: the same log is judged again."""
    once = f"if [ ! -e {tmp_path}/was ]; then : >{tmp_path}/was; kill -9 $$; fi"
    found = await graded(tmp_path, of_package(tmp_path, once, ANSWER), text("odd"))
    assert isinstance(found, Grade)
    assert (found.resolved, found.reason) != (False, UNGRADABLE)
    assert found.graded_by == "swebench 5"


@pytest.mark.parametrize(
    ("on_it", "limit_s"),
    [
        ("exec sleep 60", 5.0),
        ("kill -9 $$", 60.0),
        ("""echo '{"error": "RecursionError: deep"}'""", 60.0),
    ],
)
async def test_a_log_on_which_the_package_fails_buys_nothing(tmp_path, on_it, limit_s):
    odd = f'if grep -q odd "$log"; then {on_it}; exit; fi'
    grader = of_package(tmp_path, odd, ANSWER, limit_s=limit_s)
    found = await graded(tmp_path, grader, text("odd"))
    assert isinstance(found, Grade)
    assert (found.resolved, found.reason) == (False, UNGRADABLE)


async def test_a_package_that_fails_on_any_log_is_a_setting(tmp_path):
    for grader in (
        of_package(tmp_path, """echo '{"error": "KeyError: no such parser"}'"""),
        PackageGrader(sys.executable),
        PackageGrader(str(tmp_path / "none")),
    ):
        found = await graded(tmp_path, grader, text(*GOOD))
        assert isinstance(found, Fault)
        assert (found.reason, found.cause) == (faults.GRADING, "caller")


async def test_want_of_memory_is_told_also_where_the_log_cannot_be_graded(tmp_path):
    grader = of_package(tmp_path, 'if grep -q odd "$log"; then kill -9 $$; fi', ANSWER)
    found = await graded(tmp_path, grader, text("odd"), Ran(oom_killed=True))
    assert isinstance(found, Fault)
    assert (found.reason, found.cause) == ("oom", "sandbox")


# --- time: each of these takes milliseconds, or runs into the suite's watchdog ---

LONG = 500_000
WORDS = ("passing", " passing", " spec, ", " specs, 1 failure", "Executed ", "TOTAL: ", "Tests:", "Test Suites:", "\n# tests ", "': ok")  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("filler", ["1", "0", " ", "1 a, "])
def test_what_ran_is_looked_for_in_one_pass(word, filler):
    assert not log.says_that_tests_ran("0" + word + filler.replace("1", "0") * LONG + "x")
    assert log.says_that_tests_ran(filler * LONG + "x\n12 passing")


@pytest.mark.parametrize("family", dict.fromkeys(parsers.PARSERS.values()))
@pytest.mark.parametrize("filler", ["[", "]", "[1", "[1]", "[1m", " - ", "FAILED ", "[/"])
def test_every_parser_reads_a_line_in_one_pass(family, filler):
    assert family(f"FAILED t.py::a{filler * LONG}\nPASSED t")["t"] == "PASSED"


_BY_SWEBENCH = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing|Tests:\s+[1-9]\d*"
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?|': ok$",
    re.MULTILINE,
)
PARTS = st.sampled_from((*WORDS, "\n", "0", "1", "20", " of 3", " SUCCESS", " ", "1 a, ", " total", "# tests 3", " failures", "x"))  # fmt: skip


@given(st.lists(PARTS, max_size=8).map("".join))
def test_what_ran_is_what_swebench_takes_for_it(content):
    assert log.says_that_tests_ran(content) == (_BY_SWEBENCH.search(content) is not None)


NAMES = st.text("ab[]/*\\", max_size=12)


@given(NAMES)
def test_the_last_part_of_a_path_is_what_swebench_takes_for_it(name):
    found = re.search(r"(.*?)\[(.*)\]", name)
    expected = name
    if found is not None:
        main, option = found.groups()
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            option = "/" + option.split("/")[-1]
        expected = f"{main}[{option}]"
    assert parsers._shortened(name) == expected
