"""A whole list: so many at once, each outcome kept at once, and a report at the end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import anyio

from sandman.evaluation import trial
from sandman.evaluation.graders import CarefulGrader, Grader, choose
from sandman.evaluation.journal import Journal
from sandman.evaluation.options import EvaluationOptions, Plan
from sandman.evaluation.predictions import Prediction, read_predictions
from sandman.evaluation.records import EvaluationProgress, EvaluationRecord
from sandman.evaluation.report import EvaluationReport, summarize
from sandman.evaluation.rows import TaskRow, read_rows
from sandman.evaluation.trial import Job

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from sandman.client import Client
    from sandman.evaluation.inputs import Source

REPORT = "report.json"
TEXT = "report.txt"


async def evaluate(
    client: Client,
    rows: Source,
    predictions: Source,
    out: str | os.PathLike[str],
    **options: Unpack[EvaluationOptions],
) -> EvaluationReport:
    """Evaluate predictions on tasks; see `Client.evaluate`."""
    plan = Plan.of(options)
    tasks = read_rows(rows)
    patches = read_predictions(predictions, tasks)
    wanted = {patch.instance_id for patch in patches}
    grader = CarefulGrader(choose(plan, [row for row in tasks if row.instance_id in wanted]))
    place = Path(out)
    await anyio.Path(place).mkdir(parents=True, exist_ok=True)
    with Journal(place) as journal:
        run = Run(client, plan, grader, place, journal, _jobs(tasks, patches, plan))
        report = summarize(tasks, await run.finish())
        await _keep(place, report)
    return report


def _jobs(rows: Sequence[TaskRow], predictions: Sequence[Prediction], plan: Plan) -> list[Job]:
    """Round by round: what is known of all tasks early is worth more than all of the first."""
    by = {row.instance_id: row for row in rows}
    return [
        Job.of(by[one.instance_id], one, repetition, plan)
        for repetition in range(plan.times)
        for one in predictions
    ]


async def _keep(place: Path, report: EvaluationReport) -> None:
    for name, text in (
        (REPORT, json.dumps(report.to_json(), indent=1) + "\n"),
        (TEXT, report.text()),
    ):
        part = anyio.Path(place / f"{name}.part")
        await part.write_text(text)
        await part.rename(place / name)


class Run:
    """One run over jobs, some of which an earlier one has done.

    Args:
        client: of the gateway.
        plan: how.
        grader: who judges.
        out: the directory.
        journal: open.
        jobs: all that are wanted.
    """

    def __init__(
        self, client: Client, plan: Plan, grader: Grader, out: Path, journal: Journal, jobs: Sequence[Job]
    ) -> None:  # fmt: skip
        self._client = client
        self._plan = plan
        self._grader = grader
        self._out = out
        self._journal = journal
        self._jobs = jobs
        self._done = {job.key: one for job in jobs if (one := self._known(job)) is not None}
        self._resumed = len(self._done)
        self._failure: Exception | None = None

    def _known(self, job: Job) -> EvaluationRecord | None:
        """The verdict of an earlier run; what had none is tried again, and so is what has changed since."""
        record = self._journal.records.get(job.key)
        if record is None or not record.is_verdict:
            return None
        # not secret: a hash of what is asked for
        return record if record.digest == job.digest else None

    async def finish(self) -> list[EvaluationRecord]:
        """Do what is left; the records of all jobs, in their order.

        Raises:
            SandmanError, OSError: the first that no other evaluation would do without. What is done is kept.
        """
        self._tell(None)
        left = iter([job for job in self._jobs if job.key not in self._done])
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self._plan.concurrency, len(self._jobs))):
                tasks.start_soon(self._work, left, tasks.cancel_scope)
        if self._failure is not None:
            raise self._failure
        return [self._done[job.key] for job in self._jobs]

    async def _work(self, left: Iterator[Job], scope: anyio.CancelScope) -> None:
        try:
            for job in left:
                record = await trial.evaluate(
                    self._client, job, self._plan, self._grader, self._out
                )
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._journal.append, record)
                self._done[job.key] = record
                self._tell(record)
        except Exception as error:  # noqa: BLE001 - raised again, without the group around it
            self._failure = self._failure or error
            scope.cancel()

    def _tell(self, record: EvaluationRecord | None) -> None:
        if self._plan.on_progress is not None:
            counts: Counter[str] = Counter(one.outcome for one in self._done.values())
            self._plan.on_progress(
                EvaluationProgress(
                    done=len(self._done),
                    total=len(self._jobs),
                    resumed=self._resumed,
                    counts=dict(counts),
                    record=record,
                )
            )
