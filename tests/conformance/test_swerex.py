"""SWE-ReX's own tests (swe-rex 1.4.0) over its own HTTP protocol, on our client and a real daemon.

All that need neither a container nor a cloud of theirs. One of them they expect to fail, and here it passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.conformance import swerex_run

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = {
    "test_execution": 50,
    "test_runtime": 12,
    "test_server": 3,
    "test_remote_deployment": 1,
    "test_local_runtime": 2,
}


@pytest.mark.timeout(900)  # the first one may wait for the virtual environment
def test_swerex(tmp_path: Path) -> None:
    verdicts = swerex_run.run(tmp_path)
    failures = {name: v.words for name, v in verdicts.items() if v.outcome != "passed"}
    assert not failures, "\n\n".join(f"{name}\n{words}" for name, words in failures.items())
    assert Counter(name.partition("::")[0] for name in verdicts) == COUNTS
