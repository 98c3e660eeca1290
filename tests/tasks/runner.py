"""How a test suite is started inside a sandbox, and how its report is read outside.

Pure: argument lists and variables out, verdicts in. The report is pytest's JUnit XML and comes from
a sandbox, hence from code that nobody vouches for: it is parsed with suspicion.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Verdict = Literal["passed", "skipped", "failed", "error"]
Results = dict[str, Verdict]

# From best to worst. A test may be reported twice, for itself and for its teardown: the worst counts.
_ORDER: tuple[Verdict, ...] = ("passed", "skipped", "failed", "error")
_TAGS: dict[str, Verdict] = {"skipped": "skipped", "failure": "failed", "error": "error"}


class ReportError(Exception):
    """What claims to be a report of pytest is none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie inside a sandbox: all in one directory that the sandbox's user may write."""

    top: str

    def __truediv__(self, name: str) -> str:
        return f"{self.top}/{name}"

    @property
    def source(self) -> str:
        """The package under work, with its tests."""
        return self / "source"

    @property
    def pytest(self) -> str:
        """The test runner's own modules."""
        return self / "pytest"

    @property
    def scratch(self) -> str:
        """What the tests use as /tmp and as home; an image need not have either."""
        return self / "scratch"


def command(python: str, layout: Layout, report: str, arguments: Iterable[str]) -> list[str]:
    """The program and arguments that run the tests; in `layout.source`, with `environment`.

    The package's own settings of pytest are left out (`-c /dev/null`): they ask for plugins and
    turn warnings of newer Pythons into failures.
    """
    settings = ["-c", "/dev/null", "--rootdir", layout.source, "-p", "no:cacheprovider"]
    reporting = ["-q", "-rfE", "--tb=short", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
    return [python, "-s", "-m", "pytest", *settings, *reporting, *arguments]


def environment(layout: Layout) -> dict[str, str]:
    """Variables that make a run the same everywhere, and leave no byte code behind."""
    return {
        "PYTHONPATH": f"{layout.source}:{layout.pytest}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HOME": layout.scratch,
        "TMPDIR": layout.scratch,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


def parse_report(data: bytes) -> Results:
    """The verdict of every test in a report, by pytest's own names (`file.py::Class::test[case]`).

    Raises:
        ReportError: not XML, or XML that declares entities (pytest never does; bombs do).
    """
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ReportError("the report declares a document type, which pytest does not")
    try:
        cases = list(ET.fromstring(data).iter("testcase"))
    except ET.ParseError as error:
        raise ReportError(f"the report is not XML: {error}") from None
    results: Results = {}
    for case in cases:
        name, verdict = _name(case), _verdict(case)
        results[name] = max(results.get(name, verdict), verdict, key=_ORDER.index)
    return results


def _name(case: ET.Element) -> str:
    """`tests.test_a.TestB` + `test_c` of file `tests/test_a.py`: `tests/test_a.py::TestB::test_c`."""
    file, place, name = (case.get(key, "") for key in ("file", "classname", "name"))
    module = file.removesuffix(".py").replace("/", ".")
    if not file or not place.startswith(module):
        return name  # A file that could not be collected has neither class nor test.
    classes = [part for part in place[len(module) :].split(".") if part]
    return "::".join([file, *classes, name])


def _verdict(case: ET.Element) -> Verdict:
    return max(
        (_TAGS.get(child.tag, "passed") for child in case), key=_ORDER.index, default="passed"
    )


@dataclass(frozen=True, slots=True)
class Split:
    """Tests of a list that passed, and those that did not or were not there at all."""

    ok: tuple[str, ...]
    failed: tuple[str, ...]


def split(results: Mapping[str, Verdict], names: Iterable[str]) -> Split:
    """Which of the tests named have passed."""
    wanted = tuple(names)
    ok = tuple(name for name in wanted if results.get(name) == "passed")
    return Split(ok, tuple(name for name in wanted if results.get(name) != "passed"))
