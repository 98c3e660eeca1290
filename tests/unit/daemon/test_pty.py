"""A terminal by itself, and what ends a command on one where the usual ways are shut."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pytest

from daemon import interrupt, script, tree
from daemon.dialogue import Dialogue
from daemon.process import Process
from daemon.pty import Terminal
from daemon.turns import Scanner, Turn
from sandman.sessions import INPUT, RUN, TurnSpec
from tests.unit.daemon.harness import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    one = Terminal(24, 80)
    yield one
    one.close()


def leader(terminal: Terminal, script: str) -> subprocess.Popen[bytes]:
    """A process whose terminal this is."""
    first = f': <{terminal.path}; exec "$0" "$@"'
    argv = ["sh", "-c", first, "sh", "-c", f"exec <{terminal.path} >{terminal.path} 2>&1; {script}"]
    return subprocess.Popen(argv, start_new_session=True)


def read(terminal: Terminal, ends: bytes) -> bytes:
    """What was written, up to this."""
    data = b""
    while not data.endswith(ends):
        assert select.select([terminal.master], [], [], 10)[0], data
        data += terminal.read()
    return data


def test_a_mark_comes_behind_all_that_was_written(terminal: Terminal) -> None:
    for n in range(50):
        program = leader(terminal, f"printf 'line {n}\\n\\ta\\r\\n'")
        assert program.wait(10) == 0
        assert terminal.mark(b"-mark-")
        assert read(terminal, b"-mark-") == f"line {n}\n\ta\r\n-mark-".encode()


def test_a_full_terminal_takes_no_mark_and_a_read_makes_room(terminal: Terminal) -> None:
    size = 0
    while terminal.mark(b"x" * 512):
        size += 512
        assert size < 10_000_000
    assert wait_until(terminal.read)
    assert wait_until(lambda: terminal.mark(b"y"))


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_typed_and_not_read_is_gone_after_a_reset(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """On gVisor's kernel a terminal cannot be told to forget it: it is read away."""

    def refuse(*_: object) -> None:
        raise termios.error(25, "Not a tty")

    if not is_known:
        monkeypatch.setattr(termios, "tcflush", refuse)
    for typed in (b"a line\nthe beginning of another", b""):
        os.write(terminal.master, typed)
        terminal.reset()
        os.write(terminal.master, b"new\n")
        program = leader(terminal, "read line; printf '%s-' \"$line\"")
        assert program.wait(10) == 0
        assert read(terminal, b"-") == b"new-"


def test_where_the_foreground_is_not_told_the_key_is_typed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on gVisor's kernel, which answers only who sits at the terminal."""

    def refuse(_: int) -> int:
        raise OSError(25, "Not a tty")

    program = leader(terminal, "echo begun; exec sleep 60")
    assert read(terminal, b"begun\n") == b"begun\n"
    monkeypatch.setattr(os, "tcgetpgrp", refuse)
    assert terminal.foreground == 0
    terminal.interrupt()
    assert program.wait(10) == -signal.SIGINT


def test_nothing_to_read_and_nobody_to_signal(terminal: Terminal) -> None:
    assert terminal.read() == b""
    terminal.interrupt()
    assert terminal.foreground == 0


def test_who_cannot_be_signalled_gets_the_key(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    with leader(terminal, "trap 'echo caught; exit 9' INT; echo ready; read x") as program:
        assert read(terminal, b"ready\n") == b"ready\n"
        terminal.interrupt()
        assert program.wait(10) == 9
        assert read(terminal, b"caught\n") == b"caught\n"


def test_who_is_gone_is_not_missed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", miss)
    with leader(terminal, "echo ready; read x") as program:
        assert read(terminal, b"ready\n") == b"ready\n"
        terminal.suspend()
        assert program.poll() is None
        program.kill()


def test_without_proc_the_foreground_is_what_can_be_killed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "snapshot", lambda: None)
    script = "set -m; trap '' INT TSTP; sh -c 'echo ready; exec sleep 60'; echo left $?"
    with leader(terminal, script) as program:
        assert read(terminal, b"ready\n") == b"ready\n"
        shell = Process("shell", "tag")
        shell.pid = program.pid
        stop = interrupt.Interrupt(shell, terminal, list, tree.now(), (time.monotonic(), 0.0))
        while program.poll() is None and not stop.must_end:
            stop.step(time.monotonic())
            time.sleep(max(0.0, min(0.05, stop.next_at - time.monotonic())))
        assert b"left 137" in read(terminal, b"left 137\n")
        shell.close()


def test_of_a_sessions_processes_the_older_ones_are_jobs() -> None:
    def row(pid: int, parent: int, born: float) -> tuple[int, tree.Row]:
        return pid, tree.Row(pid, parent, 1, born)

    rows = dict(
        [row(1, 0, 0), row(2, 1, 5), row(3, 2, 20), row(4, 1, 20), row(5, 4, 21), row(9, 0, 1)]
    )
    found = interrupt.of_command(rows, {1, 2, 3, 4, 5}, 1, 10.0)
    assert found == {4, 5}


def test_who_comes_between_a_commands_end_and_its_mark_does_not_see_it() -> None:
    ours, theirs = socket.socketpair()
    remarks, far = os.pipe()
    dialogue = Dialogue(Terminal(24, 80), ours.detach(), theirs.detach(), remarks)
    dialogue.begin(TurnSpec(RUN))
    assert dialogue.take(b"first ") is None
    dialogue.look_for(b"-mark-")
    turn = Turn(TurnSpec(INPUT, expect=("never",)), "id", "boot")
    assert dialogue.take(dialogue.resume(turn.spec)) is None
    assert dialogue.take(b"last-ma") is None
    assert dialogue.take(b"rk- behind") == b"-mark-"
    assert dialogue.result(turn, runs=False).output == b"first last"
    assert dialogue.take(b"") is None
    dialogue.begin(TurnSpec(RUN))
    assert dialogue.take(b"-mark-") is None
    result = dialogue.result(turn, runs=True)
    assert (result.output, result.notices) == (b"-mark-", b" behind")
    os.close(far)
    dialogue.close()


class Talk:
    """A dialogue with its far ends."""

    def __init__(self) -> None:
        ours, self.shell = socket.socketpair()
        remarks, self.stderr = os.pipe()
        self.terminal = Terminal(24, 80)
        control = ours.detach()
        self.dialogue = Dialogue(self.terminal, control, os.dup(control), remarks)
        self.control, self.remarks = control, remarks

    def ready(self) -> set[int]:
        poll = select.poll()
        self.dialogue.register(poll)
        return {fd for fd, _ in poll.poll(0)}

    def close(self) -> None:
        self.shell.close()
        if self.stderr >= 0:
            os.close(self.stderr)
        self.dialogue.close()


@pytest.fixture
def talk() -> Iterator[Talk]:
    one = Talk()
    yield one
    one.close()


def test_who_closes_where_the_shell_talks_to_itself_keeps_nobody_busy(talk: Talk) -> None:
    os.write(talk.stderr, b"last")
    os.close(talk.stderr)
    talk.stderr = -1
    assert talk.ready() == {talk.remarks}
    assert talk.dialogue.hear({talk.remarks}) == []
    assert talk.ready() == set()
    talk.shell.sendall(b"token begin\n")
    assert talk.ready() == {talk.control}
    assert talk.dialogue.hear({talk.control}) == [script.Report("token", "begin")]


def test_who_writes_without_end_gets_a_share_of_the_time(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    def read(_fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 100
        return b"x" * size

    monkeypatch.setattr(os, "read", read)
    talk.dialogue.begin(TurnSpec(RUN))
    talk.dialogue.look_for(b"mark")
    assert reads == 32


def test_a_line_of_nobodys_takes_no_room() -> None:
    buffer = bytearray(b"x" * 65536)
    assert script.reports(buffer) == []
    assert len(buffer) == 65536
    buffer += b"x"
    assert script.reports(buffer) == []
    assert not buffer
    buffer += b"\nt end 255\nt e"
    assert script.reports(buffer) == [script.Report("t", "end", 255)]
    assert buffer == b"t e"


@pytest.mark.parametrize("status", ["²", "٣", "9" * 5000, "1234", "-1"])
def test_what_is_no_exit_code_is_passed_over(status: str) -> None:
    assert script.reports(bytearray(f"t end {status}\nt back {status}\n".encode())) == []
    assert script.reports(bytearray(f"t end {status}\n".encode("latin-1", "replace"))) == []


def test_texts_are_found_wherever_they_are_cut() -> None:
    text = b"aXaXbaXaXcXaX"
    for first in range(len(text)):
        for second in range(first, len(text)):
            scanner = Scanner()
            scanner.look_for((b"aXc", b"nope"))
            passed = b""
            found = None
            for piece in (text[:first], text[first:second], text[second:]):
                more, hit = scanner.feed(piece)
                passed += more
                if hit is not None:
                    found = hit
                    break
            assert found == b"aXc"
            assert passed == b"aXaXbaXaXc"


def test_the_first_of_several_texts_counts_and_the_rest_is_kept() -> None:
    scanner = Scanner()
    scanner.look_for((b"later", b"soon"))
    assert scanner.feed(b"x soon later") == (b"x soon", b"soon")
    scanner.look_for(())
    assert scanner.feed(b"") == (b" later", None)
    scanner.look_for((b"end",))
    assert scanner.feed(b"the e") == (b"the ", None)
    assert scanner.rest() == b"e"
