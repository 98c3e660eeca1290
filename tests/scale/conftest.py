"""Fixtures of the scale bed's tests; everything below this folder gets the marker `scale`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import bed as cluster
from tests.scale import control, model

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# The first test may wait for a cold build of Kubernetes and KWOK.
SECONDS = 1800
PODS = 300
MOST = 1000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.scale)
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def target() -> Iterator[model.Target]:
    """The bed with 300 placeholders, refilled as they are claimed; of this session's own."""
    lacking = cluster.missing()
    if lacking:
        reason = "the scale bed cannot run here: " + " ".join(lacking)
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield control.up(model.bed(), control.Plan(PODS, MOST))
    control.down(model.bed())
