"""Harbor's template task with its own agents on our environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import venvs
from tests.adapters import frameworks

if TYPE_CHECKING:
    from collections.abc import Callable


def test_harbor(run: Callable[[frameworks.Framework], frameworks.Run]) -> None:
    lock = frameworks.HERE / "harbor.lock"
    base = venvs.newer()
    framework = frameworks.Framework(lock, "harbor_suite", ("harbor",), base, is_async=False)
    verdict = run(framework).verdict()
    assert not (failures := verdict.failures()), "\n".join(failures.values())
    assert "test_the_template_task_with_the_oracle" in verdict.tests
    assert verdict.uncovered() == {}, verdict.words
