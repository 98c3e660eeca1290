"""The verdict on a log, by SWE-bench's rules. tests/adapters/test_swebench.py holds it against the package itself."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman.evaluation import log, parsers
from sandman.evaluation.grading import TESTS_FAILED, Split, grade
from tests.unit.evaluation.samples import row, text

GOOD = ("PASSED t.py::fixed", "PASSED t.py::kept", "XFAIL t.py::other - why")


def judge(content: str, parser: parsers.Parser = parsers.pytest, **changes: object):
    return grade(row(**changes), content, parser)


def test_all_of_both_lists_is_resolved():
    found = judge(text(*GOOD, code=0))
    assert (found.resolved, found.reason, found.exit_code) == (True, None, 0)
    assert found.fail_to_pass == Split(("t.py::fixed",), ())
    assert found.pass_to_pass == Split(("t.py::kept", "t.py::other"), ())


@pytest.mark.parametrize("status", ["FAILED", "ERROR", "SKIPPED"])
def test_what_was_to_be_mended_must_pass(status):
    found = judge(text(f"{status} t.py::fixed - why", *GOOD[1:], "FAILED t.py::of_no_list"))
    assert (found.resolved, found.reason) == (False, TESTS_FAILED)
    assert found.fail_to_pass.failed == ("t.py::fixed",)


def test_what_must_not_break_may_be_skipped():
    assert judge(text(GOOD[0], GOOD[1], "SKIPPED t.py::other")).resolved
    assert judge(text(GOOD[0], GOOD[1])).pass_to_pass.failed == ("t.py::other",)


def test_a_log_without_marks_says_nothing():
    whole = text(*GOOD, code=0)
    for content in (
        whole.replace(">>>>> Start", ">>>>> Began"),
        whole.replace(">>>>> End", ">>>>> Ended"),
        whole[: whole.index(">>>>> End")],
        whole + "\n>>>>> Tests Timed Out",
        "",
    ):
        found = judge(content)
        assert (found.resolved, found.reason) == (False, log.NO_TEST_OUTPUT)
        assert found.fail_to_pass == Split()


def test_marks_with_nothing_between_them_say_nothing():
    assert judge(text("bash: pytest: command not found", code=127)).reason == log.NO_RESULTS
    # Where runners name failures alone, that they ran is enough.
    quiet = {"eval_type": "fail_only", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}
    assert judge(text("Executed 12 of 12 SUCCESS"), **quiet).resolved
    assert judge(text("Executed 0 of 0"), **quiet).reason == log.NO_RESULTS
    assert not judge(text("FAILED a", "12 passing"), **quiet).resolved
    assert judge(text("FAILED b", "12 passing"), **quiet).resolved


def test_results_outside_of_the_marks_count_where_there_are_none_between_them():
    assert judge(text("12 passing") + "\n" + "\n".join(GOOD)).resolved
    assert not judge(text("PASSED t.py::fixed") + "\n" + "\n".join(GOOD)).resolved


def test_an_exit_status_that_the_output_does_not_explain_is_no_verdict_for_the_patch():
    found = judge(text(*GOOD, code=1))
    assert (found.resolved, found.reason, found.exit_code) == (False, log.CONTRADICTION, 1)
    assert judge(text(*GOOD, "FAILED t.py::of_no_list", code=1)).resolved


def test_names_that_a_data_set_cut_off_stand_for_those_that_begin_so():
    lists = {"FAIL_TO_PASS": ["t.py::a[log(x"], "PASS_TO_PASS": []}
    assert judge(text("PASSED t.py::a[log(x)-1]", "PASSED t.py::a[log(x)-2]"), **lists).resolved
    assert not judge(text("PASSED t.py::a[log(x)-1]", "FAILED t.py::a[log(x)-2]"), **lists).resolved
    assert not judge(text("PASSED t.py::b[1]"), **lists).resolved


def test_a_log_as_it_came_is_read_as_python_reads_a_text_file():
    data = text(*GOOD, code=0).replace("\n", "\r\n").encode() + b"\n\xff\xfe\n"
    assert judge(log.text_of(data)).resolved
    assert log.text_of(b"a\rb\r\nc\xff") == "a\nb\nc\ufffd"


NAMES = st.text(string.ascii_letters + string.digits + "_[]-:/.", min_size=1, max_size=20)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_resolved_exactly_when_every_test_did_what_was_expected(names, data):
    statuses = {name: data.draw(st.sampled_from(parsers.STATUSES)) for name in names}
    cut = data.draw(st.integers(0, len(names)))
    lists = {"FAIL_TO_PASS": names[:cut], "PASS_TO_PASS": names[cut:]}
    found = judge(text(*(f"{status} {name}" for name, status in statuses.items())), **lists)
    ok = {name for name in names if statuses[name] in {"PASSED", "XFAIL"}}
    ok |= {name for name in names[cut:] if statuses[name] == "SKIPPED"}
    if any(statuses[n] == "SKIPPED" and parsers._COUNT.match(n) for n in names):
        return  # the summary of skipped tests, which names none
    assert found.resolved == (ok == set(names))
    assert {*found.fail_to_pass.passed, *found.pass_to_pass.passed} == ok
    assert {*found.fail_to_pass.failed, *found.pass_to_pass.failed} == set(names) - ok


def test_parsers_of_pytests_family():
    lines = [
        "\x1b[32mPASSED\x1b[0m t.py::a[with space]", "FAILED t.py::b - assert 1 == 2", "SKIPPED [3] t.py:7: why",
        "t.py::c PASSED", "ERROR", "PASSED t.py::d[/deep/path/file.txt]", "PASSED t.py::e[//net/x]",
        "PASSED t.py::f[MouseButton.LEFT]",
    ]  # fmt: skip
    content = "\n".join(lines)
    short = {
        "t.py::b": "FAILED", "t.py::d[/deep/path/file.txt]": "PASSED", "t.py::e[//net/x]": "PASSED",
        "t.py::f[MouseButton.LEFT]": "PASSED",
    }  # fmt: skip
    assert parsers.pytest(content) == short
    assert parsers.pytest_options(content).keys() >= {
        "t.py::d[/file.txt]",
        "t.py::e[//net/x]",
        "t.py::b",
    }
    assert parsers.pytest_v2(content) == short | {
        "t.py::a[with space]": "PASSED", "t.py::c": "PASSED",
    }  # fmt: skip
    assert "t.py::f[1]" in parsers.matplotlib(content)
    assert parsers.PARSERS["parse_log_sphinx"] is parsers.pytest_v2
