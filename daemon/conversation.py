"""A terminal over a WebSocket: one connection that reads a command's output and types into it.

To `follow` it is a reply like any other; only on the connection it looks otherwise. Output goes out as
binary messages, all other frames as text messages of the same name.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from daemon import config, http1, queries
from daemon.documents import dump
from daemon.exchange import CallerGoneError, linger, receive
from daemon.follow import check_offsets, follow
from daemon.process import ROOM_BYTES
from daemon.replies import Reply
from sandman import terminal, websocket, wire
from sandman.errors import BadRequestError, ConflictError, SandmanError
from sandman.websocket import Message, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.exchange import Exchange
    from daemon.process import Process

_GONE = select.POLLHUP | select.POLLERR | select.POLLRDHUP
_MAX_TEXT_BYTES = 4096


def converse(process: Process, exchange: Exchange, boot_id: str) -> None:
    """Upgrade, and connect the caller with the terminal until one of them ends it.

    Raises:
        CallerGoneError: the caller left, which does nothing to a detached command.
        SandmanError: there is no such conversation; nothing was upgraded.
    """
    if process.failure is not None:
        raise process.failure
    if not process.is_terminal:
        raise ConflictError("it has no terminal: start it with one", field="terminal")
    key = _check_handshake(exchange.head)
    is_exclusive = queries.flag(exchange.query, "exclusive")
    offset = queries.size(exchange.query, "stdout") or 0
    conversation = Conversation(exchange, key, offset, is_exclusive=is_exclusive)
    check_offsets(process, conversation)
    follow(process, conversation, boot_id)


def _check_handshake(head: http1.Head) -> str:
    headers = head.headers
    if "websocket" not in websocket.tokens(headers.get("upgrade", "")) or (
        "upgrade" not in websocket.tokens(headers.get("connection", "")) or not head.knows_chunks
    ):
        raise BadRequestError("a terminal is spoken to by WebSocket (RFC 6455)", field="Upgrade")
    if headers.get("sec-websocket-version") != websocket.VERSION:
        raise BadRequestError(f"must be {websocket.VERSION}", field="Sec-WebSocket-Version")
    key = headers.get("sec-websocket-key", "")
    if not websocket.is_key(key):
        raise BadRequestError("must be 16 bytes as base64", field="Sec-WebSocket-Key")
    if terminal.SUBPROTOCOL not in websocket.tokens(headers.get("sec-websocket-protocol", "")):
        raise BadRequestError(f"must be {terminal.SUBPROTOCOL}", field="Sec-WebSocket-Protocol")
    if head.has_body:
        raise BadRequestError("a handshake has no body", field="body")
    return key


class Conversation(Reply):
    """One WebSocket of one terminal, as `follow` has it."""

    def __init__(self, exchange: Exchange, key: str, offset: int, *, is_exclusive: bool) -> None:
        super().__init__(exchange, None, frames=True, cursors={"stdout": offset, "stderr": 0})
        self._key = key
        self._is_exclusive = is_exclusive
        self._decoder = websocket.Decoder(is_server=True)
        self._told = 0
        """Of `stdin_bytes`."""

    def join(self, process: Process, boot_id: str) -> None:
        """Upgrade: from now on this is about that command."""
        super().join(process, boot_id)
        self._go_live()
        early = self._exchange.rest
        if early:
            self._listen(early)

    # --- on the connection ---

    def _begin(self) -> bytes:
        headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", websocket.accept_key(self._key)),
            ("Sec-WebSocket-Protocol", terminal.SUBPROTOCOL),
        ]
        return self._exchange.upgrade_bytes(headers)

    def _frame(self, kind: int, payload: bytes | memoryview) -> list[bytes | memoryview]:
        if kind == wire.STDOUT:
            return [websocket.encode_head(websocket.BINARY, len(payload)), payload]
        name = wire.FRAME_TYPES[kind].encode()
        return [_text(b'{"%b": %b}' % (name, bytes(payload) or b"{}"))]

    def _started(self, process: Process) -> dict[str, object]:
        self._told = self._taken
        if self._is_exclusive and process.terminal is not None:
            self._told = process.terminal.seat(self)
            process.notify()  # whose seat it was
        return {**super()._started(process), "stdin_bytes": self._told}

    def _end(self, kind: int, document: Mapping[str, object]) -> None:
        self._put(kind, dump(document))
        self._close(websocket.NORMAL if kind == wire.EXIT else websocket.INTERNAL_ERROR)

    def _close(self, code: int, reason: str = "") -> None:
        self._out += websocket.encode_close(code, reason)
        self._send_all()
        linger(self._exchange.sock)

    # --- what comes ---

    def events(self) -> int:
        """What to poll the connection for."""
        wanted = select.POLLIN if self._wants_input else select.POLLRDHUP
        return wanted | select.POLLOUT if self._out else wanted

    def handle(self, events: int) -> None:
        """Something came up on the connection."""
        if self._wants_input:
            self._receive()
        elif events & _GONE:
            raise CallerGoneError("closed by the caller")
        self.take()

    def take(self) -> None:
        """Send what is new, and how much was typed.

        Raises:
            CallerGoneError: another connection has taken over.
        """
        keyboard = self._process.terminal if self._process is not None else None
        if self._is_exclusive and keyboard is not None and not keyboard.has_seat(self):
            self._refuse(terminal.TAKEN_OVER, "another connection has taken over")
        if self._taken != self._told:
            self._told = self._taken
            self._out += _text(terminal.dump(terminal.TAKEN, {"stdin_bytes": self._told}))
        super().take()

    @property
    def _taken(self) -> int:
        stdin = self._process.stdin if self._process is not None else None
        return stdin.taken if stdin is not None else 0

    @property
    def _wants_input(self) -> bool:
        # What answers to pings waits in the same place as output.
        return super()._wants_input and len(self._out) < 2 * ROOM_BYTES

    def _receive(self) -> None:
        try:
            data = receive(self._exchange.sock)
        except BlockingIOError:
            return
        if not data:
            raise CallerGoneError("closed by the caller")
        self._listen(data)

    def _listen(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._hear(message)
        except ProtocolError as error:
            self._refuse(error.code, error.text)
        except SandmanError as error:
            self._out += _text(b'{"%b": %b}' % (terminal.ERROR.encode(), dump(error.problem())))
            self._refuse(websocket.POLICY_VIOLATION, error.detail)

    def _refuse(self, code: int, why: str) -> None:
        self._exchange.sock.settimeout(config.LINGER_S)
        self._close(code, why)
        raise CallerGoneError(why)

    def _hear(self, message: Message) -> None:
        match message.opcode:
            case websocket.BINARY:
                self._type(message.data)
            case websocket.TEXT:
                self._obey(message.data)
            case websocket.PING:
                self._out += websocket.encode(websocket.PONG, message.data)
            case websocket.CLOSE:
                self._refuse(message.code or websocket.NORMAL, "closed by the caller")

    def _type(self, data: bytes) -> None:
        process = self._process
        if process is None or process.terminal is None:
            return
        if self._is_exclusive:
            process.terminal.type(self, data)
        else:
            process.terminal.feed(data)
        process.nudge()

    def _obey(self, data: bytes) -> None:
        name, content = terminal.parse(data[:_MAX_TEXT_BYTES])
        if name != terminal.RESIZE:
            raise BadRequestError(f"there is no message {name[:64]!r}", field="message")
        rows, cols = terminal.parse_size(content, f"{name}.")
        if self._process is not None and self._process.terminal is not None:
            self._process.terminal.resize(rows, cols)


def _text(data: bytes) -> bytes:
    return websocket.encode(websocket.TEXT, data)
