# Written by scripts/unasync.py from sandman/_async/session.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""A shell of a sandbox that keeps its state: run commands in it one after the other, talk to them."""

from __future__ import annotations

import uuid
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, Self, TypedDict
from urllib.parse import quote

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults
from sandman._core.config import REPLY_MARGIN_S
from sandman._core.sources import as_bytes
from sandman._sync.process import KILL_LIMIT_S, POLL_S
from sandman._sync.transport import Call
from sandman.errors import BadRequestError, CallerError, NotFoundError, SandmanError
from sandman.sessions import (
    GRACE_S,
    INPUT,
    INTERRUPT,
    LEAVE,
    RUN,
    SessionInfo,
    SessionResult,
    SessionSpec,
    TurnSpec,
)
from sandman.wire import DEFAULT_OUTPUT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from sandman._sync.transport import Transport


class SessionOptions(TypedDict, total=False):
    """How a session's shell is started; every option may be left out.

    `shell`: name or path, else the image's bash, else sh. `cwd`: where it starts, relative to the
    sandbox's. `env`: variables, merged over the sandbox's. `user`: name or uid. `rc`: bash reads its
    start-up files, which activate environments in many images (true). `rows`, `columns`: of its
    terminal (24, 80). `startup_timeout_s`: for the start-up files (15).
    """

    shell: str | None
    cwd: str | None
    env: Mapping[str, str]
    user: str | int | None
    rc: bool
    rows: int
    columns: int
    startup_timeout_s: float


class Session:
    """A session of a sandbox. Made by `Sandbox.session`, `attach_session` and `sessions`.

    As a block it closes the session at its end.
    """

    def __init__(
        self,
        transport: Transport,
        sandbox: str,
        sandbox_path: str,
        name: str,
        info: SessionInfo | None = None,
    ) -> None:
        if not names.is_exec_id(name):
            raise BadRequestError(
                "name must be 1 to 64 of [A-Za-z0-9._-] and not dots alone", field="name"
            )
        self._transport = transport
        self._sandbox = sandbox
        self._path = f"{sandbox_path}/sessions/{quote(name, safe='')}"
        self.name = name
        self.info = info
        """What the sandbox said of it when it was last asked; None: not yet."""

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.info.state if self.info else 'state unknown'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What went wrong in the block is the news, not that closing failed as well.
        with suppress(*(() if error is None else (SandmanError,))):
            with anyio.move_on_after(KILL_LIMIT_S, shield=True):
                _close(self._transport, self._sandbox, self._path, KILL_LIMIT_S)

    def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        on_timeout: Literal["interrupt", "leave"] | None = None,
        interactive: bool = False,
        expect: Sequence[str] = (),
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        command_id: str | None = None,
    ) -> SessionResult:
        """Run a command, as long as it likes, and wait for its end. Being cancelled interrupts it.

        Args:
            command: what the shell is given, lines and here-documents and all.
            timeout_s: then it is interrupted, as by `interrupt()`, and the result says `timed_out`.
            on_timeout: `leave`: it goes on, the result comes with what it wrote so far; `input()`
                brings the rest. The default for interactive commands.
            interactive: its stdin is the terminal, to be typed on by `input`; otherwise empty.
            expect: return as soon as it has written one of these texts; it goes on.
            output_limit: bytes of output that the result holds, head and tail halves.
            command_id: a name of your own for this call; under it the command never runs twice.

        Raises:
            ConflictError: another command runs, or the session has ended.
            SandmanError: the sandbox or the way to it failed.
        """
        spec = TurnSpec(
            RUN,
            command.encode("utf-8", "surrogateescape"),
            command_id or uuid.uuid4().hex,
            timeout_s,
            on_timeout or (LEAVE if interactive else INTERRUPT),
            interactive,
            tuple(expect),
            output_limit,
        )
        try:
            return self._ask(spec)
        except SandmanError:
            raise
        except BaseException:
            if not interactive:
                with anyio.move_on_after(KILL_LIMIT_S, shield=True):
                    self._interrupt_quietly(spec)
            raise

    def input(
        self,
        data: str | bytes = "",
        *,
        expect: Sequence[str] = (),
        timeout_s: float | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        command_id: str | None = None,
    ) -> SessionResult:
        """Type on the terminal of the command that runs, and wait for one of these texts, or its end.

        Without `data` it waits, also for the rest of a command that was left and has ended since.

        Raises:
            ConflictError: no command runs, or somebody else waits for it.
            SandmanError: the sandbox or the way to it failed.
        """
        typed = bytes(as_bytes(data))
        turn_id = command_id or uuid.uuid4().hex
        spec = TurnSpec(INPUT, typed, turn_id, timeout_s, LEAVE, False, tuple(expect), output_limit)
        return self._ask(spec)

    def interrupt(
        self, *, grace_s: float = GRACE_S, command_id: str | None = None
    ) -> SessionResult:
        """Ctrl-C; what ignores it for `grace_s` is killed with all that it started. The shell stays.

        Returns when the shell is back, with what the command wrote since the last result. Nothing
        happens when none runs.

        Raises:
            SandmanError: the sandbox or the way to it failed.
        """
        turn_id = command_id or uuid.uuid4().hex
        return self._ask(TurnSpec(INTERRUPT, command_id=turn_id, grace_s=grace_s))

    def refresh(self) -> SessionInfo:
        """Ask for the present state; kept in `info`.

        Raises:
            NotFoundError: no such session, or it was closed.
        """
        answer = self._transport.json(Call("GET", self._path, sandbox=self._sandbox))
        self.info = parse_session(answer)
        return self.info

    def close(self) -> None:
        """End it with all that it started. May be repeated: gone is gone, also with its sandbox.

        Raises:
            SandmanError: the way to the sandbox failed.
        """
        _close(self._transport, self._sandbox, self._path)

    def _ask(self, spec: TurnSpec) -> SessionResult:
        while True:
            call = self._call(spec, POLL_S)
            call.silence_s = POLL_S + REPLY_MARGIN_S
            result = _parse_result(self._transport.json(call))
            if result.done:
                return result

    def _interrupt_quietly(self, spec: TurnSpec) -> None:
        target = (spec.command_id or "").encode()
        call = self._call(TurnSpec(INTERRUPT, target, uuid.uuid4().hex), 0)
        call.patience_s = call.silence_s = KILL_LIMIT_S
        with suppress(SandmanError):
            self._transport.json(call)

    def _call(self, spec: TurnSpec, wait_s: float) -> Call:
        path = f"{self._path}/{spec.kind}?wait_s={wait_s}"
        call = Call.with_json("POST", path, spec.to_json())
        call.sandbox = self._sandbox
        return call


def open_session(
    transport: Transport, sandbox: str, sandbox_path: str, name: str, options: SessionOptions
) -> Session:
    """Start a session; asked again over a connection that broke, it is the same one.

    A call that is cancelled, or ends without an answer, closes what it may have started.
    """
    if unknown := options.keys() - SessionOptions.__annotations__.keys():
        raise TypeError(f"unknown option {min(unknown)!r}: see SessionOptions")
    values = dict(options)
    env: Mapping[str, str] = values.pop("env", {})  # type: ignore[assignment]
    spec = SessionSpec(name, env=tuple(env.items()), key=uuid.uuid4().hex)
    spec = spec._replace(**values)  # type: ignore[arg-type]
    call = Call.with_json("POST", f"{sandbox_path}/sessions", spec.to_json())
    call.sandbox = sandbox
    call.silence_s = spec.startup_timeout_s + REPLY_MARGIN_S
    try:
        info = parse_session(transport.json(call))
    except CallerError:
        raise  # an answer: nothing was started
    except BaseException:
        if call.sent:
            # By its key: somebody else's session may have the name. Not asked for first: that would
            # wait for start-up files, and they may be why nobody wanted to wait any longer.
            path = f"{call.path}/{quote(name, safe='')}?key={spec.key}"
            with suppress(SandmanError), anyio.move_on_after(KILL_LIMIT_S, shield=True):
                _close(transport, sandbox, path, KILL_LIMIT_S)
        raise
    return Session(transport, sandbox, sandbox_path, info.name, info)


def _close(transport: Transport, sandbox: str, path: str, limit_s: float | None = None) -> None:
    """Close what this path names. `limit_s`: of the call itself, since no scope ends the sync twin's."""
    call = Call("DELETE", path, sandbox=sandbox, patience_s=limit_s, silence_s=limit_s)
    try:
        transport.json(call)
    except SandmanError as error:
        is_gone = isinstance(error, NotFoundError) or error.status == HTTPStatus.GONE
        if not is_gone or error.facts.get("foreign") is True:
            raise


def list_sessions(transport: Transport, sandbox: str, sandbox_path: str) -> list[Session]:
    """All sessions of the sandbox."""
    answer = transport.json(Call("GET", f"{sandbox_path}/sessions", sandbox=sandbox))
    items = answer.get("sessions") if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise faults.not_understood("a list of sessions", answer)
    found = [parse_session(item) for item in items]
    return [Session(transport, sandbox, sandbox_path, info.name, info) for info in found]


def parse_session(answer: object) -> SessionInfo:
    """A session out of an answer.

    Raises:
        InternalError: it is none.
    """
    try:
        return SessionInfo.from_json(answer)  # type: ignore[arg-type]
    except (BadRequestError, TypeError, AttributeError):
        raise faults.not_understood("a session", answer) from None


def _parse_result(answer: object) -> SessionResult:
    try:
        return SessionResult.from_json(answer)  # type: ignore[arg-type]
    except (BadRequestError, TypeError, AttributeError):
        raise faults.not_understood("the result of a session", answer) from None
