"""What programs say to each other about commands: specification, result; the handshake.

Bytes in, values out and back; no sockets. Standard library only: the daemon ships this file.
NamedTuple and not dataclass, because the daemon pays for each import at each pod's start, and
`dataclasses` brings `inspect`.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, NamedTuple, Self

# Told on under this name: `wire.Frame` and the like are what programs write.
# ruff: noqa: PLC0414
from sandman.errors import BadRequestError
from sandman.fields import Fields as Fields
from sandman.fields import load_object as load_object
from sandman.frames import ERROR as ERROR
from sandman.frames import EXIT as EXIT
from sandman.frames import FRAME_TYPES as FRAME_TYPES
from sandman.frames import GAP as GAP
from sandman.frames import HEADER as HEADER
from sandman.frames import KEEPALIVE as KEEPALIVE
from sandman.frames import KEEPALIVE_S as KEEPALIVE_S
from sandman.frames import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from sandman.frames import REQUEST as REQUEST
from sandman.frames import STARTED as STARTED
from sandman.frames import STDERR as STDERR
from sandman.frames import STDIN as STDIN
from sandman.frames import STDIN_CLOSE as STDIN_CLOSE
from sandman.frames import STDOUT as STDOUT
from sandman.frames import Frame as Frame
from sandman.frames import FrameDecoder as FrameDecoder
from sandman.frames import encode_frame as encode_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.terminal import TerminalSpec

# --- a command -----------------------------------------------------------------------------------

DEFAULT_OUTPUT_LIMIT = 10 * 1024 * 1024
"""Bytes kept of each stream, half head and half tail. 10 MiB: what inspect_ai's contract asks for."""
MAX_OUTPUT_LIMIT = 64 * 1024 * 1024
TERM_GRACE_S = 5.0
"""Seconds from TERM to KILL when a command is timed out or cancelled."""
_MOST = 2**63 - 1
MAX_ATTACHED_GRACE_S = 300.0
"""What shall outlive its reader for longer is a detached command."""


class ExecSpec(NamedTuple):
    """A command to run.

    Exactly one of `argv` and `shell` is given. `shell` runs by the image's bash, else its sh, and
    not as a login shell unless `login`. `timeout_s` None: no limit. `env` is merged over the
    sandbox's (`env_mode` "merge") or is all there is ("replace"). `cwd` None: the sandbox's working
    directory; a relative one starts there. `user`: name or uid, None: the sandbox's own.

    `exec_id` names the command: the same name with the same specification never runs twice.
    `detached`: no reader holds it up and none has to be there. Otherwise it is ended when nobody has
    read for `attached_grace_s`; None: what the call says. `stdin_open`: input may follow later.
    `terminal`: it runs in a terminal of its own, which is stdin, stdout and stderr in one.
    """

    argv: tuple[str, ...] | None = None
    shell: str | None = None
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    env_mode: str = "merge"
    user: str | int | None = None
    stdin: bytes | None = None
    timeout_s: float | None = None
    merge_stderr: bool = False
    output_limit: int = DEFAULT_OUTPUT_LIMIT
    login: bool = False
    exec_id: str | None = None
    detached: bool = False
    attached_grace_s: float | None = None
    stdin_open: bool = False
    terminal: TerminalSpec | None = None

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body; defaults are left out."""
        body: dict[str, object] = {
            name: value
            for name, value in self._asdict().items()
            if name not in {"argv", "env", "stdin", "terminal"}
            and value != self._field_defaults[name]
        }
        if self.argv is not None:
            body["argv"] = list(self.argv)
        if self.env:
            body["env"] = dict(self.env)
        if self.stdin is not None:
            body["stdin_b64"] = binascii.b2a_base64(self.stdin, newline=False).decode()
        if self.terminal is not None:
            body["terminal"] = self.terminal.to_json()
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the members of a JSON body.

        Raises:
            BadRequestError: names the field at fault.
        """
        reader = Fields(body)
        argv = reader.texts("argv")
        shell = reader.text("shell")
        if (argv is None) == (shell is None):
            raise BadRequestError("give exactly one of argv and shell", field="argv")
        if argv is not None and (not argv or not argv[0]):
            raise BadRequestError("argv needs a program as its first item", field="argv")
        spec = cls(
            argv=argv,
            shell=shell,
            cwd=reader.text("cwd"),
            env=reader.environment("env"),
            env_mode=reader.choice("env_mode", ("merge", "replace")),
            user=reader.text_or_int("user"),
            stdin=reader.data("stdin"),
            timeout_s=reader.seconds("timeout_s"),
            merge_stderr=reader.flag("merge_stderr"),
            output_limit=reader.count("output_limit", DEFAULT_OUTPUT_LIMIT, MAX_OUTPUT_LIMIT),
            login=reader.flag("login"),
            exec_id=reader.text("exec_id"),
            detached=reader.flag("detached"),
            attached_grace_s=reader.seconds("attached_grace_s"),
            stdin_open=reader.flag("stdin_open"),
            terminal=_terminal(reader),
        )
        if spec.terminal is not None and spec.stdin is not None:
            raise reader.fail(
                "stdin", "absent with a terminal: what is typed comes after its start"
            )
        if (spec.attached_grace_s or 0) > MAX_ATTACHED_GRACE_S:
            raise reader.fail("attached_grace_s", f"at most {MAX_ATTACHED_GRACE_S:.0f} seconds")
        reader.finish()
        return spec


def _terminal(reader: Fields) -> TerminalSpec | None:
    value = reader.raw("terminal")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise reader.fail("terminal", "an object")
    from sandman.terminal import TerminalSpec  # noqa: PLC0415 - few commands have one

    return TerminalSpec.from_json(value)


class ExecResult(NamedTuple):
    """How a command ended. A failure of the command is told here, never raised.

    `exit_code` is the shell's convention: 0-255, 128 + n when killed by signal n (then `signal` is
    n), 127 no such program, 126 not executable (then `start_error` says which). `abandoned`: the daemon
    ended it because nobody read it any more. `stdout` and
    `stderr` are exact bytes, up to the output limit: head and tail when `*_truncated`, while
    `*_bytes` counts all that the command wrote. Times in seconds, memory in bytes; None: not measured.
    """

    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    abandoned: bool = False
    start_error: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    oom_killed: bool | None = None
    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    throttled_s: float | None = None
    exec_id: str = ""
    boot_id: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and not self.abandoned

    @property
    def stdout_text(self) -> str:
        """`stdout` as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as UTF-8, undecodable bytes replaced."""
        return self.stderr.decode("utf-8", "replace")

    def to_json(self, *, streams: bool = True) -> dict[str, object]:
        """The members of the JSON body.

        A stream is text (`stdout`) where it is valid UTF-8; otherwise that text has replacement
        characters and `stdout_b64` has the exact bytes.
        """
        body: dict[str, object] = dict(self._asdict())
        for name in ("stdout", "stderr"):
            data: bytes = body.pop(name)  # type: ignore[assignment]
            if streams:
                body.update(_stream_json(name, data))
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse a result; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is no result; it names the member at fault.
        """
        reader = Fields(body)
        if not reader.has("exit_code"):
            raise reader.fail("exit_code", "a whole number")
        return cls(
            exit_code=reader.count("exit_code", 0, 255),
            signal=reader.count_or_none("signal", 127),
            timed_out=reader.flag("timed_out"),
            abandoned=reader.flag("abandoned"),
            start_error=reader.text("start_error"),
            stdout=reader.stream("stdout"),
            stderr=reader.stream("stderr"),
            stdout_bytes=reader.count("stdout_bytes", 0, _MOST),
            stderr_bytes=reader.count("stderr_bytes", 0, _MOST),
            stdout_truncated=reader.flag("stdout_truncated"),
            stderr_truncated=reader.flag("stderr_truncated"),
            oom_killed=reader.flag("oom_killed") if reader.has("oom_killed") else None,
            wall_s=reader.amount("wall_s") or 0.0,
            cpu_s=reader.amount("cpu_s"),
            peak_memory_bytes=reader.count_or_none("peak_memory_bytes", _MOST),
            throttled_s=reader.amount("throttled_s"),
            exec_id=reader.text("exec_id") or "",
            boot_id=reader.text("boot_id") or "",
        )


def _stream_json(name: str, data: bytes) -> dict[str, object]:
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {
            name: data.decode("utf-8", "replace"),
            f"{name}_b64": binascii.b2a_base64(data, newline=False).decode(),
        }


# --- the handshake -------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What the gateway tells a daemon whose pod it has just taken.

    `claim_id` names the claim: the same one again is answered alike, another is refused.
    `previous_boot_id` is the start of the daemon before an image swap: a daemon that is still that
    one must refuse, it is about to be stopped. `env`, `workdir` and `user` hold for all commands.
    """

    claim_id: str
    previous_boot_id: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    user: str | int | None = None

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
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
        claim_id = reader.text("claim_id")
        if not claim_id:
            raise reader.fail("claim_id", "a string that is not empty")
        claim = cls(
            claim_id=claim_id,
            previous_boot_id=reader.text("previous_boot_id"),
            env=reader.environment("env"),
            workdir=reader.text("workdir"),
            user=reader.text_or_int("user"),
        )
        reader.finish()
        return claim


class Info(NamedTuple):
    """What a daemon says of itself: answer of `GET /v1/info` and of the claim."""

    boot_id: str
    version: str = ""
    claim_id: str | None = None
    uptime_s: float = 0.0
    workdir: str = "/"
    uid: int = 0
    gid: int = 0
    running: int = 0

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        return dict(self._asdict())

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is not a daemon.
        """
        reader = Fields(body)
        boot_id = reader.text("boot_id")
        if not boot_id:
            raise reader.fail("boot_id", "a string that is not empty")
        return cls(
            boot_id=boot_id,
            version=reader.text("version") or "",
            claim_id=reader.text("claim_id"),
            uptime_s=reader.seconds("uptime_s") or 0.0,
            workdir=reader.text("workdir") or "/",
            uid=reader.count("uid", 0, 2**32),
            gid=reader.count("gid", 0, 2**32),
            running=reader.count("running", 0, 2**32),
        )
