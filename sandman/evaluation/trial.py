"""One evaluation to its end: attempts in sandbox after sandbox until there is a verdict, or none is to be had."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from sandman.evaluation import faults
from sandman.evaluation.attempt import APPLIED, CERTIFICATE, LOG, Attempt, Ran
from sandman.evaluation.graders import UNGRADABLE, Grader, GradingError, UngradableError
from sandman.evaluation.grading import TESTS_FAILED, Grade, Split
from sandman.evaluation.records import EvaluationKey, EvaluationRecord, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from sandman.client import Client
    from sandman.evaluation.faults import Fault
    from sandman.evaluation.options import Plan
    from sandman.evaluation.predictions import Prediction
    from sandman.evaluation.rows import TaskRow

EMPTY_PATCH = "empty_patch"
LONGEST_PAUSE_S = 30.0
OF_ATTEMPT = (LOG, APPLIED, CERTIFICATE)
"""Files that each attempt has of its own; patch and script are the same for all."""
MOST_NAME = 100
"""Characters of a directory's name."""


@dataclass(frozen=True, slots=True)
class Job:
    """An evaluation that is wanted."""

    row: TaskRow
    prediction: Prediction
    repetition: int
    digest: str
    """Of all that decides its verdict."""

    @classmethod
    def of(cls, row: TaskRow, prediction: Prediction, repetition: int, plan: Plan) -> Job:
        """The job, with its digest."""
        parts = [row.digest(), prediction.digest(), *plan.identity()]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return cls(row, prediction, repetition, digest)

    @property
    def key(self) -> EvaluationKey:
        """By which it is found in a journal."""
        one = self.prediction
        return EvaluationKey(self.row.instance_id, one.model, one.sample, self.repetition)

    def directory(self, out: Path) -> Path:
        """Where its files are."""
        place = out / "logs" / _name(self.prediction.model) / _name(self.row.instance_id)
        return place / f"{self.prediction.sample}.{self.repetition}"


def _name(text: str) -> str:
    """A directory's name for a text that anybody may have written; two texts do not have the same."""
    plain = re.sub(r"[^A-Za-z0-9._=+-]", "_", text.replace("/", "__"))[:MOST_NAME].lstrip(".")
    if plain and plain == text:
        return plain
    return f"{plain}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


async def evaluate(
    client: Client, job: Job, plan: Plan, grader: Grader, out: Path
) -> EvaluationRecord:
    """Evaluate it.

    Raises:
        SandmanError: one after which no other evaluation would go better.
        OSError: the directory cannot be written.
    """
    directory = job.directory(out)
    await anyio.to_thread.run_sync(_clear, directory)
    if job.prediction.is_empty:
        return _record(job, Ran(), [], _verdict(Grade(resolved=False, reason=EMPTY_PATCH)))
    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)
    attempt = Attempt(job.row, job.prediction, plan, directory)
    met: list[tuple[Fault, Ran]] = []
    while True:
        ran = await attempt.run(client, _to_avoid(met))
        found = ran.fault or await _grade(job, ran, grader, directory)
        if isinstance(found, Grade):
            await anyio.Path(directory / "report.json").write_text(_report(job, found))
            return _record(job, ran, met, _verdict(found))
        met.append((found, ran))
        if not faults.again([one for one, _ in met], plan.retries, plan.own_retries):
            return _record(job, ran, met[:-1], _no_verdict(found))
        await _set_aside(directory, len(met))
        await anyio.sleep(min(LONGEST_PAUSE_S, found.retry_after or 2.0 ** (len(met) - 1)))


def _to_avoid(met: list[tuple[Fault, Ran]]) -> list[str]:
    """The nodes of earlier attempts; none, where that left no room."""
    if met and met[-1][0].reason in faults.ALL_TAKEN:
        return []
    return [one.node for _, one in met if one.node]


async def _grade(job: Job, ran: Ran, grader: Grader, directory: Path) -> Grade | Fault:
    """The verdict, or why there cannot be one."""
    if ran.stop is not None:
        found = Grade(resolved=False, reason=ran.stop)
    else:
        try:
            found = await grader.grade(job.row, job.prediction.patch, directory / LOG)
        except UngradableError as error:
            ran.detail = str(error)
            found = Grade(resolved=False, reason=UNGRADABLE)
        except GradingError as error:
            return faults.settings(faults.GRADING, str(error))
    if ran.oom_killed and not found.resolved:
        text = "the kernel killed a process of the script for want of memory"
        return faults.own(faults.OOM_KILLED, text)
    return found


def _clear(directory: Path) -> None:
    """What an earlier run left there is of no record that will count."""
    if directory.is_symlink() or directory.exists():
        # Out of the way first: what cannot be deleted, since somebody has it open over NFS, say, must not end a run.
        old = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        directory.rename(old)
        if old.is_symlink():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)


async def _set_aside(directory: Path, number: int) -> None:
    """Keep what an attempt without a verdict left, beside what the next one will."""
    for name in OF_ATTEMPT:
        file = anyio.Path(directory / name)
        if await file.exists():
            await file.rename(directory / f"{file.stem}.{number}{file.suffix}")


def _report(job: Job, grade: Grade) -> str:
    """The verdict as SWE-bench's own runs leave it beside a log."""
    body = {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": grade.reason in {None, TESTS_FAILED},
        "resolved": grade.resolved,
        "tests_status": {
            "FAIL_TO_PASS": _split(grade.fail_to_pass),
            "PASS_TO_PASS": _split(grade.pass_to_pass),
        },
    }
    return json.dumps({job.row.instance_id: body}, indent=1)


def _split(one: Split) -> dict[str, tuple[str, ...]]:
    return {"success": one.passed, "failure": one.failed}


def _verdict(grade: Grade) -> dict[str, Any]:
    """What a record has of a verdict."""
    return {
        "outcome": "resolved" if grade.resolved else "unresolved",
        "reason": grade.reason,
        "graded_by": grade.graded_by,
        "exit_code": grade.exit_code,
        "failed": {
            "FAIL_TO_PASS": grade.fail_to_pass.failed,
            "PASS_TO_PASS": grade.pass_to_pass.failed,
        },
    }


def _no_verdict(fault: Fault) -> dict[str, Any]:
    """What a record has in its place."""
    outcome: Outcome = "infrastructure" if fault.is_infrastructure else "error"
    return {
        "outcome": outcome,
        "reason": fault.reason,
        "cause": fault.cause,
        "detail": fault.detail,
    }


def _record(
    job: Job, ran: Ran, met: list[tuple[Fault, Ran]], concluded: dict[str, Any]
) -> EvaluationRecord:
    values = {
        "detail": ran.detail,
        "applied_by": ran.applied_by,
        "log": ran.log,
        "sandbox": ran.sandbox,
        "node": ran.node,
        "image_digest": ran.image_digest,
        "facts": ran.facts,
        "certificate": ran.certificate,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "attempts": tuple(
            {"sandbox": one.sandbox, "node": one.node, **fault.to_json()} for fault, one in met
        ),
    }
    return EvaluationRecord(key=job.key, digest=job.digest, **(values | concluded))
