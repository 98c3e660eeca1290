"""What is evaluated: patches by task, of a file, or the reference solutions themselves."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman.evaluation.inputs import Source, TaskListError, objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandman.evaluation.rows import TaskRow

GOLD = "gold"
"""In place of a file: the rows' own patches."""
NONE = "none"
"""In place of a file: no patch at all, a control that must resolve nothing."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A patch for a task. `sample` tells several of one model apart; `control`: nothing is applied, on purpose."""

    instance_id: str
    patch: str
    model: str
    sample: int = 0
    control: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the model gave nothing: that resolves nothing, and is not run."""
        return not self.control and not self.patch.strip()

    def digest(self) -> str:
        """Of what is applied."""
        return hashlib.sha256(
            f"{self.control}\n{self.patch}".encode("utf-8", "replace")
        ).hexdigest()


def read_predictions(source: Source, rows: Sequence[TaskRow]) -> tuple[Prediction, ...]:
    """The patches of a list, or those of the rows.

    Raises:
        TaskListError: one lacks something, or is for a task that is not in the list; of "gold": a row has no patch.
        OSError: the file cannot be read.
    """
    if source == GOLD:
        return tuple(_gold(row) for row in rows)
    if source == NONE:
        return tuple(Prediction(row.instance_id, "", NONE, control=True) for row in rows)
    known = {row.instance_id for row in rows}
    samples: Counter[tuple[str, str]] = Counter()
    found = []
    for members in objects(source, key="instance_id"):
        name = members.text("instance_id")
        if name not in known:
            raise members.fail("instance_id", f"{name} is not in the task list")
        model = members.text("model_name_or_path", "unnamed") or "unnamed"
        patch = members.text("model_patch", "")
        found.append(Prediction(name, patch, model, samples[name, model]))
        samples[name, model] += 1
    if not found:
        raise TaskListError("holds no prediction", place="the predictions")
    return tuple(found)


def _gold(row: TaskRow) -> Prediction:
    if row.patch is None:
        raise TaskListError(
            "the row has no reference solution", place=row.instance_id, field="patch"
        )
    return Prediction(row.instance_id, row.patch, GOLD)
