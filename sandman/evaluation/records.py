"""What became of evaluations: the values that the journal keeps and reports are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Outcome = Literal["resolved", "unresolved", "infrastructure", "error"]
VERDICTS = frozenset({"resolved", "unresolved"})


@dataclass(frozen=True, slots=True)
class EvaluationKey:
    """Which evaluation: the nth (`repetition`) of the nth patch (`sample`) of a model for a task."""

    instance_id: str
    model: str
    sample: int = 0
    repetition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation.

    `outcome` is `resolved`, `unresolved` (a verdict, `reason` says why), `infrastructure` (no verdict: `reason` and `cause` of the last
    fault) or `error` (no verdict: the row, the image or the run's settings). `failed` are tests of both lists that did not do what was
    expected; `log` is the file with its `bytes` and `sha256`; `attempts` are the faults before; `facts` were measured: seconds and bytes.
    """

    key: EvaluationKey
    digest: str
    outcome: Literal["resolved", "unresolved", "infrastructure", "error"]
    reason: str | None = None
    cause: str | None = None
    detail: str = ""
    graded_by: str | None = None
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exit_code: int | None = None
    applied_by: str | None = None
    log: Mapping[str, object] | None = None
    sandbox: str | None = None
    node: str | None = None
    image_digest: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    attempts: tuple[Mapping[str, object], ...] = ()
    certificate: Mapping[str, object] | None = None
    at: str = ""

    @property
    def is_verdict(self) -> bool:
        """Whether it says something about the patch."""
        return self.outcome in VERDICTS

    def to_json(self) -> dict[str, object]:
        """A line of the journal."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EvaluationRecord:
        """Parse; members that this version does not know are passed over.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: it is none.
        """
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in body.items() if name in known}
        values["key"] = EvaluationKey(**values["key"])
        values["failed"] = {name: tuple(tests) for name, tests in values.get("failed", {}).items()}
        values["attempts"] = tuple(values.get("attempts", ()))
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProgress:
    """How far a run has come: `done` of `total`, those of an earlier run with the same directory among them (`resumed`)."""

    done: int
    total: int
    resumed: int
    counts: Mapping[str, int]
    record: EvaluationRecord | None = None
