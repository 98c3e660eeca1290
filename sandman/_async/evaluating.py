"""Evaluations, of which a client does whole lists."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    import os

    from sandman._core.config import Settings
    from sandman.evaluation.inputs import Source
    from sandman.evaluation.options import EvaluationOptions
    from sandman.evaluation.report import EvaluationReport

RUNNER = "sandman.evaluation.runner"
"""Loaded when it is needed: most callers need it never."""


class Evaluating:
    """What of a client evaluates."""

    settings: Settings

    async def evaluate(
        self,
        rows: Source,
        predictions: Source,
        out: str | os.PathLike[str],
        **options: Unpack[EvaluationOptions],
    ) -> EvaluationReport:
        """Evaluate patches on tasks in SWE-bench's row format, each in a fresh sandbox, by SWE-bench's own flow.

        What is done is kept in `out` at once: called again with the same directory it goes on where it was. A fault of the infrastructure
        is retried elsewhere, a bounded number of times, and never a failed test (docs/evaluation.md).

        Args:
            rows: the tasks: path of a JSON or JSON lines file, or the rows themselves.
            predictions: likewise, of `instance_id`, `model_patch` and `model_name_or_path`; "gold": the rows' own patches; "none": no patch.
            out: directory for journal, logs and report.
            **options: see EvaluationOptions.

        Raises:
            ValueError: rows, predictions, an option or the journal are not what they should be; TaskListError names place and field.
            SandmanError: nothing could be evaluated: a token that is not known, a setting.
        """
        runner: Any = importlib.import_module(RUNNER)
        report: EvaluationReport = await runner.evaluate(self, rows, predictions, out, **options)
        return report
