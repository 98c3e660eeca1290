"""Daemons to talk to: one for all tests that leave nothing behind, fresh ones, and one as PID 1."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter
from tests.unit.daemon import harness
from tests.unit.daemon.servers import serve
from tests.unit.daemon.shells import KINDS, Shell, shell_of
from tests.unit.daemon.tars import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["serve", "tree"]  # fixtures

IN_ITS_OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(scope="session")
def daemon() -> Iterator[harness.Daemon]:
    """A daemon that is not PID 1, shared."""
    running = harness.start(env={"FROM_IMAGE": "yes"})
    yield running
    running.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., harness.Daemon]]:
    """Starts daemons that end with the test."""
    running: list[harness.Daemon] = []

    def make(*args: str, **kwargs: object) -> harness.Daemon:
        running.append(harness.start(*args, **kwargs))  # type: ignore[arg-type]
        return running[-1]

    yield make
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def first() -> Iterator[harness.Daemon]:
    """A daemon that is PID 1 of a namespace of its own, shared."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a pid namespace")
    running = harness.start(*IN_ITS_OWN_NAMESPACE)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def native() -> Path:
    """The daemon's own Python, with the start path in C; for tests with the marker `runtime`."""
    return interpreter.build() / "bin" / "python3"


@pytest.fixture(scope="session")
def own(native: Path) -> Iterator[harness.Daemon]:
    """A daemon on its own Python that is PID 1 of a namespace of its own, shared."""
    running = harness.start(*IN_ITS_OWN_NAMESPACE, program=harness.serve_by(native))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def beside(native: Path) -> Iterator[harness.Daemon]:
    """A daemon on its own Python that is not PID 1, shared."""
    running = harness.start(program=harness.serve_by(native))
    yield running
    running.stop()


@pytest.fixture
def mark() -> str:
    """Text that finds this test's processes, and no others, by their command line."""
    return f"mark-{uuid.uuid4().hex}"


@pytest.fixture(params=KINDS)
def shell(
    request: pytest.FixtureRequest, daemon: harness.Daemon, tmp_path: Path
) -> Iterator[Shell]:
    """A session in each kind of shell."""
    with Shell(daemon, shell=shell_of(request.param, tmp_path), cwd=str(tmp_path)) as one:
        yield one


@pytest.fixture
def bash(daemon: harness.Daemon, tmp_path: Path) -> Iterator[Shell]:
    """A session in bash."""
    with Shell(daemon, shell="bash", cwd=str(tmp_path)) as one:
        yield one
