"""inspect_ai's checks of a provider, and tasks that it runs, by the provider's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.adapters import frameworks
from tests.conformance.test_inspect import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

BY_ROOT = {
    f"test_{name}"
    for name in (
        "read_file_not_allowed",
        "write_text_file_without_permissions",
        "write_binary_file_without_permissions",
    )
}


def test_inspect_ai(run: Callable[[frameworks.Framework], frameworks.Run]) -> None:
    verdict = run(frameworks.INSPECT).verdict()
    assert not (failures := verdict.failures(allowed=BY_ROOT)), "\n".join(failures.values())
    assert {f"test_{check}" for check in CHECKS} <= verdict.tests.keys()
    assert verdict.uncovered() == {}, verdict.words
