"""NeMo Gym's public sandbox on our provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import venvs
from tests.adapters import frameworks

if TYPE_CHECKING:
    from collections.abc import Callable


def test_nemo_gym(run: Callable[[frameworks.Framework], frameworks.Run]) -> None:
    lock = frameworks.HERE / "nemo_gym.lock"
    framework = frameworks.Framework(lock, "nemo_gym_suite", ("nemo_gym",), venvs.newer())
    verdict = run(framework).verdict()
    assert not (failures := verdict.failures()), "\n".join(failures.values())
    assert "test_it_is_found_by_its_entry_point" in verdict.tests
    assert verdict.uncovered() == {}, verdict.words
