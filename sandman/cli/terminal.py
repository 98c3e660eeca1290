"""This terminal becomes one of a sandbox's, for `shell` and `exec --tty`.

Over the async client: keys, output and size come when they like.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import click

from sandman import terminal
from sandman.cli.command import exit_code, uid_or_name
from sandman.cli.keyboard import Keyboard, Unsent
from sandman.client import ExecOptions, TerminalSpec
from sandman.errors import ConflictError, SandmanError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandman.cli.session import Session
    from sandman.client import Terminal

_READ_BYTES = 64 * 1024
FAREWELL_LIMIT_S = 0.5
"""For what was typed before the way out: enough where the sandbox reads, and not felt where it does not."""


def carry_out(
    session: Session, sandbox: str, command: tuple[str, ...], given: dict[str, Any]
) -> int:
    """Run the command, or the image's shell, in a terminal that is this one; the exit code.

    Raises:
        click.UsageError: there is no terminal here.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "a terminal is needed on standard input and output; without one use `sandman exec`"
        )
    options = ExecOptions(
        env=given["env"],
        cwd=given["workdir"],
        user=uid_or_name(given["user"]),
        timeout_s=given["timeout"],
    )
    try:
        return anyio.run(_carry_out, session, sandbox, command, options)
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _carry_out(
    session: Session, sandbox: str, command: tuple[str, ...], options: ExecOptions
) -> int:
    seat = Seat(sys.stdin.fileno(), sys.stdout.fileno())
    code = 0
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(*_signals()) as signals:
            tasks.start_soon(seat.listen, signals, tasks.cancel_scope)
            async with (
                session.async_client() as client,
                client.attach(sandbox).terminal(
                    command or None, size=seat.spec(), **options
                ) as term,
            ):
                with _raw(session, seat.stdin):
                    await seat.sit(term)
            if seat.keyboard.leaves:
                session.say("left")
            else:
                code = exit_code(session, command[0] if command else "the shell", term.result)
            tasks.cancel_scope.cancel()
    return code if seat.signal is None else 128 + seat.signal


def _signals() -> list[signal.Signals]:
    wanted = [signal.SIGWINCH, signal.SIGTERM]
    # Else somebody said `nohup`.
    is_heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [*wanted, signal.SIGHUP] if is_heard else wanted


class Seat:
    """Who sits at this terminal."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin = stdin
        self.keyboard = Keyboard()
        self.signal: int | None = None
        """What ended it from outside."""
        self._stdout = stdout
        self._term: Terminal | None = None
        self._size = _size(stdout)

    def spec(self) -> TerminalSpec:
        """The terminal to ask for: like this one."""
        return TerminalSpec(*self._size, os.environ.get("TERM") or terminal.DEFAULT_TERM)

    async def listen(
        self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope
    ) -> None:
        """Heed signals: not by their usual handlers, whose exceptions an event loop does not expect."""
        async for number in signals:
            if number == signal.SIGWINCH:
                await self._resize()
            else:
                self.signal = number
                scope.cancel()
                return

    async def sit(self, term: Terminal) -> None:
        """Pass everything on, both ways, until it has ended or is left."""
        self._term = term
        await self._resize()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._type, term, tasks.cancel_scope)
            async for data in term:
                await anyio.to_thread.run_sync(_write, self._stdout, data, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()

    async def _type(self, term: Terminal, scope: anyio.CancelScope) -> None:
        unsent = Unsent()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_send, term, unsent)
            await self._hear(unsent)
            tasks.cancel_scope.deadline = anyio.current_time() + FAREWELL_LIMIT_S
        scope.cancel()

    async def _hear(self, unsent: Unsent) -> None:
        """Read keys until it is left: while they are sent, too, which takes as long as it takes."""
        while not self.keyboard.leaves:
            await anyio.wait_readable(self.stdin)
            data = os.read(self.stdin, _READ_BYTES)
            if not data:
                self.keyboard.leaves = True
            await unsent.put(self.keyboard.take(data))
        await unsent.end()

    async def _resize(self) -> None:
        size = _size(self._stdout)
        if self._term is not None and size != self._size:
            self._size = size
            with suppress(SandmanError):  # of what matters more the reader learns
                await self._term.resize(*size)


async def _send(term: Terminal, unsent: Unsent) -> None:
    with suppress(ConflictError):  # it has ended: the reader knows
        while data := await unsent.take():
            await term.write(data)


def _size(fd: int) -> tuple[int, int]:
    """Rows and columns; a terminal that does not know them is of the usual size."""
    cols, rows = os.get_terminal_size(fd)
    return rows or terminal.DEFAULT_ROWS, cols or terminal.DEFAULT_COLS


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextmanager
def _raw(session: Session, fd: int) -> Iterator[None]:
    """Every key comes as it is; undone whatever happens."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSANOW)
        session.is_raw = True
        yield
    finally:
        session.is_raw = False
        # Not when all output is written: that may be never.
        termios.tcsetattr(fd, termios.TCSANOW, before)
