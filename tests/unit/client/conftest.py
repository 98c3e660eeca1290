"""What the client's tests share: a fake gateway each, and no settings from outside."""

from __future__ import annotations

import os
import random
import signal
import uuid
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sandman.cli import main
from tests.unit.client.fake_gateway import TOKEN, FakeGateway
from tests.unit.client.way import Way
from tests.unit.daemon import harness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests does not matter."""
    for name in [*os.environ]:
        if name.startswith("SANDMAN_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as gateway:
        yield gateway


@pytest.fixture(scope="session")
def real_daemon() -> Iterator[harness.Daemon]:
    """The daemon itself, shared."""
    running = harness.start()
    yield running
    running.stop()


@pytest.fixture
def way(real_daemon: harness.Daemon) -> Iterator[Way]:
    with Way(real_daemon) as one:
        yield one


@pytest.fixture
def mark() -> str:
    """Text that finds this test's processes, and no others, by their command line."""
    return f"mark-{uuid.uuid4().hex}"


@pytest.fixture
def cli(gateway: FakeGateway):
    """Runs the command line in this process."""
    environment = {"SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN}
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: object, **options):
        return CliRunner(env=environment).invoke(main, [str(a) for a in arguments], **options)

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
