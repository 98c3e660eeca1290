"""Tasks as SWE-bench 5 writes them: a row each, parsed once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, TypeGuard

from sandman.evaluation.inputs import Members, Source, TaskListError, objects
from sandman.evaluation.script import whole_script

EvalType = Literal["pass_and_fail", "fail_only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task.

    `eval_script` is run in `image` after the patch; `log_parser` names how its log is read. `eval_type` "fail_only": a test that the
    log does not mention has passed. `patch` is the reference solution, where the row has it.
    """

    instance_id: str
    image: str
    eval_script: str
    log_parser: str
    eval_type: Literal["pass_and_fail", "fail_only"]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    patch: str | None = None
    repo: str = ""
    version: str = ""
    base_commit: str = ""

    @property
    def script(self) -> str:
        """What is run: with tracing, and with the test command's own exit status told."""
        return whole_script(self.eval_script)

    def document(self) -> dict[str, object]:
        """The row again, with what grading needs of it."""
        return {
            "instance_id": self.instance_id,
            "image": self.image,
            "eval_script": self.eval_script,
            "log_parser": self.log_parser,
            "eval_type": self.eval_type,
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            "repo": self.repo,
            "version": self.version,
            "base_commit": self.base_commit,
        }

    def digest(self) -> str:
        """Of all that decides a verdict: a row that was changed is another task."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()


def read_rows(source: Source) -> tuple[TaskRow, ...]:
    """The tasks of a list.

    Raises:
        TaskListError: a row lacks something, or there are two of one name; it names row and field.
        OSError: the file cannot be read.
    """
    found: dict[str, TaskRow] = {}
    for members in objects(source, key="instance_id"):
        row = _row(members)
        if row.instance_id in found:
            raise members.fail("instance_id", f"{row.instance_id} is there twice")
        found[row.instance_id] = row
    if not found:
        raise TaskListError("holds no task", place="the task list")
    return tuple(found.values())


def _row(members: Members) -> TaskRow:
    instance_id = members.text("instance_id")
    members.place = f"{members.place} ({instance_id})"
    eval_type = members.text("eval_type", "pass_and_fail") or "pass_and_fail"
    if not _is_eval_type(eval_type):
        raise members.fail("eval_type", f"{eval_type!r} is neither pass_and_fail nor fail_only")
    if members.has("image_assets"):
        # They would have to be fetched from wherever their addresses lead.
        raise members.fail("image_assets", "binary files beside a patch are not supported")
    return TaskRow(
        instance_id=instance_id,
        image=members.text("image"),
        eval_script=members.text("eval_script"),
        log_parser=members.text("log_parser"),
        eval_type=eval_type,
        fail_to_pass=members.texts("FAIL_TO_PASS"),
        pass_to_pass=members.texts("PASS_TO_PASS"),
        patch=members.text("patch", "") or None,
        repo=members.text("repo", ""),
        version=members.text("version", ""),
        base_commit=members.text("base_commit", ""),
    )


def _is_eval_type(text: str) -> TypeGuard[EvalType]:
    return text in {"pass_and_fail", "fail_only"}
