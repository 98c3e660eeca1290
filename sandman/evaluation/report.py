"""What a run comes to: counts, rates, tasks, and with several evaluations of one patch its flips. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandman.evaluation.records import EvaluationRecord
    from sandman.evaluation.rows import TaskRow

SCHEMA_VERSION = 2
"""Of those members that SWE-bench's own reports have, too."""
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
OUTCOMES = ("resolved", "unresolved", "infrastructure", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One patch of one model for a task, evaluated `runs` times.

    `flips`: verdicts that are not the one which most of its evaluations had; `flaky` are tests that did what was expected of them in
    some of those and not in others: how often they did not. `reasons`: of all that did not resolve it. `images`: digests of what ran,
    of which there is more than one where a tag has moved.
    """

    instance_id: str
    model: str
    sample: int
    runs: int
    counts: Mapping[str, int]
    flips: int
    flaky: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    images: Sequence[str] = ()

    def to_json(self) -> dict[str, object]:
        """A member of the report."""
        return {
            "instance_id": self.instance_id,
            "model_name_or_path": self.model,
            "sample": self.sample,
            "runs": self.runs,
            **{name: self.counts.get(name, 0) for name in OUTCOMES},
            "flips": self.flips,
            "flaky": dict(self.flaky),
            "reasons": dict(self.reasons),
            "images": list(self.images),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """A whole run: its records, in the order of the list, and what they come to."""

    instances: Sequence[str]
    records: Sequence[EvaluationRecord]
    tasks: Sequence[TaskReport]

    @property
    def counts(self) -> dict[str, int]:
        """Evaluations by outcome."""
        found: Counter[str] = Counter(record.outcome for record in self.records)
        return {name: found[name] for name in OUTCOMES}

    @property
    def is_whole(self) -> bool:
        """Whether every evaluation has a verdict."""
        return all(record.is_verdict for record in self.records)

    @property
    def certified(self) -> dict[str, int]:
        """Evaluations by what their certificates say of the conditions that they ran under."""
        found = Counter(record.facts.get("controlled") for record in self.records)
        return {"controlled": found[True], "uncontrolled": found[False], "unknown": found[None]}

    @property
    def flips(self) -> int:
        """Of all tasks."""
        return sum(task.flips for task in self.tasks)

    def to_json(self) -> dict[str, object]:
        """The report as it is written; the members about `instances` are those of SWE-bench's own reports."""
        ids = self._ids()
        named = {
            "total_instances": len(self.instances),
            **{f"{name}_instances": len(found) for name, found in ids.items()},
            **{f"{name}_ids": found for name, found in ids.items()},
            "schema_version": SCHEMA_VERSION,
        }
        return named | {
            "evaluations": len(self.records),
            "outcomes": self.counts,
            "resolved_of_verdicts": self._rate(of_all=False),
            "resolved_of_all": self._rate(of_all=True),
            "retried": sum(len(record.attempts) for record in self.records),
            "flips": self.flips,
            "certified": self.certified,
            "graded_by": sorted({one.graded_by for one in self.records if one.graded_by}),
            "tasks": [task.to_json() for task in self.tasks],
        }

    def _ids(self) -> dict[str, list[str]]:
        """Tasks by what became of all their evaluations."""
        by: dict[str, list[EvaluationRecord]] = {}
        for record in self.records:
            by.setdefault(record.key.instance_id, []).append(record)
        whole = {name: all(one.is_verdict for one in found) for name, found in by.items()}
        solved = {
            name: all(one.outcome == "resolved" for one in found) for name, found in by.items()
        }
        empty = {
            name for name, found in by.items() if all(o.reason == "empty_patch" for o in found)
        }
        infra = {n for n, found in by.items() if any(o.outcome == "infrastructure" for o in found)}
        errors = {name for name, found in by.items() if any(o.outcome == "error" for o in found)}
        return {
            "submitted": sorted(by),
            "completed": sorted(name for name in by if whole[name] and name not in empty),
            "incomplete": sorted(set(self.instances) - by.keys()),
            "resolved": sorted(name for name in by if solved[name]),
            "unresolved": sorted(n for n in by if whole[n] and not solved[n] and n not in empty),
            "empty_patch": sorted(empty),
            "infra_failure": sorted(infra),
            "error": sorted(errors),
        }

    def _rate(self, *, of_all: bool) -> float | None:
        counted = [one for one in self.records if of_all or one.is_verdict]
        if not counted:
            return None
        return sum(one.outcome == "resolved" for one in counted) / len(counted)

    def text(self) -> str:
        """For people: what matters on top, then every task that is not simply resolved."""
        counts, rate = self.counts, self._rate(of_all=False)
        head = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines = [f"{len(self.records)} evaluations: {head}"]
        if rate is not None:
            lines.append(f"resolved of all verdicts: {100 * rate:.1f} %")
        if self.certified["unknown"] < len(self.records):
            lines.append(", ".join(f"{name} {count}" for name, count in self.certified.items()))
        if any(task.runs > 1 for task in self.tasks):
            lines.append(f"flips: {self.flips}")
        for task in self.tasks:
            if task.counts.get("resolved") != task.runs:
                lines.append(_line(task))
            lines += [
                f"    flaky: {test}: failed {count} of {task.runs}"
                for test, count in task.flaky.items()
            ]
        return "\n".join(lines) + "\n"


def _line(task: TaskReport) -> str:
    told = ", ".join(f"{reason} {count}" for reason, count in task.reasons.items())
    flips = f", flips {task.flips}" if task.runs > 1 else ""
    return f"  {task.instance_id} ({task.model}): resolved {task.counts.get('resolved', 0)} of {task.runs}{flips}: {told}"


def summarize(rows: Iterable[TaskRow], records: Iterable[EvaluationRecord]) -> EvaluationReport:
    """The report of these records."""
    every = tuple(records)
    groups: dict[tuple[str, str, int], list[EvaluationRecord]] = {}
    for record in every:
        key = record.key
        groups.setdefault((key.instance_id, key.model, key.sample), []).append(record)
    return EvaluationReport(
        instances=tuple(row.instance_id for row in rows),
        records=every,
        tasks=tuple(_task(*name, found) for name, found in groups.items()),
    )


def _task(
    instance_id: str, model: str, sample: int, records: Sequence[EvaluationRecord]
) -> TaskReport:
    counts: Counter[str] = Counter(record.outcome for record in records)
    verdicts = counts["resolved"] + counts["unresolved"]
    reasons = Counter(record.reason for record in records if record.reason is not None)
    return TaskReport(
        instance_id=instance_id,
        model=model,
        sample=sample,
        runs=len(records),
        counts=dict(counts),
        flips=min(counts["resolved"], verdicts - counts["resolved"]),
        flaky=_flaky(records),
        reasons=dict(reasons),
        images=tuple(sorted({one.image_digest for one in records if one.image_digest})),
    )


def _flaky(records: Sequence[EvaluationRecord]) -> dict[str, int]:
    """Only of runs whose tests ran: one that stopped before says nothing of single tests."""
    told = [one for one in records if one.outcome == "resolved" or one.reason == "tests_failed"]
    failed = Counter(test for one in told for name in LISTS for test in one.failed.get(name, ()))
    return {test: count for test, count in sorted(failed.items()) if count < len(told)}
