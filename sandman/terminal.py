"""What programs say to each other about a terminal: its specification, and the WebSocket's text messages.

Binary messages are the terminal's bytes, both ways. A text message is a JSON object with one member, whose
name says what it is about. Standard library only: the daemon ships this file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Self

from sandman.errors import BadRequestError
from sandman.fields import Fields, load_object

if TYPE_CHECKING:
    from collections.abc import Mapping

SUBPROTOCOL = "sandman.v1.terminal"

MAX_SIZE = 65535
"""Rows, and columns: what the kernel can hold."""
DEFAULT_ROWS = 24
DEFAULT_COLS = 80
DEFAULT_TERM = "xterm-256color"
"""What most images know, of the terminals that people have."""
INPUT_WINDOW_BYTES = 256 * 1024
"""Input that a client sends without having heard that it was taken. It keeps as much, to send it again
on another connection."""

TAKEN_OVER = 4001
"""Close code for an exclusive connection when the next one has come."""

# --- what the daemon says ------------------------------------------------------------------------

STARTED = "started"
"""The first message: {exec_id, boot_id, stdin_bytes}; so much input was taken before."""
TAKEN = "taken"
"""{stdin_bytes}: input up to there was taken and need not be kept any more."""
GAP = "gap"
"""{stream, from, to}: output that is no longer kept; the next bytes start at `to`."""
KEEPALIVE = "keepalive"
"""{}: nothing to say, for so long."""
EXIT = "exit"
"""The result without its streams: the last message."""
ERROR = "error"
"""A problem document: the last message."""

# --- what the client says ------------------------------------------------------------------------

RESIZE = "resize"
"""{rows, cols}."""

MESSAGES = (STARTED, TAKEN, GAP, KEEPALIVE, EXIT, ERROR, RESIZE)


class TerminalSpec(NamedTuple):
    """A command's terminal: its size in characters, and its kind as TERM tells it."""

    rows: int = DEFAULT_ROWS
    cols: int = DEFAULT_COLS
    term: str = DEFAULT_TERM

    def to_json(self) -> dict[str, object]:
        """The members of the JSON object."""
        return dict(self._asdict())

    @classmethod
    def from_json(cls, body: Mapping[str, object], prefix: str = "terminal.") -> Self:
        """Parse the members of the JSON object.

        Raises:
            BadRequestError: names the member at fault.
        """
        reader = Fields(body, prefix)
        rows, cols = _size(reader)
        term = reader.text("term")
        reader.finish()
        return cls(rows, cols, term or DEFAULT_TERM)


def parse_size(body: Mapping[str, object], prefix: str = "") -> tuple[int, int]:
    """Rows and columns of a resize; both are required.

    Raises:
        BadRequestError: names the member at fault.
    """
    reader = Fields(body, prefix)
    for name in ("rows", "cols"):
        if reader.raw(name) is None:
            raise reader.fail(name, f"a whole number from 1 to {MAX_SIZE}")
    size = _size(reader)
    reader.finish()
    return size


def _size(reader: Fields) -> tuple[int, int]:
    rows = reader.count("rows", DEFAULT_ROWS, MAX_SIZE, 1)
    return rows, reader.count("cols", DEFAULT_COLS, MAX_SIZE, 1)


def dump(name: str, content: Mapping[str, object]) -> bytes:
    """A text message."""
    return json.dumps({name: content}).encode()


def parse(data: bytes) -> tuple[str, dict[str, object]]:
    """Name and content of a text message.

    Raises:
        BadRequestError: it is none.
    """
    body = load_object(data)
    (name, content), *others = [*body.items()] or [("", None)]
    if others or not isinstance(content, dict):
        raise BadRequestError("a message is an object with one member, an object", field="message")
    return name, content
