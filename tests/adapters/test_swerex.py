"""SWE-ReX's deployment: what SWE-agent calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.adapters import frameworks
from tests.conformance.swerex_run import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable

SWEREX = frameworks.Framework(LOCK, "swerex_suite", ("swerex",), is_async=False)


def test_swerex(run: Callable[[frameworks.Framework], frameworks.Run]) -> None:
    verdict = run(SWEREX).verdict()
    assert not (failures := verdict.failures()), "\n".join(failures.values())
    assert "test_the_calls_of_swe_agent" in verdict.tests
    assert verdict.uncovered() == {}, verdict.words
