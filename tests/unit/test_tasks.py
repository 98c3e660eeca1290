"""The pure parts of the real tasks: catalog, patches, edits, archives, reports. No network."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks import agent, archives, calibrate, catalog, fetch, runner, scenario, unified

if TYPE_CHECKING:
    from pathlib import Path

# Files that differ in lines, in their last line feed, and in what is not UTF-8.
LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"\xff\x0c\n"]), max_size=12)
CONTENTS = st.builds(lambda lines, end: b"".join(lines) + end, LINES, st.sampled_from([b"", b"z"]))
TREES = st.dictionaries(st.sampled_from(["a.py", "p/b.py", "p/q/c d.py"]), CONTENTS, max_size=3)


# --- catalog --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", catalog.TASKS, ids=lambda task: task.name)
def test_a_task_and_its_list_agree(task):
    listed = task.pass_to_pass()
    assert len(listed) == task.pass_to_pass_count >= 20
    assert list(listed) == sorted(set(listed))
    assert task.fail_to_pass
    assert not set(listed) & set(task.fail_to_pass)
    assert all(task.is_test(name) for name in (*listed, *task.fail_to_pass))


def test_tests_inside_the_package_are_no_source():
    assert catalog.H11.is_source("h11/_readers.py")
    assert not catalog.H11.is_source("h11/tests/test_io.py")
    assert not catalog.H11.is_source("docs/source/changes.rst")


# --- patches --------------------------------------------------------------------------------------


@given(before=TREES, after=TREES)
def test_a_patch_turns_one_tree_into_the_other(before, after):
    patch = unified.diff(before, after)
    assert unified.apply(before, patch) == after
    assert (patch == "") == (before == after)


@pytest.mark.skipif(shutil.which("git") is None, reason="git judges the patches")
@given(before=TREES, after=TREES)
@settings(max_examples=15, deadline=None)
def test_git_takes_the_patch_alike(tmp_path_factory, before, after):
    patch = unified.diff(before, after)
    if not patch:
        return
    top = tmp_path_factory.mktemp("tree")
    unified.update_tree(top, {}, before)
    git = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(git, cwd=top, input=patch.encode("utf-8", "surrogateescape"), check=True)
    assert unified.read_tree(top) == after


BEFORE = {"a.py": b"1\n2\n3\n", "gone.py": b"x\n"}
PATCH = unified.diff(BEFORE, {"a.py": b"1\n2!\n3\n", "new.py": b""})


def test_a_patch_names_what_it_does():
    kinds = {change.path: change.kind for change in unified.parse(PATCH)}
    assert kinds == {"a.py": "changed", "gone.py": "deleted", "new.py": "added"}


@pytest.mark.parametrize(
    "tree",
    [
        {**BEFORE, "a.py": b"1\n2?\n3\n"},
        {"a.py": BEFORE["a.py"]},
        {**BEFORE, "new.py": b"here already\n"},
        {**BEFORE, "gone.py": b"x\nand more\n"},
    ],
    ids=["other lines", "no file", "file already there", "more than is known"],
)
def test_a_patch_that_does_not_fit_is_refused(tree):
    with pytest.raises(unified.PatchError):
        unified.apply(tree, PATCH)


@pytest.mark.parametrize(
    "patch",
    [
        "hello\n",
        "diff --git a/../x b/../x\n",
        "diff --git a//etc/passwd b//etc/passwd\n",
        "diff --git a/x b/y\n",
        "diff --git a/x b/x\nhello\n",
        "diff --git a/x b/x\n@@ what @@\n",
        "diff --git a/x b/x\n@@ -1,2 +1,2 @@\n one\n",
    ],
)
def test_what_is_no_patch_is_refused(patch):
    with pytest.raises(unified.PatchError):
        unified.parse(patch)


def test_the_program_makes_and_applies_a_patch_by_itself(tmp_path):
    after = {"a.py": b"2\n", "tests/t.py": b"mine\n"}
    (tmp_path / "before.tar").write_bytes(archives.tar_of(BEFORE))
    unified.update_tree(tmp_path / "work", {}, after)
    unified.update_tree(tmp_path / "fresh", {}, BEFORE)
    run_program(tmp_path, "diff", "before.tar", "work", "out.patch", "tests")
    run_program(tmp_path, "apply", "out.patch", "fresh")
    assert unified.read_tree(tmp_path / "fresh") == {"a.py": b"2\n"}


def run_program(cwd: Path, *arguments: str) -> None:
    # -I: nothing of this repository can be imported, as in a sandbox.
    subprocess.run([sys.executable, "-I", unified.__file__, *arguments], cwd=cwd, check=True)


def test_the_program_explains_itself():
    with pytest.raises(SystemExit, match="apply CHANGE"):
        unified.main(["what"])


# --- edits ----------------------------------------------------------------------------------------


@given(before=CONTENTS.filter(bool), after=CONTENTS)
def test_edits_lead_from_one_content_to_the_other(before, after):
    assert agent.replay(before, agent.edits(before, after)) == after


def test_an_edit_is_as_small_as_is_unambiguous():
    before = b"".join(b"line %d\n" % n for n in range(100))
    (edit,) = agent.edits(before, before.replace(b"line 50\n", b"line fifty\n"))
    assert edit.old == b"line 49\nline 50\nline 51\n"
    assert agent.clue(edit) == "line 49"


def test_text_that_stands_twice_is_not_replaced():
    with pytest.raises(agent.EditError, match="2 times"):
        agent.replay(b"a\na\n", [agent.Edit(b"a\n", b"b\n")])


def test_an_empty_file_is_written_and_not_edited():
    with pytest.raises(agent.EditError):
        agent.edits(b"", b"a\n")


# --- archives and materials -----------------------------------------------------------------------


def sdist(path: Path, names: list[str], *links: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
        for name in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    return path


def test_a_source_distribution_loses_its_top_directory_and_links(tmp_path):
    path = sdist(tmp_path / "p-1.tar.gz", ["p-1/p/a.py", "p-1/README"], "p-1/link")
    assert archives.read_sdist(path) == {"p/a.py": b"", "README": b""}


@pytest.mark.parametrize("names", [["p-1/a", "../b"], ["/etc/x"], ["p-1/a", "q-1/b"], ["p-1"]])
def test_a_source_distribution_that_leads_elsewhere_is_refused(tmp_path, names):
    with pytest.raises(archives.ArchiveError):
        archives.read_sdist(sdist(tmp_path / "p-1.tar.gz", names))


def test_an_archive_that_grows_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 3)
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("a.py", b"1234")
    with pytest.raises(archives.ArchiveError, match="4 bytes"):
        archives.read_wheel(tmp_path / "w.whl")


def files_in(tar: bytes) -> unified.Tree:
    return unified.read_tar(io.BytesIO(tar))


@given(tree=TREES)
def test_a_tar_holds_the_tree_and_nothing_of_this_machine(tree):
    data = archives.tar_of(tree)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {(m.uid, m.gid, m.mtime, m.uname) for m in tar} <= {(0, 0, 0, "")}
    assert files_in(data) == tree
    assert data == archives.tar_of(dict(reversed(tree.items())))


def made_up() -> fetch.Materials:
    buggy = {
        "h11/_a.py": b"bug\n",
        "h11/_gone.py": b"x\n",
        "h11/tests/t.py": b"old\n",
        "PKG-INFO": b"1",
    }
    fixed = {
        "h11/_a.py": b"fix\n",
        "h11/_new.py": b"y\n",
        "h11/tests/t.py": b"new\n",
        "PKG-INFO": b"2",
    }
    return fetch.Materials(catalog.H11, buggy, fixed, {})


def test_the_gold_patch_is_what_differs_in_code():
    patch = made_up().gold_patch
    kinds = {change.path: change.kind for change in unified.parse(patch)}
    assert kinds == {"h11/_a.py": "changed", "h11/_gone.py": "deleted", "h11/_new.py": "added"}


def test_tests_that_are_uploaded_are_those_of_the_fixed_release():
    assert files_in(made_up().tests_tar()) == {"h11/tests/t.py": b"new\n"}


SOURCE = catalog.Source("1.0", "0" * 64)


def test_a_file_in_the_cache_is_taken_only_with_the_right_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_pip_download", lambda *_: None)
    good = b"good"
    source = catalog.Source("1.0", hashlib.sha256(good).hexdigest())
    kept = tmp_path / f"p-1.0-{source.sha256[:16]}.whl"
    kept.write_bytes(b"evil")
    with pytest.raises(fetch.FetchError, match="pinned hash"):
        fetch._wheel("p", source, tmp_path)
    kept.write_bytes(good)
    assert fetch._wheel("p", source, tmp_path) == kept


def test_what_pip_says_is_passed_on(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no such thing\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(fetch.FetchError, match=r"p 1\.0: ERROR: no such thing"):
        fetch.sdist("p", SOURCE, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- running and grading --------------------------------------------------------------------------

CASE = '<testcase classname="{}" name="{}" file="{}" line="1">{}</testcase>'


def report(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


def test_a_report_gives_pytests_own_names():
    data = report(
        CASE.format("tests.test_a", "test_x[a.b-c d]", "tests/test_a.py", ""),
        CASE.format("tests.test_a.TestB", "test_y", "tests/test_a.py", "<failure/>"),
        CASE.format("tests.test_a", "test_z", "tests/test_a.py", "<skipped/>"),
        '<testcase classname="" name="tests.test_broken"><error/></testcase>',
    )
    assert runner.parse_report(data) == {
        "tests/test_a.py::test_x[a.b-c d]": "passed",
        "tests/test_a.py::TestB::test_y": "failed",
        "tests/test_a.py::test_z": "skipped",
        "tests.test_broken": "error",
    }


def test_the_worst_of_two_verdicts_counts():
    teardown = CASE.format("t", "test_x", "t.py", "<error/>")
    assert runner.parse_report(report(teardown, CASE.format("t", "test_x", "t.py", ""))) == {
        "t.py::test_x": "error"
    }


def test_output_in_a_report_is_no_verdict():
    data = report(CASE.format("t", "test_x", "t.py", "<system-out>error</system-out>"))
    assert runner.parse_report(data) == {"t.py::test_x": "passed"}


@pytest.mark.parametrize("data", [b"", b"<a>", b'<!DOCTYPE a [<!ENTITY b "c">]><a/>'])
def test_what_is_no_report_is_refused(data):
    with pytest.raises(runner.ReportError):
        runner.parse_report(data)


def test_a_run_depends_on_nothing_of_the_image():
    layout = runner.Layout("/w")
    argv = runner.command("/py", layout, "/w/r.xml", ["tests"])
    assert argv[:4] == ["/py", "-s", "-m", "pytest"]
    assert argv[-2:] == ["--junit-xml=/w/r.xml", "tests"]
    assert runner.environment(layout)["PYTHONPATH"] == "/w/source:/w/pytest"


def green() -> runner.Results:
    return dict.fromkeys((*catalog.H11.pass_to_pass(), *catalog.H11.fail_to_pass), "passed")


def test_all_green_is_resolved():
    assert scenario.grade(catalog.H11, green()).resolved


@pytest.mark.parametrize("verdict", ["failed", "error", "skipped", None])
@pytest.mark.parametrize("name", [catalog.H11.fail_to_pass[0], catalog.H11.pass_to_pass()[0]])
def test_one_test_that_has_not_passed_is_unresolved(name, verdict):
    results = green() | {name: verdict}
    if verdict is None:
        del results[name]
    evaluation = scenario.grade(catalog.H11, results)
    assert not evaluation.resolved
    assert evaluation.fail_to_pass.failed + evaluation.pass_to_pass.failed == (name,)


def test_calibration_sorts_tests_by_what_they_did_in_all_runs():
    without: runner.Results = {
        "fixed": "failed",
        "kept": "passed",
        "shaky": "failed",
        "off": "skipped",
    }
    good: runner.Results = {
        "fixed": "passed",
        "kept": "passed",
        "shaky": "passed",
        "off": "skipped",
    }
    found = calibrate.facts([without, {**without, "shaky": "passed"}], [good, good])
    assert found == calibrate.Facts(["fixed"], ["kept"], ["shaky"])
