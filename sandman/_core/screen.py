"""One terminal over as many connections as it takes: what came, what is still to be sent. No sockets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandman import names, terminal, websocket, wire
from sandman.errors import (
    BadRequestError,
    ConflictError,
    InternalError,
    SandmanError,
    UnreachableError,
)
from sandman.handles import Gap
from sandman.problems import from_problem
from sandman.websocket import Message, ProtocolError
from sandman.wire import ExecResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_UNREAD_BYTES = 16 * 1024 * 1024
"""Output that is kept while its reader writes and does not read."""
_PIECE_BYTES = 64 * 1024
_FAULTS_OF_OURS = frozenset({
    websocket.PROTOCOL_ERROR, websocket.INVALID_DATA, websocket.POLICY_VIOLATION, websocket.TOO_BIG,
})  # fmt: skip


class Screen:
    """Where a terminal stands.

    Args:
        offset: of its output, where reading begins.
    """

    def __init__(self, offset: int) -> None:
        self.received = offset
        """Output has come up to there."""
        self.gaps: list[Gap] = []
        self.result: ExecResult | None = None
        self.is_joined = False
        """The present connection has said how much input was taken."""
        self.is_alive = False
        """Something came on the present connection that shows the terminal to go on."""
        self.is_out_of_reach = False
        """The gateway has looked for the sandbox, on the present connection's behalf, and not found it."""
        self.turns = 0
        """Counts what has come."""
        self._output = bytearray()
        self._taken: int | None = None
        """Place of the first byte of `_typed`."""
        self._typed = bytearray()
        self._sent = 0
        self._replies = bytearray()
        self._decoder = websocket.Decoder(is_server=False, limit=wire.MAX_FRAME_BYTES)

    # --- the caller's side ---

    @property
    def offset(self) -> int:
        """Output has been read up to there."""
        return self.received - len(self._output)

    @property
    def has_output(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._output)

    def read(self) -> bytes:
        """All that came and was not read."""
        data = bytes(self._output)
        self._output.clear()
        return data

    @property
    def room(self) -> int:
        """Bytes that may be typed now."""
        return terminal.INPUT_WINDOW_BYTES - len(self._typed) if self.is_joined else 0

    @property
    def is_unsent(self) -> bool:
        """Whether something was typed that is not on its way."""
        return self._sent < len(self._typed)

    def type(self, data: bytes | memoryview) -> int:
        """Take of these bytes what there is room for; how many."""
        piece = data[: self.room]
        self._typed += piece
        return len(piece)

    # --- the connection's side ---

    def connected(self) -> None:
        """There is a new connection."""
        self._decoder = websocket.Decoder(is_server=False, limit=wire.MAX_FRAME_BYTES)
        self._replies.clear()
        self.is_joined = self.is_alive = self.is_out_of_reach = False
        self._sent = 0

    def broken(self) -> None:
        """The connection is of no use any more."""
        self.is_joined = False
        self._sent = 0

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        data = bytes(self._replies)
        self._replies.clear()
        while self.is_joined and self.is_unsent:
            piece = bytes(self._typed[self._sent : self._sent + _PIECE_BYTES])
            data += websocket.encode(websocket.BINARY, piece, mask=os.urandom(4))
            self._sent += len(piece)
        return data

    def feed(self, data: bytes) -> None:
        """What came on the connection; empty: its end.

        Raises:
            SandmanError: the connection has ended otherwise than by the terminal's end.
        """
        self.turns += 1
        if not data:
            raise UnreachableError("the connection to the terminal ended")
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except ProtocolError as error:
            raise UnreachableError(f"what came is no WebSocket: {error.text}") from error
        if len(self._output) > MOST_UNREAD_BYTES:
            raise ConflictError(
                f"the terminal wrote {MOST_UNREAD_BYTES} bytes that were not read: read between writes"
            )

    def _take(self, message: Message) -> None:
        match message.opcode:
            case websocket.BINARY:
                self.is_alive = True
                self.received += len(message.data)
                self._output += message.data
            case websocket.TEXT:
                self._hear(message.data)
            case websocket.PING:
                mask = os.urandom(4)
                self._replies += websocket.encode(websocket.PONG, message.data, mask=mask)
            case websocket.CLOSE:
                self._closed(message)

    def _hear(self, data: bytes) -> None:
        try:
            name, content = terminal.parse(data)
            hear = self._ears.get(name)
            if hear is not None:  # a newer daemon may say more
                hear(self, content)
        except (BadRequestError, TypeError, ValueError) as error:
            raise UnreachableError(f"a message of the terminal cannot be read: {error}") from error

    def _started(self, content: Mapping[str, object]) -> None:
        self._note_taken(content)
        self.is_joined = True

    def _note_taken(self, content: Mapping[str, object]) -> None:
        taken = int(str(content.get("stdin_bytes")))
        known = taken if self._taken is None else self._taken
        gone = min(max(0, taken - known), len(self._typed))
        del self._typed[:gone]
        self._sent = max(0, self._sent - gone)
        self._taken = taken

    def _gap(self, content: Mapping[str, object]) -> None:
        self.is_alive = True
        gap = Gap.from_json(content)
        self.gaps.append(gap)
        self.received = gap.end

    def _keepalive(self, _content: Mapping[str, object]) -> None:
        self.is_alive = True

    def _exit(self, content: Mapping[str, object]) -> None:
        self.result = ExecResult.from_json(content)

    def _error(self, content: Mapping[str, object]) -> None:
        raise from_problem(content)

    _ears: Mapping[str, Callable[[Screen, Mapping[str, object]], None]] = {
        terminal.STARTED: _started,
        terminal.TAKEN: _note_taken,
        terminal.GAP: _gap,
        terminal.KEEPALIVE: _keepalive,
        terminal.EXIT: _exit,
        terminal.ERROR: _error,
    }

    def _closed(self, message: Message) -> None:
        if self.result is None:
            self.is_out_of_reach = message.code == names.CLOSE_OUT_OF_REACH
            raise _closing(message)


def _closing(message: Message) -> SandmanError:
    """Why a connection was closed before the terminal's end."""
    why = message.data.decode("utf-8", "replace")
    if message.code == terminal.TAKEN_OVER:
        return ConflictError("another connection has taken the terminal over")
    if message.code in _FAULTS_OF_OURS:
        return InternalError(f"the sandbox refused what was sent ({message.code}): {why}")
    return UnreachableError(f"the connection to the terminal was closed ({message.code}): {why}")
