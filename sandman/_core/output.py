"""Keeps head and tail of a stream that may be longer than what is wanted."""

from __future__ import annotations


class HeadTail:
    """Bytes up to `limit`, the middle left out when there were more. Holds 1.25 times the limit at most."""

    def __init__(self, limit: int) -> None:
        self._tail = limit // 2
        self._head = limit - self._tail
        self._limit = limit
        self._room = limit + max(limit // 4, 65536)
        self._kept = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        self._kept += data
        if len(self._kept) > self._room:
            self._cut()

    def _cut(self) -> None:
        if len(self._kept) > self._limit:
            del self._kept[self._head : len(self._kept) - self._tail]

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out."""
        return self.total > self._limit

    def value(self) -> bytes:
        """What was kept: the first half and the last half of `limit` bytes, or all."""
        self._cut()
        return bytes(self._kept)
