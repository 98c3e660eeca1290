"""SIGTERM leaves the blocks of the synchronous client, so that what they hold is released."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from sandman._core import termination
from sandman._core.termination import Termination
from sandman.client import Client
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.fake_gateway import FakeGateway


HOLDS = """
import signal, sys, time
from sandman.sync import Client
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # who measures coverage has set it
BLOCKS
    print("held", flush=True)
    time.sleep(30)
"""
BLOCKS = {
    "with Client(URL, TOKEN) as client, client.sandbox() as box:": 1,
    "with Client(URL, TOKEN).sandbox() as box:": 1,
    "with Client(URL, TOKEN).sandboxes(2) as batch:\n    boxes = list(batch)": 2,
}
"""What holds sandboxes, and how many: a client that is no block of its own is one too."""


@pytest.fixture
def nobodys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody in this process has a use for SIGTERM."""
    monkeypatch.setattr(Termination, "_users", 0)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("block", BLOCKS)
def test_sigterm_releases_what_a_program_holds(gateway: FakeGateway, block: str):
    text = HOLDS.replace("BLOCKS", block).replace("URL, TOKEN", 'sys.argv[1], "smk_test_secret"')
    with subprocess.Popen(
        [sys.executable, "-c", text, gateway.url], stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        assert len(gateway.sandboxes) == BLOCKS[block]
        program.terminate()
        assert program.wait(10) == termination.EXIT_CODE
    assert gateway.released


@pytest.mark.usefixtures("nobodys")
def test_sigterm_is_taken_where_nobody_has_it_and_given_back():
    one, two = Termination(), Termination()
    one.watch()
    two.watch()
    assert signal.getsignal(signal.SIGTERM) is termination._leave
    one.forget()
    one.forget()
    assert signal.getsignal(signal.SIGTERM) is termination._leave
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    two.forget()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("nobodys")
def test_a_handler_of_the_programs_own_is_left_alone():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        one = Termination()
        one.watch()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        one.forget()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    one.watch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        one.forget()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.usefixtures("nobodys")
def test_only_the_main_thread_may_take_it():
    thread = threading.Thread(target=Termination().watch)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@on_backends
@pytest.mark.usefixtures("nobodys")
async def test_the_asynchronous_client_leaves_it_alone(gateway: FakeGateway):
    async with Client(gateway.url, TOKEN):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
