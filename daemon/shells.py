"""The sessions of a sandbox by name, and how one is started."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from daemon import script
from daemon.launch import StartFailedError, plan_shell
from daemon.pty import Terminal
from daemon.session import Session
from daemon.spawn import Descriptors
from daemon.stop import end_survivors, kill_now
from sandman import wire
from sandman.errors import (
    BadRequestError,
    ConflictError,
    InternalError,
    NotFoundError,
    PathDeniedError,
    PathNotFoundError,
    SandmanError,
    UnreachableError,
)
from sandman.sessions import ENDED, RUN, SessionInfo, TurnSpec

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.process import Process
    from daemon.processes import Processes
    from daemon.turns import Turn
    from sandman.sessions import SessionSpec

MAX_SESSIONS = 64
"""Live ones: each has a thread and a terminal. An agent has one, a team of them a handful."""


class Shell:
    """A session with what it was started with."""

    def __init__(self, spec: SessionSpec, path: str, session: Session, startup: Turn) -> None:
        self.spec = spec
        self.path = path
        self.session = session
        self.startup = startup
        self.started_at = time.time()

    @property
    def info(self) -> SessionInfo:
        """What callers are told."""
        return SessionInfo(
            name=self.spec.name,
            state=self.session.state,
            shell=self.path,
            pid=self.session.process.pid,
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started_at)),
            command_id=self.session.command_id,
            exit_code=self.session.exit_code,
            cut_off=self.session.is_cut_off,
        )


class Shells:
    """All sessions by name: the live ones, and those that ended by themselves."""

    def __init__(self, processes: Processes) -> None:
        self.boot_id = processes.boot_id
        self._processes = processes
        self._shells: dict[str, Shell] = {}
        self._starting: dict[str, SessionSpec] = {}
        """Names that are taken by starts under way."""
        self._lock = threading.Lock()
        self._started = threading.Condition(self._lock)

    def all(self) -> list[Shell]:
        """In the order of their starts."""
        with self._lock:
            return list(self._shells.values())

    def find(self, name: str) -> Shell:
        """The session of this name.

        Raises:
            NotFoundError: there is none.
        """
        with self._lock:
            shell = self._shells.get(name)
        if shell is None:
            raise NotFoundError(f"no session {name[:64]}")
        return shell

    def open(self, spec: SessionSpec) -> Shell:
        """Start a session, or find the one that this very call started before.

        Raises:
            ConflictError: the name is taken, there are too many, or it was closed meanwhile.
            SandmanError: it cannot be started.
        """
        known = self._reserve(spec)
        if known is not None:
            return known
        shell = None
        try:
            # Not under the lock: a start that hangs, as in a file system, is nobody else's matter.
            shell = self._start(spec)
        finally:
            is_wanted = self._settle(spec, shell)
        if not is_wanted:
            self._end(shell)
            raise ConflictError(f"session {spec.name} was closed while it started")
        return shell

    def _reserve(self, spec: SessionSpec) -> Shell | None:
        """Take the name; the session that this very call started before, where there is one."""
        with self._started:
            if spec.key is not None:
                self._started.wait_for(lambda: self._starting.get(spec.name) != spec)
            known = self._shells.get(spec.name)
            if known is not None and spec.key is not None and known.spec == spec:
                return known
            is_live = known is not None and not known.session.is_over
            if is_live or spec.name in self._starting:
                raise ConflictError(f"there is a session {spec.name}", field="name")
            live = sum(not shell.session.is_over for shell in self._shells.values())
            live += len(self._starting)
            if live >= MAX_SESSIONS:
                raise ConflictError(f"{live} sessions are open: close one")
            self._shells.pop(spec.name, None)
            self._make_room()
            self._starting[spec.name] = spec
        return None

    def _settle(self, spec: SessionSpec, shell: Shell | None) -> bool:
        """The start is over; whether nobody has closed the session meanwhile."""
        with self._started:
            if self._starting.get(spec.name) is not spec:
                return False
            del self._starting[spec.name]
            if shell is not None:
                self._shells[spec.name] = shell
            self._started.notify_all()
        return True

    def _make_room(self) -> None:
        ended = [name for name, shell in self._shells.items() if shell.session.is_over]
        for name in ended[: max(0, len(self._shells) - MAX_SESSIONS)]:
            del self._shells[name]

    def ready(self, shell: Shell, exchange: Exchange) -> SessionInfo:
        """Wait until it can be used. One that could and has ended since tells that, to whoever asks again.

        Raises:
            ConflictError: it did not come up; then it is gone.
        """
        result = shell.startup.wait(exchange, shell.spec.startup_timeout_s)
        if result.done and result.state != ENDED:
            return shell.info._replace(startup=result.output)
        self.close(shell.spec.name, only=shell)
        why = f"was not ready after {shell.spec.startup_timeout_s:g} s"
        if result.done:
            why = f"ended with exit code {result.exit_code}"
        raise ConflictError(
            f"the shell {why}; rc=false starts it without its start-up files",
            facts={"output": (result.output + result.notices).decode("utf-8", "replace")[-2000:]},
        )

    def close(self, name: str, key: str | None = None, only: Shell | None = None) -> None:
        """End a session with all that it started; the name is free at once.

        Args:
            name: whose it is.
            key: only the session that was started under it is meant: its starter may not know whether it was.
            only: another session, that has the name by now, is left alone.
        """
        with self._started:
            known = self._shells.get(name)
            spec = known.spec if known is not None else self._starting.get(name)
            if key is not None and (spec is None or spec.key != key):
                return
            if only is not None and known is not only:
                return
            self._starting.pop(name, None)
            self._started.notify_all()
            shell = self._shells.pop(name, None)
        if shell is not None:
            self._end(shell)

    def _end(self, shell: Shell) -> None:
        shell.session.close()
        if not shell.session.is_over:
            return  # its own thread sees to it
        process = shell.session.process
        others = functools.partial(self._processes.others, process)
        try:
            threading.Thread(target=end_survivors, args=(process, others), daemon=True).start()
        except RuntimeError:  # the sandbox's limit of processes is reached: the caller waits
            end_survivors(process, others)

    def _start(self, spec: SessionSpec) -> Shell:
        process = self._processes.shelter(spec.name)
        try:
            shell = self._spawn(spec, process)
        except StartFailedError as failure:
            self._processes.evict(process)
            raise _not_started(failure) from None
        except BaseException:
            self._processes.evict(process)
            raise
        try:
            threading.Thread(target=shell.session.run, daemon=True).start()
        except RuntimeError as error:  # the sandbox's limit of processes is reached
            kill_now(process, self._processes.others(process))
            shell.session.abandon()
            raise InternalError(f"no thread for the session: {error}") from error
        return shell

    def _spawn(self, spec: SessionSpec, process: Process) -> Shell:
        environment = (*script.SHELL_VARIABLES, *script.NO_PAGER, *spec.env)
        wanted = wire.ExecSpec(argv=("",), cwd=spec.cwd, env=environment, user=spec.user)
        program = plan_shell(wanted, self._processes.sandbox, process.tag.decode(), spec.shell)
        path = program.paths[0]
        terminal = _terminal(spec)
        program = program._replace(argv=script.launch(path, terminal.path))
        try:
            ways = Ways(by_pipe=not script.is_bash(path))
        except BaseException:
            terminal.close()
            raise
        try:
            if program.user is not None:
                terminal.give(program.user.uid)
                ways.give(program.user.uid)
            self._processes.open_shell(process, program, ways.theirs)
        except BaseException:
            terminal.close()
            for fd in ways.ours:
                os.close(fd)
            raise
        finally:
            for fd in set(ways.theirs):
                os.close(fd)
        others = functools.partial(self._processes.others, process)
        session = Session(spec.name, process, terminal, ways.ours, others)
        startup = session.ask(TurnSpec(RUN, script.startup(rc=spec.rc)), self.boot_id)
        return Shell(spec, os.fsdecode(path), session, startup)


class Ways:
    """What a shell is connected by: a socket, where it reads its lines, and where it talks to itself.

    `by_pipe`: it reads from a pipe of its own, else from the socket.
    """

    def __init__(self, *, by_pipe: bool) -> None:
        opened: list[int] = []
        try:
            ours, theirs = socket.socketpair()
            opened += (control := ours.detach(), stdin := theirs.detach())
            remarks, stderr = os.pipe()
            opened += (remarks, stderr)
            if by_pipe:
                stdout, lines = os.pipe()
                opened += (stdout, lines)
                os.write(lines, script.FIRST_LINE)
            else:
                stdout, lines = stderr, os.dup(control)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        self.ours = (control, lines, remarks)
        self.theirs = Descriptors(stdin, stdout, stderr)

    def give(self, uid: int) -> None:
        """Let this user's shell open its pipe by path."""
        os.fchown(self.theirs.stdout, uid, -1)


def _not_started(failure: StartFailedError) -> SandmanError:
    """A session has no result that could tell it."""
    text = failure.message.strip()
    match failure.reason:
        case wire.NOT_FOUND:
            return PathNotFoundError(text, field="shell")
        case wire.TOO_LONG:
            return BadRequestError(text, field="env")
        case wire.NO_ROOM | wire.BUSY:
            return UnreachableError(text, cause="sandbox", retry_after=1.0)
        case _:
            return PathDeniedError(text, field="shell")


def _terminal(spec: SessionSpec) -> Terminal:
    try:
        return Terminal(spec.rows, spec.columns)
    except OSError as error:
        raise PathNotFoundError(
            f"no terminal to be had: {error.strerror}; a session needs /dev/ptmx and /dev/pts"
        ) from error
