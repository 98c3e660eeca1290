"""Decisions taken from a fuzzer's bytes, so that one changed byte changes one decision."""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Choices:
    """Takes bytes from the front; when there are none left every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def is_spent(self) -> bool:
        """Whether all bytes were used."""
        return self._place >= len(self._data)

    def number(self, below: int) -> int:
        """From 0 to `below` - 1."""
        size = max(1, ((below - 1).bit_length() + 7) // 8)
        return int.from_bytes(self.take(size), "big") % below

    def of(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.number(len(options))]

    def one_in(self, times: int) -> bool:
        """Whether something happens that happens seldom."""
        return self.number(times) == times - 1

    def take(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        piece = self._data[self._place : self._place + size]
        self._place += len(piece)
        return piece


def pieces(data: bytes, most: int = 5) -> list[bytes]:
    """The bytes cut at places that the bytes themselves decide: the same at each replay."""
    seed = zlib.crc32(data)
    cuts = sorted((seed >> (5 * i)) * 2654435761 % (len(data) + 1) for i in range(seed % most + 1))
    return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]


def each_byte(data: bytes) -> list[bytes]:
    """The bytes one by one."""
    return [data[i : i + 1] for i in range(len(data))]
