"""What a caller may hand over as bytes to send, told apart."""

from __future__ import annotations

import enum
from collections.abc import Iterable

CHUNK_BYTES = 256 * 1024
"""One piece of a streamed body: large enough to cost nothing, small enough to share a connection."""


class Kind(enum.Enum):
    """How bytes are got out of a source."""

    BYTES = "bytes"
    FILE = "file"
    ASYNC = "async"
    ITERABLE = "iterable"


def kind(source: object) -> Kind:
    """Which kind of source this is.

    Raises:
        TypeError: none that could give bytes.
    """
    if isinstance(source, (str, bytes, bytearray, memoryview)):
        return Kind.BYTES
    if hasattr(source, "__aiter__"):
        return Kind.ASYNC
    if hasattr(source, "read"):
        return Kind.FILE
    if isinstance(source, Iterable):
        return Kind.ITERABLE
    raise TypeError(
        f"cannot send a {type(source).__name__}: give bytes, str, a binary file or an iterable of bytes"
    )


def as_bytes(data: str | bytes | bytearray | memoryview) -> bytes:
    """The bytes; text as UTF-8, surrogate escapes being the bytes they stand for."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)


def piece(data: object) -> bytes:
    """One piece out of a file or an iterable.

    Raises:
        TypeError: not bytes, as from a file opened in text mode.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"expected bytes, got {type(data).__name__}: open files in binary mode")
    return bytes(data)
