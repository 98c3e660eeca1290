"""The sync twin interrupted: KeyboardInterrupt at an arbitrary moment leaves nothing behind."""

from __future__ import annotations

import contextlib
import signal
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from sandman.sync import Client, Limits
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, hang, slowly
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN as DAEMON_TOKEN
from tests.unit.daemon.harness import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CREATE = "POST /v1/sandboxes"


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("actions", [[slowly(0.4)], [hang], [hang, answer(400)]])
def test_creation(gateway: FakeGateway, actions: list) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, *actions)
        with interrupted_after(0.2):
            client.create()
        assert gateway.settled()


def test_creation_under_the_callers_own_key(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, hang)
        with interrupted_after(0.2):
            client.create(idempotency_key="mine")
        assert len(gateway.calls(CREATE)) == 1


def test_a_command_of_a_session(way: Way) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    with (
        Client(way.url, DAEMON_TOKEN) as client,
        client.attach(SANDBOX).session(name, rc=False) as session,
    ):
        with interrupted_after(0.3):
            session.run("sleep 30")
        assert wait_until(lambda: session.refresh().state == "idle")
        assert session.run("echo back").output == b"back\n"


def test_the_start_of_a_session(way: Way) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    with Client(way.url, DAEMON_TOKEN) as client:
        box = client.attach(SANDBOX)
        way.holds.append(held := threading.Event())
        with interrupted_after(0.5):
            box.session(name, rc=False)
        assert held.is_set()
        assert name not in {one.name for one in box.sessions()}


def test_a_command(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN, limits=Limits(max_connections=1)) as client:
        with interrupted_after(0.3), client.sandbox() as box:
            box.exec(["sleep", "30"])
        assert gateway.settled()
        assert client.list() == []
