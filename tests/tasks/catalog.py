"""The tasks: which releases, which hashes, and which tests a fix must turn green.

`fail_to_pass` and the lists beside this file hold for CPython 3.11 and 3.13; `calibrate` proves
them again. Hashes are those that the package index has published for the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parent / "lists"


@dataclass(frozen=True, slots=True)
class Source:
    """One release's source distribution, pinned."""

    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Task:
    """A bug, the release that has it, the release that fixed it.

    Args:
        name: the distribution's name.
        buggy: the release before the fix.
        fixed: the next release.
        license: its SPDX name.
        package: directory of the importable package; the fix is what differs in it, tests aside.
        tests: directory of the test suite.
        arguments: what pytest is told besides how to report: which tests to run.
        problem: the bug, as an agent would be told of it.
        reference: where the project says so itself, with its words.
        fail_to_pass: tests of the fixed release that fail without the fix.
        pass_to_pass_count: how many pass with and without it; `pass_to_pass` has their names.
    """

    name: str
    buggy: Source
    fixed: Source
    license: str
    package: str
    tests: str
    arguments: tuple[str, ...]
    problem: str
    reference: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass_count: int

    @property
    def list_file(self) -> Path:
        """Where the names of the tests stand that must not break."""
        return LISTS / f"{self.name}.txt"

    def pass_to_pass(self) -> tuple[str, ...]:
        """Tests that pass before the fix and must still pass after it."""
        return tuple(self.list_file.read_text(encoding="utf-8").removesuffix("\n").split("\n"))

    def is_test(self, path: str) -> bool:
        """Whether a file of the release belongs to its test suite."""
        return path.startswith(f"{self.tests}/")

    def is_source(self, path: str) -> bool:
        """Whether a file of the release is code that a fix may concern."""
        return path.startswith(f"{self.package}/") and not self.is_test(path)


H11 = Task(
    name="h11",
    buggy=Source("0.15.0", "2a7db2d2beffd4e6c6bbe3a64305ab77d89087976e8aed8fdcff4b054744e72f"),
    fixed=Source("0.16.0", "4e35b956cf45792e4caa5885e69fba00bdbc6ffafbfa020300e549b208ee5ff1"),
    license="MIT",
    package="h11",
    tests="h11/tests",
    arguments=("h11/tests",),
    problem=(
        "The reader of chunked bodies throws away the two bytes after each chunk without looking"
        " whether they are CR LF, so that it accepts bodies that other programs read differently."
    ),
    reference=(
        "docs/source/changes.rst of 0.16.0 (CVE-2025-43859, GHSA-vqfr-h8mv-ghfj): Reject certain"
        " malformed `Transfer-Encoding: chunked` bodies that were previously accepted."
    ),
    fail_to_pass=("h11/tests/test_io.py::test_ChunkedReader",),
    pass_to_pass_count=77,
)

SQLPARSE = Task(
    name="sqlparse",
    buggy=Source("0.5.1", "bb6b4df465655ef332548e24f08e205afc81b9ab86cb1c45657a7ff173a3a00e"),
    fixed=Source("0.5.2", "9e37b35e16d1cc652a2545f0997c1deb23ea28fa1f3eefe609eee3063c3b105f"),
    license="BSD-3-Clause",
    package="sqlparse",
    tests="tests",
    arguments=("tests",),
    problem=(
        "Stripping comments from a statement also strips optimizer hints such as `/*+ DIRECT */`,"
        " which look like comments but change what the statement does."
    ),
    reference=(
        "CHANGELOG of 0.5.2: SQL hints are not removed when removing comments (issue262);"
        " EXTENSION is now recognized as a keyword (issue785)."
    ),
    fail_to_pass=("tests/test_format.py::TestFormat::test_strip_comments_preserves_hint",),
    pass_to_pass_count=461,
)

TOMLKIT = Task(
    name="tomlkit",
    buggy=Source("0.13.2", "fff5fe59a87295b278abd31bec92c15d9bc4a06885ab12bcea52c71119392e79"),
    fixed=Source("0.13.3", "430cf247ee57df2b94ee3fbe588e71d362a941ebb545dec29b53961d61add2a1"),
    license="MIT",
    package="tomlkit",
    tests="tests",
    # Those two run the conformance suites of the TOML language: many, slow, and one needs PyYAML.
    arguments=(
        "tests",
        "--ignore=tests/test_toml_tests.py",
        "--ignore=tests/test_toml_spec_tests.py",
    ),
    problem=(
        "Editing a parsed document breaks it in several ways: removing an item of an array leaves"
        " its comma or white space behind, tables out of order lose keys or cannot lose them."
    ),
    reference=(
        "CHANGELOG.md of 0.13.3: Fix repeated whitespace when removing an array item (#405); fix"
        " invalid serialization after overwriting a key of a out-of-order table (#414); six more."
    ),
    fail_to_pass=(
        "tests/test_api.py::test_dump_nested_dotted_table",
        "tests/test_items.py::test_array_item_removal_newline_restore_next",
        "tests/test_items.py::test_badly_formatted_array_and_item_removal",
        "tests/test_items.py::test_booleans_comparison",
        "tests/test_items.py::test_removal_of_arrayitem_with_extra_whitespace",
        "tests/test_toml_document.py::test_delete_key_from_out_of_order_table",
        "tests/test_toml_document.py::test_overwriting_out_of_order_table",
        "tests/test_toml_document.py::test_parse_aot_without_ending_newline",
        "tests/test_toml_document.py::test_replace_table_with_value",
        "tests/test_toml_document.py::test_update_nested_out_of_order_table",
    ),
    pass_to_pass_count=270,
)

TASKS = (H11, SQLPARSE, TOMLKIT)
