"""A log's text → what it says of the tests, or why it says nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandman.evaluation.script import BROKEN, END, EXIT_CODE, START

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandman.evaluation.parsers import Parser

NO_TEST_OUTPUT = "no_test_output"
"""The marks are not there: the script did not come to the tests, or not to their end."""
NO_RESULTS = "no_results"
"""The marks are there, and between them nothing of any test."""
CONTRADICTION = "exit_code_contradicts"
"""The test command failed, and its output names no test that did: it does not tell of the run that was."""

_EXIT_CODE = re.compile(rf"{re.escape(EXIT_CODE)}:\s*(-?[0-9]{{1,9}})(?![0-9])")
_RAN = (
    ("Executed ", re.compile(r"Executed [1-9]\d* of \d")),
    ("TOTAL: ", re.compile(r"TOTAL: [1-9]\d* (?:SUCCESS|FAILED)")),
    ("Tests:", re.compile(r"Tests:\s+[1-9]")),
    ("Test Suites:", re.compile(r"Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total")),
    ("# tests ", re.compile(r"^# tests [1-9]", re.MULTILINE)),
    ("': ok", re.compile(r"': ok$", re.MULTILINE)),
)
"""By which runners say that they ran something, where each test is named only if it failed: a word, and what it begins."""
_COUNTED = (
    (" passing", re.compile(" passing")),
    (" spec", re.compile(r" specs?, \d+ failure")),
)
"""The same behind a number."""
_NUMBER = re.compile(r"[1-9]\d*\Z")
_DIGITS = 20
_NEAR = 512
"""Characters before and behind such a word that are looked at: an expression over a whole log would take the square of its length, or hold all
threads meanwhile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The status of each test, or in `problem` why there is none."""

    statuses: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    problem: str | None = None


def text_of(data: bytes) -> str:
    """A log as text: what is no UTF-8 is replaced, and every line ends with a line feed, as where Python reads a text file."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8", "replace")


def exit_code_of(text: str) -> int | None:
    """The test command's own exit status, where the script told it."""
    found = _EXIT_CODE.search(text)
    return int(found[1]) if found else None


def says_that_tests_ran(text: str) -> bool:
    """Whether a runner says that it ran something. In time that grows as the text does, whatever it is."""
    if any(_begins(at, text, form) for word, form in _RAN for at in _places(word, text)):
        return True
    return any(
        _NUMBER.search(text[max(0, at - _DIGITS) : at]) and _begins(at, text, form)
        for word, form in _COUNTED
        for at in _places(word, text)
    )


def _begins(at: int, text: str, form: re.Pattern[str]) -> bool:
    return form.match(text, at, at + _NEAR) is not None


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def read(text: str, parser: Parser) -> Finding:
    """What the log says, by the rules of SWE-bench's own grading."""
    code = exit_code_of(text)
    if any(mark in text for mark in BROKEN) or START not in text or END not in text:
        return Finding(exit_code=code, problem=NO_TEST_OUTPUT)
    between = text.split(START, 2)[1].split(END, 1)[0]
    # Some runners' results come outside of the marks: the order of two streams is not always kept.
    statuses = parser(between) or parser(text)
    if not statuses and not says_that_tests_ran(text):
        return Finding(exit_code=code, problem=NO_RESULTS)
    if statuses and code not in (None, 0) and not {"FAILED", "ERROR"} & set(statuses.values()):
        # A patch can print lines of its own, and cannot change the exit status that the script keeps.
        return Finding(exit_code=code, problem=CONTRADICTION)
    return Finding(statuses, code)
