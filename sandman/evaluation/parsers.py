"""From a test runner's output to the status of each test: those of pytest's family.

Names are those of SWE-bench, which has many more: they are used where its package is installed (`graders`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

Statuses = dict[str, str]
Parser = Callable[[str], Mapping[str, str]]
"""Text → status by test, the status one of STATUSES."""

STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_COUNT = re.compile(r"^\[\d+\]$")
_COLOUR = re.compile(r"\[(\d+)m")
_CONTROL = str.maketrans("", "", "".join(map(chr, range(1, 32))))


def _is_count(words: list[str]) -> bool:
    """`SKIPPED [3] tests/test_a.py:7: reason` is a summary, and names no test."""
    return words[0] == "SKIPPED" and _COUNT.match(words[1]) is not None


def _short_summary(text: str) -> Iterator[tuple[str, str]]:
    """Test and status of lines like `PASSED tests/test_a.py::test_b`."""
    for line in text.split("\n"):
        if line.startswith(STATUSES):
            words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if len(words) > 1 and not _is_count(words):
                yield words[1], words[0]


def pytest(text: str) -> Statuses:
    """What `pytest -rA` prints."""
    return dict(_short_summary(text))


def pytest_options(text: str) -> Statuses:
    """The same for suites whose parameters are paths, of which the last part counts."""
    return {_shortened(test): status for test, status in _short_summary(text)}


def _shortened(test: str) -> str:
    first, last = test.find("["), test.rfind("]")
    if not 0 <= first < last:
        return test
    main, option = test[:first], test[first + 1 : last]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.split("/")[-1]
    return f"{main}[{option}]"


def pytest_v2(text: str) -> Statuses:
    """The same for names with spaces, for colours, and for old versions that put the status last."""
    found: Statuses = {}
    for raw in text.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROL)
        if line.startswith(STATUSES):
            if line.startswith("FAILED"):
                line = line.split(" - ", 1)[0]
            words = line.split()
            if len(words) > 1 and not _is_count(words):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) > 1:
                found[" ".join(words[:-1])] = words[-1]
    return found


def matplotlib(text: str) -> Statuses:
    """The same with mouse buttons by number, as their names changed."""
    return pytest(text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


_BY_KIND: dict[Parser, tuple[str, ...]] = {
    pytest: ("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"),
    pytest_options: ("pytest_options", "pydicom", "requests", "pylint"),
    pytest_v2: ("pytest_v2", "astropy", "scikit", "sphinx"),
    matplotlib: ("matplotlib",),
}
PARSERS: Mapping[str, Parser] = MappingProxyType(
    {f"parse_log_{name}": parser for parser, names in _BY_KIND.items() for name in names}
)
