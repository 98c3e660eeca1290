"""What programs say to each other about sessions: named shells that keep their state.

A *turn* is one thing that a caller asks of a session: run a command, type into the one that runs,
interrupt it. Standard library only: the daemon ships this file.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple, Self

from sandman import names
from sandman.fields import Fields
from sandman.wire import DEFAULT_OUTPUT_LIMIT, MAX_OUTPUT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

IDLE = "idle"
RUNNING = "running"
ENDED = "ended"
STATES = (IDLE, RUNNING, ENDED)

RUN = "run"
INPUT = "input"
INTERRUPT = "interrupt"

LEAVE = "leave"

DEFAULT_NAME = "default"
GRACE_S = 2.0
"""From Ctrl-C to KILL: an interpreter that cleans up after itself is done by then, and whoever waits
for a command that ignores it is not held up for long."""
MAX_GRACE_S = 60.0
STARTUP_S = 15.0
"""For the shell's start-up files; activating a large conda environment takes three on a busy node."""
MAX_STARTUP_S = 300.0
ROWS = 24
COLUMNS = 80
_MAX_CELLS = 65535
"""As of any terminal: what the kernel can hold."""
MAX_EXPECT = 32
MAX_EXPECT_BYTES = 4096
"""Of one text to wait for: so much output is held back while it may still turn out to be that."""

_MOST = 2**63 - 1


class SessionSpec(NamedTuple):
    """A shell to be started. `key`: whoever asks again with the same one means the same session."""

    name: str = DEFAULT_NAME
    shell: str | None = None
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    user: str | int | None = None
    rc: bool = True
    rows: int = ROWS
    columns: int = COLUMNS
    startup_timeout_s: float = STARTUP_S
    key: str | None = None

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body, without those that say nothing."""
        body = {k: v for k, v in self._asdict().items() if v is not None and k != "env"}
        if self.env:
            body["env"] = dict(self.env)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the members of a JSON body.

        Raises:
            BadRequestError: names the field at fault.
        """
        reader = Fields(body)
        spec = cls(
            name=_id(reader, "name") or DEFAULT_NAME,
            shell=reader.text("shell"),
            cwd=reader.text("cwd"),
            env=reader.environment("env"),
            user=reader.text_or_int("user"),
            rc=reader.flag("rc", default=True),
            rows=reader.count("rows", ROWS, _MAX_CELLS, 1),
            columns=reader.count("columns", COLUMNS, _MAX_CELLS, 1),
            startup_timeout_s=_seconds(reader, "startup_timeout_s", STARTUP_S, MAX_STARTUP_S),
            key=_id(reader, "key"),
        )
        if spec.shell == "":
            raise reader.fail("shell", "a name or a path")
        reader.finish()
        return spec


class TurnSpec(NamedTuple):
    """What a caller asks of a session.

    `data`: the command, what is typed, or the id of the one command that an interruption is meant for. `expect`: literal texts, any of which ends the turn.
    `on_timeout`: `interrupt` or `leave`, for a command whose time is up.
    """

    kind: str
    data: bytes = b""
    command_id: str | None = None
    timeout_s: float | None = None
    on_timeout: str = INTERRUPT
    interactive: bool = False
    expect: tuple[str, ...] = ()
    output_limit: int = DEFAULT_OUTPUT_LIMIT
    grace_s: float = GRACE_S

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        body: dict[str, object] = {"output_limit": self.output_limit}
        if self.command_id is not None:
            body["command_id"] = self.command_id
        if self.kind == INTERRUPT:
            target = {"target": self.data.decode()} if self.data else {}
            return {**body, **target, "grace_s": self.grace_s}
        if self.timeout_s is not None:
            body["timeout_s"] = self.timeout_s
        if self.expect:
            body["expect"] = list(self.expect)
        if self.kind == INPUT:
            return {**body, "data_b64": base64.b64encode(self.data).decode()}
        body["command"] = self.data.decode("utf-8", "surrogateescape")
        return {**body, "interactive": self.interactive, "on_timeout": self.on_timeout}

    @classmethod
    def from_json(cls, kind: str, body: Mapping[str, object]) -> Self:
        """Parse the members of a JSON body.

        Raises:
            BadRequestError: names the field at fault.
        """
        reader = Fields(body)
        spec = cls(
            kind,
            command_id=_id(reader, "command_id"),
            output_limit=reader.count("output_limit", DEFAULT_OUTPUT_LIMIT, MAX_OUTPUT_LIMIT),
        )
        if kind == INTERRUPT:
            target = (_id(reader, "target") or "").encode()
            grace_s = _seconds(reader, "grace_s", GRACE_S, MAX_GRACE_S)
            spec = spec._replace(data=target, grace_s=grace_s)
        else:
            spec = spec._replace(timeout_s=reader.seconds("timeout_s"), expect=_expect(reader))
        if kind == RUN:
            command = reader.text("command")
            if command is None:
                raise reader.fail("command", "a string")
            interactive = reader.flag("interactive")
            choices = (LEAVE, INTERRUPT) if interactive else (INTERRUPT, LEAVE)
            spec = spec._replace(
                data=command.encode("utf-8", "surrogateescape"),
                interactive=interactive,
                on_timeout=reader.choice("on_timeout", choices),
            )
        elif kind == INPUT:
            spec = spec._replace(data=reader.data("data") or b"")
        reader.finish()
        return spec


class SessionResult(NamedTuple):
    """How a turn ended, or that it has not (`done` false): then ask again with the same id.

    `state`: of the session. `exit_code`: of the command; None while it runs. Once the state is
    `ended` it is the shell's own, 128 + n when a signal ended it. `expected`: the text that ended the
    turn; it is the last of `output`. `notices`: what came beside the command. `cut_off`: the shell has
    ended since the command closed the descriptors by which it is spoken to; then `exit_code` is 129.
    """

    command_id: str
    done: bool = True
    state: str = IDLE
    exit_code: int | None = None
    timed_out: bool = False
    interrupted: bool = False
    expected: str | None = None
    output: bytes = b""
    notices: bytes = b""
    output_bytes: int = 0
    output_truncated: bool = False
    cut_off: bool = False
    wall_s: float = 0.0
    boot_id: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and not self.interrupted

    @property
    def output_text(self) -> str:
        """`output` as UTF-8, undecodable bytes replaced."""
        return self.output.decode("utf-8", "replace")

    @property
    def notices_text(self) -> str:
        """`notices` as UTF-8, undecodable bytes replaced."""
        return self.notices.decode("utf-8", "replace")

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body; a stream that is no UTF-8 also as base64."""
        body: dict[str, object] = dict(self._asdict())
        for name in ("output", "notices"):
            _put_bytes(body, name)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is not a daemon.
        """
        reader = Fields(body)
        command_id = reader.text("command_id")
        if not command_id:
            raise reader.fail("command_id", "a string that is not empty")
        values = {name: body[name] for name in cls._fields if name in body}
        values["state"] = reader.choice("state", STATES)
        for name in ("output", "notices"):
            values[name] = _get_bytes(body, name)
        return cls(**values)  # type: ignore[arg-type]


class SessionInfo(NamedTuple):
    """A session as the daemon sees it.

    `shell`: `bash` or `sh`. `command_id`: the turn that the running command began with. `exit_code`:
    the shell's, once it has ended; `cut_off` as in SessionResult. `startup`: what the start-up files wrote, told at creation only.
    """

    name: str
    state: str = IDLE
    shell: str = "sh"
    pid: int = 0
    started_at: str = ""
    command_id: str | None = None
    exit_code: int | None = None
    cut_off: bool = False
    startup: bytes = b""

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        body: dict[str, object] = dict(self._asdict())
        _put_bytes(body, "startup")
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is not a daemon.
        """
        reader = Fields(body)
        name = reader.text("name")
        if not name:
            raise reader.fail("name", "a string that is not empty")
        exit_code = reader.raw("exit_code")
        return cls(
            name=name,
            state=reader.choice("state", STATES),
            shell=reader.text("shell") or "sh",
            pid=reader.count("pid", 0, _MOST),
            started_at=reader.text("started_at") or "",
            command_id=reader.text("command_id"),
            exit_code=exit_code if isinstance(exit_code, int) else None,
            cut_off=reader.flag("cut_off"),
            startup=_get_bytes(body, "startup"),
        )


def _id(reader: Fields, name: str) -> str | None:
    text = reader.text(name)
    if text is not None and not names.is_exec_id(text):
        raise reader.fail(name, "1 to 64 of [A-Za-z0-9._-] and not dots alone")
    return text


def _seconds(reader: Fields, name: str, default: float, most: float) -> float:
    seconds = reader.seconds(name)
    if seconds is not None and seconds > most:
        raise reader.fail(name, f"at most {most:g} seconds")
    return default if seconds is None else seconds


def _expect(reader: Fields) -> tuple[str, ...]:
    texts = reader.texts("expect") or ()
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in texts]
    if len(texts) > MAX_EXPECT or not all(0 < size <= MAX_EXPECT_BYTES for size in sizes):
        raise reader.fail(
            "expect", f"at most {MAX_EXPECT} texts of 1 to {MAX_EXPECT_BYTES} bytes each"
        )
    return texts


def _put_bytes(body: dict[str, object], name: str) -> None:
    data = body[name]
    assert isinstance(data, bytes)  # noqa: S101 - for the type checker
    body[name] = data.decode("utf-8", "replace")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        body[f"{name}_b64"] = base64.b64encode(data).decode()


def _get_bytes(body: Mapping[str, object], name: str) -> bytes:
    exact = body.get(f"{name}_b64")
    if isinstance(exact, str):
        return base64.b64decode(exact)
    return str(body.get(name, "")).encode()
