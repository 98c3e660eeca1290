"""Counts, rates and flips."""

from __future__ import annotations

from sandman.evaluation.report import summarize
from tests.unit.evaluation.samples import record, row


def test_outcomes_are_counted_apart():
    rows = [row(instance_id=name) for name in "abcdefg"]
    report = summarize(
        rows,
        [
            record(instance_id="a"),
            record("unresolved", instance_id="b", reason="tests_failed"),
            record("unresolved", instance_id="c", reason="empty_patch"),
            record("infrastructure", instance_id="d", reason="evicted", attempts=({}, {})),
            record("error", instance_id="e", reason="image_not_found"),
            record(instance_id="f", graded_by="swebench 5"),
        ],
    )
    told = report.to_json()
    assert told["outcomes"] == {"resolved": 2, "unresolved": 2, "infrastructure": 1, "error": 1}
    assert told["resolved_ids"] == ["a", "f"]
    assert told["unresolved_ids"] == ["b"]
    assert told["completed_ids"] == ["a", "b", "f"]
    assert told["empty_patch_ids"] == ["c"]
    assert told["infra_failure_ids"] == ["d"]
    assert told["error_ids"] == ["e"]
    assert told["incomplete_ids"] == ["g"]
    assert (told["total_instances"], told["submitted_instances"]) == (7, 6)
    # What has no verdict is in the one denominator, and not in the other.
    assert told["resolved_of_verdicts"] == 2 / 4
    assert told["resolved_of_all"] == 2 / 6
    assert (told["retried"], told["graded_by"]) == (2, ["swebench 5"])
    assert not report.is_whole
    assert "d (gold): resolved 0 of 1: evicted 1" in report.text()


def test_flips_are_verdicts_unlike_most_of_the_patch():
    runs = [record(repetition=n, image_digest=f"sha256:{n // 4}") for n in range(7)]
    failed = {"FAIL_TO_PASS": ("x",), "PASS_TO_PASS": ("y",)}
    runs += [record("unresolved", n, reason="tests_failed", failed=failed) for n in (7, 8)]
    runs += [record("unresolved", 9, reason="timed_out")]
    runs += [record("infrastructure", 10, reason="node_lost")]
    report = summarize([row()], runs)
    [task] = report.tasks
    assert (task.runs, task.flips, report.flips) == (11, 3, 3)
    assert task.flaky == {"x": 2, "y": 2}
    assert task.reasons == {"tests_failed": 2, "timed_out": 1, "node_lost": 1}
    assert task.to_json()["images"] == ["sha256:0", "sha256:1"]
    assert "flips: 3" in report.text()
    assert "flaky: x: failed 2 of 11" in report.text()


def test_a_test_that_always_fails_is_not_flaky():
    failed = {"FAIL_TO_PASS": ("x",)}
    runs = [record("unresolved", n, reason="tests_failed", failed=failed) for n in range(4)]
    [task] = summarize([row()], runs).tasks
    assert (task.flips, task.flaky) == (0, {})


def test_conditions_are_counted_where_certificates_tell_them():
    told = [True, True, False, None]
    runs = [record(repetition=n, facts={"controlled": one}) for n, one in enumerate(told)]
    report = summarize([row()], [*runs, record(repetition=4)])
    assert report.certified == {"controlled": 2, "uncontrolled": 1, "unknown": 2}
    assert "controlled 2, uncontrolled 1, unknown 2" in report.text()
    assert "unknown" not in summarize([row()], [record()]).text()


def test_samples_of_a_model_are_apart():
    report = summarize([row()], [record(sample=0), record("unresolved", sample=1)])
    assert [(task.sample, task.flips) for task in report.tasks] == [(0, 0), (1, 0)]
    assert report.to_json()["unresolved_ids"] == ["org__lib-1"]
    assert summarize([row()], []).to_json()["resolved_of_verdicts"] is None
    assert report.is_whole
