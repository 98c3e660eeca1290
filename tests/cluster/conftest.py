"""Fixtures of the tests that need the real cluster; everything below this folder gets the marker `cluster`."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import admissions, deployed
from tests.cluster import bed as cluster
from tests.cluster.shop import pool_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# The first test may wait for a cold build of Kubernetes.
SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def bed() -> Iterator[cluster.Bed]:
    """A running cluster: the one that is up (and stays up), or one of this session's own."""
    made = cluster.Bed.from_env()
    was_up = cluster.is_up(made)
    if not was_up:
        _require(cluster.missing())
        cluster.up(made)
    yield made
    if not was_up:
        cluster.down(made)


def _require(lacking: list[str]) -> None:
    """A developer's machine may lack what the cluster needs; CI's may not."""
    if not lacking:
        return
    reason = "the test cluster cannot run here: " + " ".join(lacking)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def sandman(bed: cluster.Bed) -> deployed.Deployed:
    """Sandman installed from the work tree, with no sandbox in use."""
    made = deployed.deploy(bed)
    made.sweep()
    return made


@pytest.fixture(scope="session")
def rotating(sandman: deployed.Deployed) -> Iterator[Future[admissions.Stream]]:
    """A rotation of the webhook's certificate, which goes on while other tests use the webhook: most of it is
    waiting."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(admissions.rotate, sandman.bed, pool_pod("stream"))
