"""A layer's tar out of what its registry sends: gzip, zstd, or nothing of the kind; a piece at a time, whatever it grows to.

Both may come in members, one after another: eStargz has one for each file, zstd:chunked frames to be passed over besides.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from typing import TYPE_CHECKING, Protocol

_BROKEN: tuple[type[Exception], ...] = (zlib.error,)
try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    # Of the extra `local`, which a checkout that runs from its lock may lack.
    zstd = None  # type: ignore[assignment]
else:
    _BROKEN += (zstd.ZstdError,)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHUNK_BYTES = 1024 * 1024
"""Of what comes out at once."""
SLICE_BYTES = 64 * 1024
"""Fed at once: what follows a member in it is copied, and there may be thousands of them in one piece."""
MEMBERS_MAX = 2_000_000
"""Of a layer: as many as files of an image, each of which eStargz packs alone. Empty ones take time and no room."""
MAGIC_BYTES = 4
"""By which the beginning of a member is known."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""The end of a skippable frame's magic; its first byte is 0x50 to 0x5f."""


class _Member(Protocol):
    """One compressed part."""

    @property
    def eof(self) -> bool:
        """Whether it has ended."""

    @property
    def rest(self) -> bytes:
        """What came behind its end."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What is in a piece of it."""


class _Gzip:
    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def rest(self) -> bytes:
        return self._unpack.unused_data

    def feed(self, piece: bytes) -> Iterator[bytes]:
        while piece and not self._unpack.eof:
            yield self._unpack.decompress(piece, CHUNK_BYTES)
            piece = self._unpack.unconsumed_tail


class _Zstd:
    def __init__(self) -> None:
        self._unpack = zstd.ZstdDecompressor()

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def rest(self) -> bytes:
        return self._unpack.unused_data if self._unpack.eof else b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        yield self._unpack.decompress(piece, CHUNK_BYTES)
        while not self._unpack.eof and not self._unpack.needs_input:
            yield self._unpack.decompress(b"", CHUNK_BYTES)


def plain(data: Iterable[bytes]) -> Iterator[bytes]:
    """A layer's tar, uncompressed where it is gzip's or zstd's; never more than a piece in memory.

    Raises:
        ValueError: it is broken, or zstd's and the package for it is not there.
    """
    pieces = iter(data)
    first = b""
    for piece in pieces:
        first += piece
        if len(first) >= MAGIC_BYTES:
            break
    make = _kind(first)
    if make is _Zstd and zstd is None:
        raise ValueError(
            "a layer is compressed by zstd: install `sandman-sandbox[local]`, or backports.zstd"
        )
    whole = itertools.chain((first,), pieces)
    return whole if make is None else _members(whole, make)


def _kind(begin: bytes) -> type[_Gzip | _Zstd] | None:
    """What so begins; None: nothing that is compressed."""
    if begin.startswith(_GZIP):
        return _Gzip
    is_skipped = begin[1:MAGIC_BYTES] == _SKIPPED and 0x50 <= begin[0] <= 0x5F
    return _Zstd if is_skipped or begin.startswith(_ZSTD) else None


def _members(pieces: Iterable[bytes], make: type[_Gzip | _Zstd]) -> Iterator[bytes]:
    member: _Member = make()
    rest, count, is_over = b"", 1, False
    for piece in _slices(pieces):
        rest += piece
        while rest and not is_over and (not member.eof or len(rest) >= MAGIC_BYTES):
            # What follows and is no member is padding, to the end. It is read all the same: the digest is of all of it.
            is_over = member.eof and _kind(rest) is not make
            if member.eof and not is_over:
                member, count = make(), count + 1
            if count > MEMBERS_MAX:
                raise ValueError("a layer has more compressed parts than local mode takes")
            yield from () if is_over else _fed(member, rest)
            rest = member.rest
        rest = b"" if is_over else rest
    if not member.eof:
        raise ValueError("a layer ends in the middle of its compressed data")


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (piece[at : at + SLICE_BYTES] for at in range(0, len(piece), SLICE_BYTES))


def _fed(member: _Member, piece: bytes) -> Iterator[bytes]:
    try:
        yield from member.feed(piece)
    except _BROKEN as error:
        raise ValueError(f"a layer's compressed data is broken: {error}") from error
