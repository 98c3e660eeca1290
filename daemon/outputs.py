"""What a command wrote on one stream, in bounded memory: a head, a tail and a count."""

from __future__ import annotations

from typing import NamedTuple


class Piece(NamedTuple):
    """What a cursor found: bytes, where it stands after them, and how many it had to skip.

    `data` looks into the log itself: it must be released before the log takes more.
    """

    data: memoryview
    cursor: int
    skipped: int


class OutputLog:
    """Keeps the first and the last half of `limit` bytes and counts all.

    Offsets are those of the command's own output, so a reader that comes back names where it
    stopped and learns how much is gone. Not locked: the thread that moves the bytes owns it.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        # Deleting from the front of a bytearray moves a pointer, not the bytes.
        self._tail = bytearray()

    def append(self, data: bytes | memoryview) -> None:
        """Take what was read."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_limit:
            data = data[-self._tail_limit :]
            # Room first, in the same place: growing and shrinking anew would cost the allocator
            # more than the copy does.
            excess = len(self._tail) + len(data) - self._tail_limit
            if excess >= len(self._tail):
                self._tail[:] = data
                return
            if excess > 0:
                del self._tail[:excess]
            self._tail += data

    @property
    def is_truncated(self) -> bool:
        """Whether bytes between head and tail are gone."""
        return self.total > len(self._head) + len(self._tail)

    @property
    def kept(self) -> bytes:
        """Head and tail."""
        return bytes(self._head + self._tail)

    def read(self, cursor: int, most: int) -> Piece:
        """Up to `most` kept bytes from this offset on."""
        if cursor < len(self._head):
            data = _part(self._head, cursor, most)
            return Piece(data, cursor + len(data), 0)
        first = self.total - len(self._tail)
        skipped = max(0, first - cursor)
        start = max(cursor, first) - first
        data = _part(self._tail, start, most)
        return Piece(data, first + start + len(data), skipped)


def _part(buffer: bytearray, start: int, most: int) -> memoryview:
    with memoryview(buffer) as view:
        return view[start : start + most]
