"""What a command wrote on one stream, in bounded memory: a head, a tail and a count."""

from __future__ import annotations

import threading

from daemon import digest
from sandman.records import NamedTuple

NOTHING_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""Of no bytes: most commands write nothing on stderr."""


class Piece(NamedTuple):
    """What a cursor found: bytes, where it stands after them, and how many it had to skip.

    `data` looks into the log itself: it must be released before the log takes more.
    """

    data: memoryview
    cursor: int
    skipped: int


class OutputLog:
    """Keeps the first and the last half of `limit` bytes, counts all, and knows the hash of all when `is_hashed`.
    `head`: another part than half.

    Offsets are those of the command's own output, so a reader that comes back names where it
    stopped and learns how much is gone. The thread that moves the bytes owns the log: it alone
    appends and may `read`; others `copy`.
    """

    def __init__(self, limit: int, head: int | None = None, *, is_hashed: bool = False) -> None:
        self.total = 0
        self._is_hashed = is_hashed
        self._hash: digest.Digest | None = None
        self._head_limit = limit - limit // 2 if head is None else head
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        # A ring once it is full: moving megabytes down for each read would cost more than the read.
        self._tail = bytearray()
        self._oldest = 0
        self._lock = threading.Lock()

    def append(self, data: bytes | memoryview) -> None:
        """Take what was read."""
        with self._lock:
            self.total += len(data)
            if self._is_hashed:
                if self._hash is None:
                    self._hash = digest.new()
                self._hash.update(data)
            room = self._head_limit - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            if data and self._tail_limit:
                self._keep(data[-self._tail_limit :])

    def _keep(self, data: bytes | memoryview) -> None:
        room = self._tail_limit - len(self._tail)
        if room > 0:
            self._tail += data[:room]
            data = data[room:]
        while data:
            part = data[: self._tail_limit - self._oldest]
            with memoryview(self._tail) as view:
                view[self._oldest : self._oldest + len(part)] = part
            self._oldest = (self._oldest + len(part)) % self._tail_limit
            data = data[len(part) :]

    @property
    def sha256(self) -> str:
        """Of all that came, in hexadecimal, also of what is kept no more."""
        with self._lock:
            return NOTHING_SHA256 if self._hash is None else self._hash.digest().hex()

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._head) + len(self._tail)

    @property
    def is_truncated(self) -> bool:
        """Whether bytes between head and tail are gone."""
        return self.total > self.size

    @property
    def kept(self) -> bytes:
        """Head and tail."""
        with self._lock:
            return bytes(self._head + self._tail[self._oldest :] + self._tail[: self._oldest])

    def cut(self, limit: int) -> tuple[bytes, bool]:
        """The first and the last half of `limit` bytes, and whether bytes are missing."""
        kept = self.kept
        if len(kept) > limit:
            tail = limit // 2
            kept = kept[: limit - tail] + (kept[-tail:] if tail else b"")
        return kept, self.total > len(kept)

    def read(self, cursor: int, most: int) -> Piece:
        """Up to `most` kept bytes from this offset on."""
        if cursor < len(self._head):
            data = _part(self._head, cursor, most)
            return Piece(data, cursor + len(data), 0)
        first = self.total - len(self._tail)
        start = max(cursor, first)
        left = self.total - start
        place = self._oldest + start - first
        if place >= len(self._tail):
            place -= len(self._tail)
        data = _part(self._tail, place, min(most, left))
        return Piece(data, start + len(data), max(0, first - cursor))

    def copy(self, cursor: int, most: int) -> tuple[bytes, int, int]:
        """The same for a thread that does not own the log: bytes, cursor after them, skipped."""
        with self._lock:
            piece = self.read(cursor, most)
            with piece.data as data:
                return bytes(data), piece.cursor, piece.skipped

    def forget(self) -> None:
        """Keep the count alone."""
        with self._lock:
            self._head, self._tail, self._oldest = bytearray(), bytearray(), 0
            self._head_limit = self._tail_limit = 0


def _part(buffer: bytearray, start: int, most: int) -> memoryview:
    with memoryview(buffer) as view:
        return view[start : start + most]
