"""Rows, logs and records to judge."""

from __future__ import annotations

from typing import Any

from sandman.evaluation.records import EvaluationKey, EvaluationRecord
from sandman.evaluation.rows import TaskRow, read_rows
from sandman.evaluation.script import END, EXIT_CODE, START


def document(**changes: object) -> dict[str, Any]:
    """A row as it is written."""
    return {
        "instance_id": "org__lib-1",
        "image": "task:1",
        "repo": "org/lib",
        "version": "1.0",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "eval_script": "true",
        "patch": "diff",
        "FAIL_TO_PASS": ["t.py::fixed"],
        "PASS_TO_PASS": ["t.py::kept", "t.py::other"],
    } | changes


def row(**changes: object) -> TaskRow:
    """The same, parsed."""
    return read_rows([document(**changes)])[0]


def text(*lines: str, code: int | None = None) -> str:
    """A log with these lines between the marks."""
    told = [] if code is None else [f"{EXIT_CODE}: {code}"]
    return "\n".join(["+ setup", f"+ : '{START}'", *lines, f"+ : '{END}'", *told, "+ git checkout"])


def record(outcome: Any = "resolved", repetition: int = 0, **changes: Any) -> EvaluationRecord:
    """Of the row above."""
    name, sample = changes.pop("instance_id", "org__lib-1"), changes.pop("sample", 0)
    key = EvaluationKey(name, changes.pop("model", "gold"), sample, repetition)
    return EvaluationRecord(key=key, digest="d", outcome=outcome, **changes)
