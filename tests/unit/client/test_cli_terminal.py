"""`sandman shell` and `exec --tty`, on a real terminal and with the real daemon."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sandman.cli import main
from sandman.cli.keyboard import MOST_UNSENT_BYTES, Keyboard, Unsent
from sandman.cli.terminal import Seat
from sandman.client import Client
from sandman.terminal import INPUT_WINDOW_BYTES
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Person:
    """Somebody at a terminal with the command line in it."""

    def __init__(self, way: Way, *arguments: str) -> None:
        self.ours, self._theirs = os.openpty()
        self.resize(31, 91)
        self.before = termios.tcgetattr(self._theirs)
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandman.cli", *arguments],
            env={**os.environ, "SANDMAN_URL": way.url, "SANDMAN_TOKEN": TOKEN, "TERM": "vt220"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.ours, data)

    def paste(self, data: bytes) -> None:
        """Type more than a terminal holds."""
        os.set_blocking(self.ours, False)
        until = time.monotonic() + 20
        while data:
            assert time.monotonic() < until, "nobody reads the keys"
            with suppress(BlockingIOError):
                data = data[os.write(self.ours, data) :]
            select.select([], [self.ours], [], 0.01)
        os.set_blocking(self.ours, True)

    def expect(self, data: bytes) -> None:
        """Read until this was shown, and forget what was shown up to there."""
        until = time.monotonic() + 20
        while data not in self.shown:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, (data, self.shown)
            self.shown += os.read(self.ours, 65536)
        self.shown = self.shown.partition(data)[2]

    def interrupt(self, prompt: bytes) -> None:
        """Ctrl-C, which is the sandbox's and not ours, until it is heard.

        A shell that is just between two commands may not hear it.
        """
        while True:
            self.type(b"\x03")
            until = time.monotonic() + 0.3  # what did not hear it goes on showing things
            while select.select([self.ours], [], [], max(0.0, until - time.monotonic()))[0]:
                self.shown += os.read(self.ours, 65536)
                if self.shown.endswith(prompt):
                    return

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal is as it was found."""
        return termios.tcgetattr(self._theirs) == self.before

    def end(self) -> int:
        """Its exit code; the terminal is as it was."""
        until = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self.ours], [], [], 0.05)[0]:
                self.shown += os.read(self.ours, 65536)
        code = self.process.wait(1)
        assert self.is_as_before
        return code


@pytest.fixture
def sit(way: Way) -> Iterator[Callable[..., Person]]:
    people: list[Person] = []

    def down(*arguments: str) -> Person:
        people.append(Person(way, *arguments))
        return people[-1]

    yield down
    for person in people:
        person.__exit__()


def test_a_shell_like_any_other(sit: Callable[..., Person]) -> None:
    person = sit("shell", "-e", "PS1=:", "-w", "/", SANDBOX, "--", "sh")
    person.expect(b":")
    person.type(b"pwd; stty size; echo $TERM\r")
    person.expect(b"/\r\n31 91\r\nvt220\r\n:")
    person.resize(20, 50)
    os.kill(person.process.pid, signal.SIGWINCH)
    person.type(b"while :; do stty size; sleep 0.1; done\r")
    person.expect(b"20 50\r\n")
    person.interrupt(b"\n:")
    person.type(b"exit 9\r")
    assert person.end() == 9


def test_there_is_a_way_out(sit: Callable[..., Person], mark: str) -> None:
    person = sit("shell", SANDBOX, "--", "sh", "-c", f"echo ready; sleep 62; : {mark}")
    person.expect(b"ready\r\n")
    person.type(b"\r~.")
    assert person.end() == 0
    assert b"sandman: left" in person.shown
    assert wait_until(lambda: not processes_with(mark))


def test_there_is_a_way_out_of_what_does_not_read(sit: Callable[..., Person], mark: str) -> None:
    command = f"stty raw -echo; echo ready; sleep 64; : {mark}"
    person = sit("shell", SANDBOX, "--", "sh", "-c", command)
    person.expect(b"ready")
    person.paste(b"x" * (INPUT_WINDOW_BYTES + MOST_UNSENT_BYTES // 2))
    person.paste(b"\r~.")
    assert person.end() == 0
    assert b"sandman: left" in person.shown
    assert wait_until(lambda: not processes_with(mark))


def test_there_is_a_way_out_while_the_line_is_broken(sit: Callable[..., Person], way: Way) -> None:
    way.cuts.extend([None, 600, *[0] * 1000])
    person = sit("shell", SANDBOX, "--", "sh", "-c", "seq 1 300; sleep 65")
    person.expect(b"attempt 3")
    person.type(b"x\r")
    person.expect(b"attempt 4")
    person.type(b"~.")
    assert wait_until(lambda: person.is_as_before)
    way.cuts.clear()
    assert person.end() == 0


@on_backends
async def test_what_was_typed_before_leaving_arrives(way: Way) -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    os.write(ours, b"the last\r~.")
    shell = "echo ready; read x; echo got $x; sleep 66"
    async with (
        Client(way.url, TOKEN) as client,
        client.attach(SANDBOX).terminal(shell=shell) as term,
    ):
        shown = b""
        while b"ready" not in shown:
            shown += await term.read(20)
        with anyio.CancelScope() as scope:
            await Seat(theirs, theirs)._type(term, scope)
        while b"got the last" not in shown:
            shown += await term.read(20)
    assert scope.cancel_called
    os.close(ours)
    os.close(theirs)


def test_a_signal_puts_the_terminal_right_and_ends_what_runs(
    sit: Callable[..., Person], mark: str
) -> None:
    person = sit("shell", SANDBOX, "--", "sh", "-c", f"echo ready; sleep 63; : {mark}")
    person.expect(b"ready\r\n")
    person.process.terminate()
    assert person.end() == 128 + signal.SIGTERM
    assert wait_until(lambda: not processes_with(mark))


def test_a_line_that_breaks_is_told_and_mended(sit: Callable[..., Person], way: Way) -> None:
    way.cuts.extend([None, 600])
    person = sit("shell", SANDBOX, "--", "sh", "-c", "seq 1 300; read x; echo got $x")
    person.expect(b"attempt 2")
    person.expect(b"\r\n300\r\n")
    person.type(b"it\r")
    person.expect(b"got it\r\n")
    assert person.end() == 0


def test_exec_takes_a_terminal_when_asked(sit: Callable[..., Person]) -> None:
    person = sit("exec", "--tty", SANDBOX, "--", "sh", "-c", "tty -s; echo $?; exit 4")
    person.expect(b"0\r\n")
    assert person.end() == 4


def test_what_cannot_be_is_told_on_the_terminal(sit: Callable[..., Person]) -> None:
    person = sit("shell", "--user", "nobody-here", SANDBOX)
    assert person.end() == 125
    assert b"user_unsupported" in person.shown


@pytest.mark.parametrize("arguments", [["shell", SANDBOX], ["exec", "-t", SANDBOX, "true"]])
def test_without_a_terminal_it_is_told(arguments: list[str]) -> None:
    result = CliRunner(env={"SANDMAN_URL": "http://x", "SANDMAN_TOKEN": "t"}).invoke(
        main, arguments
    )
    assert result.exit_code == 2
    assert "a terminal is needed" in result.stderr


@pytest.mark.parametrize("option", ["--stdin", "--json"])
def test_what_does_not_go_with_a_terminal(option: str) -> None:
    arguments = ["exec", "--tty", option, SANDBOX, "true"]
    result = CliRunner(env={"SANDMAN_URL": "http://x", "SANDMAN_TOKEN": "t"}).invoke(
        main, arguments
    )
    assert result.exit_code == 2
    assert "--tty goes with neither" in result.stderr


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        (b"ls ~/x\r", b"ls ~/x\r", False),
        (b"~.", b"", True),
        (b"a\r~.b", b"a\r", True),
        (b"a~.", b"a~.", False),
        (b"~~.\r", b"~.\r", False),
        (b"~/x", b"~/x", False),
        (b"\r~\r~.", b"\r~\r", True),
        (b"\r~", b"\r", False),
    ],
)
def test_the_escape(typed: bytes, sent: bytes, leaves: bool) -> None:
    whole, single = Keyboard(), Keyboard()
    assert whole.take(typed) == sent
    assert b"".join(single.take(typed[n : n + 1]) for n in range(len(typed)))[: len(sent)] == sent
    assert whole.leaves is single.leaves is leaves


@on_backends
async def test_what_is_not_sent_yet_is_of_limited_size() -> None:
    unsent = Unsent()
    first, second = b"x" * MOST_UNSENT_BYTES, b"y"
    await unsent.put(first)
    taken = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(unsent.put, second)
        await anyio.wait_all_tasks_blocked()
        taken.append(await unsent.take())
        taken.append(await unsent.take())
        tasks.start_soon(unsent.end)
        taken.append(await unsent.take())
    assert taken == [first, second, b""]


@given(st.binary().filter(lambda data: b"~" not in data))
def test_all_other_keys_are_the_sandboxs(data: bytes) -> None:
    assert Keyboard().take(data) == data
