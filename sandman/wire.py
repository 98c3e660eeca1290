"""What programs say to each other about commands: specification, result, frames.

Bytes in, values out and back; no sockets. Standard library only: the daemon ships this file.
NamedTuple and not dataclass, because the daemon pays for each import at each pod's start, and
`dataclasses` brings `inspect`; not that of `typing` either: see `records`.

A *frame* is `type u8 · length u32 big-endian · payload`. A stream of frames that ends without
EXIT or ERROR tells nothing about the command: the reader must raise OutcomeUnknownError.
"""

from __future__ import annotations

import binascii
import struct

from sandman.claims import Claim as Claim  # noqa: PLC0414 - told on: `wire.Claim`
from sandman.claims import Info as Info  # noqa: PLC0414
from sandman.claims import LeaseTerms as LeaseTerms  # noqa: PLC0414
from sandman.errors import BadRequestError
from sandman.fields import Fields as Fields  # noqa: PLC0414 - told on: `wire.Fields`
from sandman.fields import load_object as load_object  # noqa: PLC0414
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from sandman.terminal import TerminalSpec

# --- frames --------------------------------------------------------------------------------------

STARTED = 1
"""Server: JSON {exec_id, boot_id}; the command runs."""
STDOUT = 2
STDERR = 3
KEEPALIVE = 4
"""Server: empty; sent after KEEPALIVE_S without output so that nothing between closes the stream."""
EXIT = 5
"""Server: JSON of ExecResult without the streams; the last frame."""
ERROR = 6
"""Server: JSON problem document; the last frame."""
GAP = 7
"""Server: JSON {stream, from, to}: bytes of that stream that are no longer kept; the next ones start
at `to`. Whoever counts offsets goes on from there."""
REQUEST = 16
"""Client: JSON of ExecSpec; the first frame of a framed request."""
STDIN = 17
STDIN_CLOSE = 18
"""Client: empty; the command reads end of file after what came before."""

FRAME_TYPES = {
    STARTED: "started", STDOUT: "stdout", STDERR: "stderr", KEEPALIVE: "keepalive", EXIT: "exit",
    ERROR: "error", GAP: "gap", REQUEST: "request", STDIN: "stdin", STDIN_CLOSE: "stdin_close",
}  # fmt: skip

HEADER = struct.Struct(">BI")
KEEPALIVE_S = 15.0
"""Half of the shortest idle limit seen in common load balancers (30 s)."""
MAX_FRAME_BYTES = 4 * 1024 * 1024
"""A longer frame is a protocol error. 4 MiB: a REQUEST may hold 1 MiB of argv and 1 MiB of env, escaped."""


class Frame(NamedTuple):
    """One frame: its type (a key of FRAME_TYPES) and its payload."""

    type: int
    payload: bytes = b""


def encode_frame(kind: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return HEADER.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Bytes in at any split, frames out. Keeps at most one frame's bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames completed by these bytes.

        Raises:
            BadRequestError: unknown type or a length over MAX_FRAME_BYTES.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if kind not in FRAME_TYPES or length > MAX_FRAME_BYTES:
                raise BadRequestError(f"not a frame: type {kind}, length {length}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield Frame(kind, payload)

    @property
    def is_clean(self) -> bool:
        """Whether the bytes so far ended on a frame's border."""
        return not self._buffer


# --- a command -----------------------------------------------------------------------------------

DEFAULT_OUTPUT_LIMIT = 10 * 1024 * 1024
"""Bytes kept of each stream, half head and half tail. 10 MiB: what inspect_ai's contract asks for."""
MAX_OUTPUT_LIMIT = 64 * 1024 * 1024
NOT_FOUND = "not_found"
NOT_EXECUTABLE = "not_executable"
TOO_LONG = "arguments_too_long"
"""One argument or variable, or all of them together, are more than Linux takes."""
NO_ROOM = "no_room"
"""The sandbox has no process or no memory left just now."""
BUSY = "busy"
"""Something has the program open for writing."""
START_ERRORS = (NOT_FOUND, NOT_EXECUTABLE, TOO_LONG, NO_ROOM, BUSY)
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
        login = reader.flag("login")
        if login and shell is None:
            raise reader.fail("login", "absent with argv: a program is no shell")
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
            login=login,
            exec_id=reader.text("exec_id"),
            detached=reader.flag("detached"),
            attached_grace_s=reader.seconds("attached_grace_s", zero=True),
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
    n), 127 no such program, 126 not executable. `start_error` says why it did not start, one of
    START_ERRORS; None: it did. `abandoned`: the daemon
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
                body.update(stream_json(name, data))
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


def stream_json(name: str, data: bytes) -> dict[str, object]:
    """Bytes as members of JSON: text where it is valid UTF-8, otherwise with replacements and `…_b64` beside it."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {
            name: data.decode("utf-8", "replace"),
            f"{name}_b64": binascii.b2a_base64(data, newline=False).decode(),
        }
