"""Task lists and predictions are parsed once; what is wrong is named by row and field."""

from __future__ import annotations

import json

import pytest

from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.predictions import Prediction, read_predictions
from sandman.evaluation.rows import read_rows
from sandman.evaluation.script import whole_script
from tests.unit.evaluation.samples import document, row


def test_lists_may_be_json_texts_as_data_sets_have_them():
    assert row(FAIL_TO_PASS='["a", "b"]', PASS_TO_PASS="[]") == row(
        FAIL_TO_PASS=("a", "b"), PASS_TO_PASS=[]
    )


@pytest.mark.parametrize("suffix", ["json", "jsonl", "object"])
def test_files_of_json_and_of_json_lines(tmp_path, suffix):
    rows = [document(instance_id="a"), document(instance_id="b")]
    file = tmp_path / f"rows.{suffix if suffix != 'object' else 'json'}"
    file.write_text(
        {
            "json": json.dumps(rows),
            "jsonl": "\n\n".join(map(json.dumps, rows)) + "\n",
            "object": json.dumps({name: document(instance_id=name) for name in "ab"}),
        }[suffix]
    )
    assert read_rows(file) == read_rows(str(file)) == read_rows(rows)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"instance_id": None}, "instance_id", "is missing"),
        ({"image": ""}, "image", "must not be empty"),
        ({"image": 3}, "image", "must be a string, not int"),
        ({"eval_script": None}, "eval_script", "is missing"),
        ({"log_parser": None}, "log_parser", "is missing"),
        ({"eval_type": "some"}, "eval_type", "neither pass_and_fail nor fail_only"),
        ({"FAIL_TO_PASS": None}, "FAIL_TO_PASS", "is missing"),
        ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS", "is a string that is no JSON"),
        ({"PASS_TO_PASS": '{"a": 1}'}, "PASS_TO_PASS", "must be a list of strings"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS", "must hold strings, not int"),
        ({"image_assets": '{"patch": [1]}'}, "image_assets", "not supported"),
    ],
)
def test_a_row_that_lacks_something_is_named(changes, field, says):
    with pytest.raises(TaskListError, match=says) as caught:
        read_rows([document(), document(**{"instance_id": "second"} | changes)])
    assert caught.value.field == field
    assert "item 1" in caught.value.place
    if field != "instance_id":
        assert "second" in caught.value.place


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.jsonl", '{"instance_id": \n', "rows.jsonl:1"),
        ("rows.json", "nothing", "rows.json"),
        ("rows.json", "3", "rows.json"),
        ("rows.json", "[3]", "rows.json: item 0"),
        ("rows.json", '{"a": 3}', "rows.json: item 0"),
        ("rows.json", "[]", "the task list"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, name, content, place):
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskListError) as caught:
        read_rows(tmp_path / name)
    assert caught.value.place.endswith(place)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_file_that_is_no_text_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b'[{"instance_id": "\xff"}]')
    with pytest.raises(TaskListError, match="is not UTF-8") as caught:
        read_rows(tmp_path / name)
    assert caught.value.place.endswith(name)


@pytest.mark.parametrize("content", ["[]", "{}"])
def test_a_list_without_predictions_is_refused(tmp_path, content):
    """Nothing evaluated would be a run whose every evaluation has a verdict."""
    (tmp_path / "patches.json").write_text(content)
    for source in (tmp_path / "patches.json", []):
        with pytest.raises(TaskListError, match="holds no prediction"):
            read_predictions(source, [row()])


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(TaskListError, match="there twice"):
        read_rows([document(), document()])


def test_what_decides_a_verdict_is_in_the_digest():
    assert row().digest() == row(patch="other", test_patch="x").digest()
    assert row().digest() != row(eval_script="false").digest()
    assert row().digest() != row(PASS_TO_PASS=[]).digest()


def test_the_script_tells_the_test_commands_own_exit_status():
    told = "#!/bin/bash\nset -uxo pipefail\ncd /testbed\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\ngit checkout x"
    assert whole_script(told).splitlines() == [
        "#!/bin/bash",
        "set -uxo pipefail",
        "cd /testbed",
        ": '>>>>> Start Test Output'",
        "pytest",
        "SWEBENCH_TEST_EXIT_CODE=$?",
        ": '>>>>> End Test Output'",
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"',
        "git checkout x",
    ]
    assert whole_script("make test") == "#!/bin/bash\nset -uxo pipefail\nmake test\n"


def test_predictions_of_a_list():
    given = [
        {"instance_id": "org__lib-1", "model_patch": "one", "model_name_or_path": "m/x"},
        {"instance_id": "org__lib-1", "model_patch": "two", "model_name_or_path": "m/x"},
        {"instance_id": "org__lib-1", "model_patch": None},
    ]
    found = read_predictions(given, [row()])
    assert found == (
        Prediction("org__lib-1", "one", "m/x", 0),
        Prediction("org__lib-1", "two", "m/x", 1),
        Prediction("org__lib-1", "", "unnamed", 0),
    )
    assert [one.is_empty for one in found] == [False, False, True]


def test_gold_and_none_are_the_rows_own():
    rows = read_rows([document(), document(instance_id="b", patch="other")])
    assert [(one.patch, one.model) for one in read_predictions("gold", rows)] == [
        ("diff", "gold"), ("other", "gold"),
    ]  # fmt: skip
    nothing = read_predictions("none", rows)
    assert [(one.patch, one.control, one.is_empty) for one in nothing] == [("", True, False)] * 2
    assert nothing[0].digest() != Prediction("org__lib-1", "", "none").digest()
    with pytest.raises(TaskListError, match="no reference solution") as caught:
        read_predictions("gold", [row(patch=None)])
    assert caught.value.place == "org__lib-1"


def test_a_prediction_for_no_task_is_refused():
    with pytest.raises(TaskListError, match="x is not in the task list"):
        read_predictions([{"instance_id": "x", "model_patch": "p"}], [row()])
