"""WebSocket (RFC 6455) without sockets: bytes in, messages out, for either side.

Strict where two readers of the same bytes could disagree: no extensions, so no reserved bits; lengths
in their shortest form; masks from clients always and from servers never; text that is UTF-8. What breaks
a rule is told with the close code that the RFC gives it. Standard library only: the daemon ships this file.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTINUATION = 0x0
TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
INVALID_DATA = 1007
POLICY_VIOLATION = 1008
TOO_BIG = 1009
INTERNAL_ERROR = 1011

VERSION = "13"
MAX_CONTROL_BYTES = 125
MAX_MESSAGE_BYTES = 1024 * 1024
"""A message longer than this ends the connection: it is kept whole until its end has come."""
MAX_FRAGMENTS = 1024
"""Frames in one message: empty ones cost work and would never meet the limit on bytes."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
_KNOWN = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_SENDABLE = frozenset({*range(1000, 1004), *range(1007, 1015)})
"""Close codes below 3000 that may travel."""


class Message(NamedTuple):
    """One message. `opcode` is TEXT, BINARY, PING, PONG or CLOSE; of CLOSE `data` is the reason."""

    opcode: int
    data: bytes = b""
    code: int | None = None
    """Of CLOSE: why; None: the other side does not say."""


class ProtocolError(Exception):
    """The other side broke the rules; `code` is the close code for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


# --- the handshake -------------------------------------------------------------------------------


def make_key() -> str:
    """A client's Sec-WebSocket-Key."""
    from base64 import b64encode  # noqa: PLC0415 - not needed to listen

    return b64encode(os.urandom(_KEY_BYTES)).decode("ascii")


def is_key(key: str) -> bool:
    """Whether this can be a Sec-WebSocket-Key: sixteen bytes as base64."""
    from base64 import b64decode  # noqa: PLC0415

    try:
        return len(key) == 24 and len(b64decode(key, validate=True)) == _KEY_BYTES
    except ValueError:
        return False


def accept_key(key: str) -> str:
    """The server's answer to a key: Sec-WebSocket-Accept."""
    from base64 import b64encode  # noqa: PLC0415
    from hashlib import sha1  # noqa: PLC0415

    digest = sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    return b64encode(digest).decode("ascii")


def tokens(header: str) -> list[str]:
    """The items of a comma-separated header, in lower case."""
    return [item.strip().lower() for item in header.split(",") if item.strip()]


# --- sending -------------------------------------------------------------------------------------


def encode_head(opcode: int, length: int, *, is_masked: bool = False) -> bytes:
    """What comes before the mask and the bytes of a message in one frame."""
    bit = 0x80 if is_masked else 0
    if length < 126:
        return struct.pack("!BB", 0x80 | opcode, bit | length)
    if length < 0x10000:
        return struct.pack("!BBH", 0x80 | opcode, bit | 126, length)
    return struct.pack("!BBQ", 0x80 | opcode, bit | 127, length)


def encode(opcode: int, data: bytes = b"", *, mask: bytes | None = None) -> bytes:
    """A message in one frame; `mask`: four random bytes, from clients alone."""
    if mask is None:
        return encode_head(opcode, len(data)) + data
    return encode_head(opcode, len(data), is_masked=True) + mask + masked(data, mask)


def encode_close(code: int, reason: str = "", *, mask: bytes | None = None) -> bytes:
    """A CLOSE; a reason that is too long is cut."""
    text = reason.encode()[: MAX_CONTROL_BYTES - 2].decode("utf-8", "ignore").encode()
    return encode(CLOSE, struct.pack("!H", code) + text, mask=mask)


def masked(data: bytes | bytearray | memoryview, mask: bytes) -> bytes:
    """The bytes under a mask, or from under it."""
    size = len(data)
    # Whole numbers of any length are the one thing that plain Python can XOR at once.
    pattern = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ pattern).to_bytes(size, "little")


# --- receiving -----------------------------------------------------------------------------------


class _Head(NamedTuple):
    is_final: bool
    opcode: int
    is_masked: bool
    size: int
    """Of the head itself, with the mask."""
    length: int


class Decoder:
    """Bytes in at any split, messages out. Keeps one message at most.

    Args:
        is_server: frames come from a client: masked.
        limit: the longest message, in bytes.
    """

    def __init__(self, *, is_server: bool, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._is_server = is_server
        self._limit = limit
        self._buffer = bytearray()
        self._opcode: int | None = None
        self._parts = bytearray()
        self._fragments = 0
        self.is_closed = False
        """A CLOSE came: what follows it is passed over."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that these bytes complete.

        Raises:
            ProtocolError: after the messages before the fault. The connection must be closed.
        """
        self._buffer += data
        while not self.is_closed:
            head = self._head()
            if head is None or len(self._buffer) < head.size + head.length:
                return
            message = self._message(head, self._take(head))
            if message is not None:
                self.is_closed = message.opcode == CLOSE
                yield message
        self._buffer.clear()

    def _head(self) -> _Head | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        opcode, length = buffer[0] & 0x0F, buffer[1] & 0x7F
        self._check(buffer[0], buffer[1])
        size = 2
        if length >= 126:
            size, form, least = (4, "!H", 126) if length == 126 else (10, "!Q", 0x10000)
            if len(buffer) < size:
                return None
            (length,) = struct.unpack_from(form, buffer, 2)
            if length < least or length >= 1 << 63:
                raise ProtocolError(PROTOCOL_ERROR, "a length that is not in its shortest form")
        if opcode < CLOSE and length + len(self._parts) > self._limit:
            raise ProtocolError(TOO_BIG, f"a message of more than {self._limit} bytes")
        return _Head(
            bool(buffer[0] & 0x80), opcode, self._is_server, size + 4 * self._is_server, length
        )

    def _check(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & 0x70 or opcode not in _KNOWN:
            raise ProtocolError(PROTOCOL_ERROR, "a reserved bit or opcode")
        if bool(second & 0x80) is not self._is_server:
            raise ProtocolError(PROTOCOL_ERROR, "a client masks its frames, a server does not")
        if opcode >= CLOSE:
            if not first & 0x80 or second & 0x7F > MAX_CONTROL_BYTES:
                raise ProtocolError(PROTOCOL_ERROR, "a control frame that is long or in parts")
        elif (opcode == CONTINUATION) is (self._opcode is None):
            raise ProtocolError(
                PROTOCOL_ERROR, "a continuation of nothing, or none where one is due"
            )

    def _take(self, head: _Head) -> bytes:
        end = head.size + head.length
        payload = bytes(self._buffer[head.size : end])
        if head.is_masked:
            payload = masked(payload, bytes(self._buffer[head.size - 4 : head.size]))
        del self._buffer[:end]
        return payload

    def _message(self, head: _Head, payload: bytes) -> Message | None:
        if head.opcode == CLOSE:
            return _close(payload)
        if head.opcode > CLOSE:
            return Message(head.opcode, payload)
        if head.opcode != CONTINUATION:
            if head.is_final:
                return _whole(head.opcode, payload)
            self._opcode = head.opcode
        self._parts += payload
        self._fragments += 1
        if self._fragments > MAX_FRAGMENTS:
            raise ProtocolError(POLICY_VIOLATION, f"a message in more than {MAX_FRAGMENTS} frames")
        if not head.is_final or self._opcode is None:
            return None
        message = _whole(self._opcode, bytes(self._parts))
        self._opcode, self._fragments = None, 0
        self._parts.clear()
        return message


def _whole(opcode: int, data: bytes) -> Message:
    if opcode == TEXT:
        _check_text(data)
    return Message(opcode, data)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ProtocolError(INVALID_DATA, "text that is not UTF-8") from None


def _close(payload: bytes) -> Message:
    if not payload:
        return Message(CLOSE)
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (code in _SENDABLE or 3000 <= code < 5000):
        raise ProtocolError(PROTOCOL_ERROR, "a close code that may not travel")
    _check_text(payload[2:])
    return Message(CLOSE, payload[2:], code)
