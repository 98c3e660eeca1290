"""Frames: how output, input and results share one stream of bytes.

A *frame* is `type u8 · length u32 big-endian · payload`. A stream of frames that ends without
EXIT or ERROR tells nothing about the command: the reader must raise OutcomeUnknownError.
Standard library only: the daemon ships this file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
