# Written by scripts/unasync.py from sandman/_async/bodies.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Request bodies, made piece by piece. Classes and no generators.

A generator that a cancelled request leaves behind half way is finalised by the garbage collector,
which trio warns of, and rightly: nobody knows when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import IO, cast

import httpx

from sandman import wire
from sandman._core import blocking as anyio
from sandman._core import sources
from sandman._core.sources import CHUNK_BYTES, Kind

Data = str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes] | Iterable[bytes]
"""What can be sent: bytes, text (as UTF-8), a binary file, an iterable of bytes."""


class Source:
    """Reads bytes out of whatever the caller gave.

    `size` in bytes where it is known; `replayable`: whether a second attempt can send it again.
    """

    def __init__(self, data: Data, *, size: int | None = None) -> None:
        self._kind = sources.kind(data)
        self._data = data
        self.size = size
        self.replayable = False
        if self._kind is Kind.BYTES:
            self._whole = sources.as_bytes(data)  # type: ignore[arg-type]
            self._view = memoryview(self._whole)
            self.size = len(self._view)
            self.replayable = True
        elif self._kind is Kind.FILE:
            self._file = cast("IO[bytes]", data)
            self.replayable = _is_seekable(self._file)
            self._start = self._file.tell() if self.replayable else 0
        self._at = 0

    @property
    def whole(self) -> bytes | None:
        """All of it, when it lies in memory anyway."""
        return self._whole if self._kind is Kind.BYTES else None

    def begin(self) -> None:
        """Start, or start again."""
        self._at = 0
        if self._kind is Kind.FILE and self.replayable:
            self._file.seek(self._start)
        elif self._kind is Kind.ASYNC:
            self._aiter = iter(cast("Iterable[bytes]", self._data))
        elif self._kind is Kind.ITERABLE:
            self._iter = iter(cast("Iterable[bytes]", self._data))

    def read(self) -> bytes:
        """The next bytes, at most CHUNK_BYTES unless an iterable gave more; empty at the end."""
        if self._kind is Kind.BYTES:
            self._at += CHUNK_BYTES
            return bytes(self._view[self._at - CHUNK_BYTES : self._at])
        if self._kind is Kind.FILE:
            return self._read_file()
        return self._read_iterator()

    def _read_file(self) -> bytes:
        want = CHUNK_BYTES if self.size is None else min(CHUNK_BYTES, self.size - self._at)
        got = sources.piece(anyio.to_thread.run_sync(self._file.read, want))
        self._at += len(got)
        if want and not got and self.size is not None:
            raise OSError(f"the file shrank while it was sent: {self._at} of {self.size} bytes")
        return got

    def _read_iterator(self) -> bytes:
        while True:
            is_async = self._kind is Kind.ASYNC
            data = next(self._aiter, None) if is_async else next(self._iter, None)
            if data is None:
                return b""
            if piece := sources.piece(data):
                return piece


def _is_seekable(file: IO[bytes]) -> bool:
    try:
        return file.seekable()
    except AttributeError:
        return False


class Body(httpx.SyncByteStream):
    """The bytes of a source as they are. Counts and hashes what it sends."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sha256 = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        self.source.begin()
        self.sha256 = hashlib.sha256()
        return self

    def __next__(self) -> bytes:
        data = self.source.read()
        if not data:
            raise StopIteration
        self.sha256.update(data)
        return data

    def headers(self) -> dict[str, str]:
        """How the length is told."""
        if self.source.size is None:
            return {"transfer-encoding": "chunked"}
        return {"content-length": str(self.source.size)}


class FramedBody(Body):
    """A command with a large stdin: REQUEST, STDIN…, STDIN_CLOSE."""

    def __init__(self, request: bytes, source: Source) -> None:
        super().__init__(source)
        self._request = request
        self._pending = b""
        self._state = "request"

    def __iter__(self) -> Iterator[bytes]:
        self.source.begin()
        self._pending = b""
        self._state = "request"
        return self

    def __next__(self) -> bytes:
        if self._state == "request":
            self._state = "stdin"
            return wire.encode_frame(wire.REQUEST, self._request)
        if self._state == "closed":
            raise StopIteration
        data = self._pending or self.source.read()
        if not data:
            self._state = "closed"
            return wire.encode_frame(wire.STDIN_CLOSE)
        self._pending = data[CHUNK_BYTES:]
        return wire.encode_frame(wire.STDIN, data[:CHUNK_BYTES])

    def headers(self) -> dict[str, str]:
        """The length is not told: it would have to count the frames."""
        return {"transfer-encoding": "chunked"}
