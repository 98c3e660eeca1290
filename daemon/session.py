"""One session: a shell that stays, and the thread that talks with it.

That thread alone changes the session's state. Callers leave turns in its inbox and wait for the
answers. See `script` for what is said on the socket, and `pty` for why a mark ends each output.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from daemon import log, script
from daemon.command import Command
from daemon.dialogue import Dialogue
from daemon.interrupt import Interrupt
from daemon.stop import Stop, end_survivors, kill_now, send
from daemon.turns import Book, Turn, ended
from sandman.errors import ConflictError, InternalError, SandmanError
from sandman.sessions import (
    ENDED,
    GRACE_S,
    IDLE,
    INPUT,
    INTERRUPT,
    LEAVE,
    RUN,
    RUNNING,
    SessionResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon import tree
    from daemon.process import Process
    from daemon.pty import Terminal
    from sandman.sessions import TurnSpec


class Session:
    """A shell and who asks things of it."""

    def __init__(
        self,
        name: str,
        process: Process,
        terminal: Terminal,
        fds: tuple[int, int, int],
        others: Callable[[], list[tree.Life]],
    ) -> None:
        """`fds`: our ends of the shell's socket, of where it reads, and of where it talks to itself."""
        self.name = name
        self.process = process
        self.exit_code: int | None = None
        self.is_over = False
        self.is_cut_off = False
        """Its shell went since a command had closed the descriptors by which it is spoken to."""
        self._close_asked = False
        """Unlike the process's `stop_asked` never taken back: its jobs shall go also where it went by itself."""
        self._others = others
        self._terminal = terminal
        self._dialogue = Dialogue(terminal, *fds)
        self._command: Command | None = None
        self._left: Command | None = None
        """It ended while nobody waited for it."""
        self._turn: Turn | None = None
        self._interrupting: list[Turn] = []
        self._interrupt: Interrupt | None = None
        self._stop: Stop | None = None
        self._is_ending = False
        self._status = 0
        self._inbox: deque[Turn] = deque()
        self._book = Book()
        self._lock = threading.Lock()

    # --- from other threads ---

    @property
    def state(self) -> str:
        """`idle`, `running` or `ended`."""
        if self.is_over:
            return ENDED
        return RUNNING if self._command is not None else IDLE

    @property
    def command_id(self) -> str | None:
        """Of the turn that the present command began with."""
        command = self._command
        return command.id if command else None

    def ask(self, spec: TurnSpec, boot_id: str) -> Turn:
        """Have this done; the same id again means the same turn.

        Raises:
            ConflictError: the id was used for something else, or the session has ended.
        """
        with self._lock:
            turn = self._book.find(spec)
            if turn is not None:
                return turn
            if self.is_over:
                raise self._ended()
            turn = self._book.enter(spec, boot_id)
            self._inbox.append(turn)
        self.process.nudge()
        return turn

    def close(self) -> None:
        """Have it ended with all that it started, also what is left of it once `is_over` is true."""
        self._close_asked = True
        self._end()

    def _end(self) -> None:
        self.process.stop_asked = True
        # An interactive shell does not heed TERM; this it hands on to its jobs and goes.
        if self.process.end is None:
            send(self.process.pid, signal.SIGHUP)
        self.process.nudge()

    def abandon(self) -> None:
        """There is no thread for it; its shell has been killed."""
        self._over(None)
        self._dialogue.close()
        self.process.close()

    def _ended(self) -> ConflictError:
        return ended(self.name, self.exit_code, is_cut_off=self.is_cut_off)

    # --- the thread ---

    def run(self) -> None:
        """See the shell through, to its end."""
        try:
            while not self.is_over:
                self._look(time.monotonic())
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave callers waiting
            log.line(f"session {self.name}: {type(error).__name__}: {error}")
            try:
                kill_now(self.process, self._others())
            finally:
                self._over(None)
        finally:
            self._dialogue.close()
            self.process.close()
            if self._close_asked:
                end_survivors(self.process, self._others)

    def _look(self, now: float) -> None:
        while self._inbox:
            self._take(self._inbox.popleft(), now)
        self._keep_time(now)
        if self.is_over:
            return
        poll = select.poll()
        poll.register(self.process.wake, select.POLLIN)
        if (pidfd := self.process.watched) is not None:
            poll.register(pidfd, select.POLLIN)
        self._dialogue.register(poll)
        self._dispatch({fd for fd, _ in poll.poll(self._wait_ms())})

    def _dispatch(self, ready: set[int]) -> None:
        if self.process.wake in ready:
            self.process.clear()
        if self.process.watched in ready:
            self.process.reap()
        for report in self._dialogue.hear(ready):
            self._report(report)
        self._write(self._dialogue.read(ready))
        if self.process.end is not None and not self.process.stop_asked:
            self._shell_ended()

    def _keep_time(self, now: float) -> None:
        command, turn = self._command, self._turn
        if command is not None and command.is_back:
            self._see_mark(command, now)
        elif turn is not None and now >= turn.deadline:
            turn.timed_out = True
            if turn.spec.kind == INPUT or turn.spec.on_timeout == LEAVE:
                self._dialogue.settle()
                self._answer()
            else:
                self._begin_interrupt(now, GRACE_S)
        elif self._interrupt is not None and now >= self._due(self._interrupt):
            self._step(self._interrupt, now)
        if self.process.stop_asked:
            self._step_stop(now)

    def _due(self, interrupt: Interrupt) -> float:
        command = self._command
        return interrupt.next_at if command is None else command.reachable_at(interrupt.next_at)

    def _wait_ms(self) -> int | None:
        now = time.monotonic()
        command = self._command
        times = [math.inf if self._turn is None else self._turn.deadline]
        if command is not None and command.is_back:
            times = [command.next_at]
        elif self._interrupt is not None:
            times.append(self._due(self._interrupt))
        if self._stop is not None:
            times.append(self._stop.next_at)
        wait = min(times) - now
        return None if math.isinf(wait) else min(max(0, math.ceil(wait * 1000)), 3_600_000)

    # --- turns ---

    def _take(self, turn: Turn, now: float) -> None:
        act = {RUN: self._begin, INPUT: self._type, INTERRUPT: self._ask_interrupt}[turn.spec.kind]
        try:
            act(turn, now)
        except SandmanError as error:
            with self._lock:
                self._book.strike(turn)
            turn.fail(error)
        except Exception as error:
            turn.fail(InternalError(f"the session failed: {type(error).__name__}: {error}"))
            raise

    def _begin(self, turn: Turn, _now: float) -> None:
        if self._command is not None:
            raise self._busy()
        self._left = None
        self._dialogue.begin(turn.spec)
        self._turn = turn
        command = self._command = Command(turn.id)
        self.process.work()
        spec, path = turn.spec, self._terminal.path
        line = script.command(command.token, spec.data, self._status, path, typed=spec.interactive)
        self._dialogue.say(line)

    def _type(self, turn: Turn, _now: float) -> None:
        if self._turn is not None:
            raise self._busy()
        if self._command is None:
            if self._left is None or turn.spec.data:
                raise ConflictError(f"no command runs in session {self.name}")
            self._collect(turn)
            return
        self._turn = turn
        self._terminal.keys.feed(turn.spec.data)
        self._write(self._dialogue.resume(turn.spec))

    def _ask_interrupt(self, turn: Turn, now: float) -> None:
        target = turn.spec.data.decode()
        if target and target != self.command_id:
            turn.answer(SessionResult(turn.id, state=self.state))
            return
        if self._command is None:
            self._collect(turn)
            return
        if self._turn is None:
            self._turn = turn
            self._write(self._dialogue.resume(turn.spec))
        else:
            self._interrupting.append(turn)
        self._begin_interrupt(now, turn.spec.grace_s)

    def _collect(self, turn: Turn) -> None:
        """Answer with what a command left behind that ended unseen."""
        self._turn = turn
        left, self._left = self._left, None
        self._dialogue.take(self._dialogue.resume(turn.spec._replace(expect=())))
        self._answer(left)

    def _busy(self) -> ConflictError:
        return ConflictError(
            f"a command runs in session {self.name}: wait for it, or interrupt it",
            facts={"state": self.state, "command_id": self.command_id},
        )

    def _answer(self, command: Command | None = None, expected: str | None = None) -> None:
        """Tell who waits; `command`: the one that has ended."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        result = self._dialogue.result(turn, runs=self._command is not None)._replace(
            state=self.state,
            timed_out=turn.timed_out,
            expected=expected,
            cut_off=self.is_cut_off,
        )
        if command is not None:
            result = result._replace(exit_code=command.status, interrupted=command.interrupted)
        turn.answer(result)

    # --- the command ---

    def _report(self, report: script.Report) -> None:
        command = self._command
        if command is None:
            return
        if command.hears(report):
            self._dialogue.look_for(command.mark)
        elif report == script.Report(command.token, script.BEGIN):
            self._dialogue.say(script.back(command.token))

    def _see_mark(self, command: Command, now: float) -> None:
        command.put_mark(self._terminal)
        if now >= command.late_at:
            self._dialogue.settle()
            self._finish()

    def _write(self, data: bytes) -> None:
        """The session wrote this."""
        found = self._dialogue.take(data)
        while found is not None:
            if self._command is not None and found == self._command.mark:
                self._finish()
            elif self._turn is not None:
                self._answer(expected=found.decode("utf-8", "surrogateescape"))
            found = self._dialogue.take(b"")

    def _finish(self) -> None:
        """All of the command is here."""
        command, self._command = self._command, None
        self.process.rest()
        interrupt, self._interrupt = self._interrupt, None
        if command is None:
            return
        self._status = command.status or 0
        if interrupt is not None and interrupt.is_late:
            interrupt.kill()  # what was suspended
        if self._is_ending:
            self._over(command)
            return
        if self._turn is None:
            self._left = command
        self._answer(command)
        self._tell_interrupting(command)

    def _tell_interrupting(self, command: Command) -> None:
        for turn in self._interrupting:
            self._turn = turn
            self._answer(command)
        self._interrupting = []

    # --- ends ---

    def _begin_interrupt(self, now: float, grace_s: float) -> None:
        if self._command is None or self._interrupt is not None:
            return
        self._command.interrupted = True
        self._interrupt = Interrupt(
            self.process, self._terminal, self._others, self._command.born, (now, grace_s)
        )

    def _step(self, interrupt: Interrupt, now: float) -> None:
        interrupt.step(now)
        if interrupt.must_end:
            self._end()
        elif self._command is not None:
            # The line after the command may have been forgotten with it; one too many is passed over.
            self._dialogue.say(script.back(self._command.token))

    def _step_stop(self, now: float) -> None:
        if self._stop is None:
            self._stop = Stop(self.process, self._others, now)
        if not self._stop.is_done and now >= self._stop.next_at:
            self._stop.step(now)
        if self._stop.is_done:
            self._shell_ended()

    def _shell_ended(self) -> None:
        self._stop, self.process.stop_asked = None, False
        self._is_ending = True
        if self._command is None:
            self._over(None)
        elif not self._command.is_back:
            self._command.come_back(self._code())
            self._dialogue.look_for(self._command.mark)

    def _code(self) -> int:
        """The shell's exit code in the shell's own convention."""
        end = self.process.end
        if end is None:
            return 128 + 9  # it hangs in the kernel, and that is what was sent
        code = os.waitstatus_to_exitcode(end.status)
        return code if code >= 0 else 128 - code

    def _over(self, command: Command | None) -> None:
        """Nothing changes any more; whoever waits is told."""
        if command is not None and self._dialogue.cut_out(command.lost):
            self.is_cut_off = True
        with self._lock:
            self.exit_code = self._code()
            self.is_over = True
            waiting, self._inbox = list(self._inbox), deque()
        for turn in waiting:
            turn.fail(self._ended())
        if command is None:
            command = Command("")
        command.status = self.exit_code
        self._answer(command)
        self._tell_interrupting(command)
