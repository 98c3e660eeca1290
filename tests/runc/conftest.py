"""Sandboxes of the test's own: nothing that was attacked is used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.conftest import SECONDS, fresh, machine, runtime

__all__ = ["fresh", "machine", "runtime"]  # fixtures

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.conformance)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS))
