"""One gateway in local mode for all frameworks, and Sandman as a wheel brings it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.adapters import frameworks
from tests.conformance import rootfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.adapters.frameworks import Framework, Run

HERE = Path(__file__).parent
SECONDS = 1800
"""The first test may wait for virtual environments and the root file system."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="package")
def image() -> Path:
    """A Debian with bash, git and Python, which sandboxes may write to."""
    lacking = rootfs.missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(" ".join(lacking))
    if lacking:
        pytest.skip(" ".join(lacking))
    return rootfs.DEBIAN.ready()


@pytest.fixture(scope="package")
def gateway(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables by which clients find it."""
    state = tmp_path_factory.mktemp("local")
    with frameworks.local_mode(state, {"task:1": image}) as told:
        yield told


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel was unpacked."""
    return frameworks.build_wheel(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="package", autouse=True)
def early(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Run]]:
    """inspect_ai's suite, begun before all others: most of it is waiting."""
    begun: dict[str, Run] = {}
    if any(item.path.name == "test_inspect_ai.py" for item in request.session.items):
        gateway, site = (request.getfixturevalue(name) for name in ("gateway", "site"))
        scratch = tmp_path_factory.mktemp(frameworks.INSPECT.suite)
        begun[frameworks.INSPECT.suite] = frameworks.Run(
            frameworks.INSPECT, site, scratch, gateway | frameworks.materials()
        )
    yield begun
    for one in begun.values():
        one.close()


@pytest.fixture
def run(
    gateway: dict[str, str], site: Path, tmp_path: Path, early: dict[str, Run]
) -> Iterator[Callable[[Framework], Run]]:
    """Starts suites, or finds one that was begun."""
    begun: list[Run] = []

    def start(framework: Framework) -> Run:
        if framework.suite in early:
            return early[framework.suite]
        environ = gateway | frameworks.materials()
        begun.append(frameworks.Run(framework, site, tmp_path, environ))
        return begun[-1]

    yield start
    for one in begun:
        one.close()
