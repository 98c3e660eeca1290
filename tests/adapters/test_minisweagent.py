"""mini-swe-agent's agent on our environment class: a scripted model solves a real task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.adapters import frameworks

if TYPE_CHECKING:
    from collections.abc import Callable

MINI = frameworks.Framework(
    frameworks.HERE / "minisweagent.lock", "minisweagent_suite", ("minisweagent",), is_async=False
)


def test_minisweagent(run: Callable[[frameworks.Framework], frameworks.Run]) -> None:
    verdict = run(MINI).verdict()
    assert not (failures := verdict.failures()), "\n".join(failures.values())
    assert "test_a_scripted_model_solves_a_real_task" in verdict.tests
    assert verdict.uncovered() == {}, verdict.words
