"""Tar (POSIX pax) without files: members to bytes, bytes to members. Constant memory.

The standard library's `tarfile` wants a file object to read from, keeps every member that it has seen,
and costs the daemon 15 ms and a megabyte to import. Bytes come as they come here. Standard library
only: the daemon ships this file.

Read: ustar, pax, GNU's long names and numbers. Written: ustar, with pax records for what that cannot
say. Sparse members are refused: what is not understood must not become a wrong file.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK = 512
FILE, HARDLINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"  # fmt: skip
END = bytes(2 * BLOCK)
_ZEROS = bytes(BLOCK)
MAX_RECORDS_BYTES = 1024 * 1024
"""Of one member's pax records or long name, which are kept in memory. A path has 4096 bytes at most."""
SKIPPED = "SANDMAN.skipped"
"""Pax record: JSON of what its writer left out, `[[name, why], …]`."""
SKIPPED_COUNT = "SANDMAN.skipped.count"

_MAX_OCTAL_SIZE = 8**11 - 1
_MAX_OCTAL_ID = 8**7 - 1
_NS = 1_000_000_000
_HEADER = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%bustar\x0000" + bytes(247)
_MOST_PAX_HEADERS = 256
"""Heads of records that are remembered, half a kilobyte each."""
_pax_headers: dict[int, bytes] = {}
_MOST = 2**63
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_META = frozenset({_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK})
_AS_FILE = frozenset({b"0", b"\0", b"7"})
_WITHOUT_DATA = frozenset({HARDLINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO})


class Member(NamedTuple):
    """One member's head. `size`: bytes of data that follow. Names are bytes, as the kernel has them."""

    name: bytes
    kind: bytes = FILE
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    link: bytes = b""
    records: Mapping[str, bytes] = {}


# --- writing -------------------------------------------------------------------------------------


def padding(size: int) -> int:
    """Zeros that follow so many bytes of data."""
    return -size % BLOCK


def encode(member: Member) -> bytes:
    """The member's head, pax records before it where it needs them."""
    records = dict(member.records)
    for key, name in (("path", member.name), ("linkpath", member.link)):
        if len(name) > 100:
            if not _is_utf8(name):
                records["hdrcharset"] = b"BINARY"
            records[key] = name
    if member.size > _MAX_OCTAL_SIZE:
        records["size"] = b"%d" % member.size
    for key, number in (("uid", member.uid), ("gid", member.gid)):
        if number > _MAX_OCTAL_ID:
            records[key] = b"%d" % number
    seconds, fraction = divmod(member.mtime_ns, _NS)
    if fraction or not 0 <= seconds <= _MAX_OCTAL_SIZE:
        records["mtime"] = _decimal(member.mtime_ns)
    head = _header(member)
    if not records:
        return head
    body = b"".join(_record(key.encode(), records[key]) for key in sorted(records))
    return b"".join((_pax_header(len(body)), body, bytes(padding(len(body))), head))


def _pax_header(size: int) -> bytes:
    """The head of so many bytes of records. Most have one of a few sizes."""
    head = _pax_headers.get(size)
    if head is None:
        head = _header(Member(b"././@PaxHeader", _PAX, size))
        if len(_pax_headers) < _MOST_PAX_HEADERS:
            _pax_headers[size] = head
    return head


def _header(member: Member) -> bytes:
    block = _HEADER % (
        member.name[:100].ljust(100, b"\0"),
        member.mode & 0o7777,
        _fits(member.uid, _MAX_OCTAL_ID),
        _fits(member.gid, _MAX_OCTAL_ID),
        _fits(member.size, _MAX_OCTAL_SIZE),
        _fits(member.mtime_ns // _NS, _MAX_OCTAL_SIZE),
        member.kind,
        member.link[:100].ljust(100, b"\0"),
    )
    return b"%b%06o\0 %b" % (block[:148], _sum(block), block[156:])


def _sum(block: bytes) -> int:
    """The sum of a block's bytes: the lower half of Adler's, which has no remainder up to 65521."""
    half = BLOCK // 2
    return (zlib.adler32(block[:half]) & 0xFFFF) + (zlib.adler32(block[half:]) & 0xFFFF) - 2


def _fits(number: int, most: int) -> int:
    return number if 0 <= number <= most else 0


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH key=value\\n`, where the length counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if rest + len(str(length)) != length:
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


def _decimal(nanoseconds: int) -> bytes:
    sign, number = (b"-", -nanoseconds) if nanoseconds < 0 else (b"", nanoseconds)
    seconds, fraction = divmod(number, _NS)
    return b"%b%d.%09d" % (sign, seconds, fraction)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- reading -------------------------------------------------------------------------------------


class Reader:
    """Bytes in at any split, members and their data out."""

    def __init__(self) -> None:
        self._block = bytearray()
        self._left = 0
        self._pad = 0
        self._meta: bytearray | None = None
        self._meta_kind = b""
        self._long: dict[bytes, bytes] = {}
        self._records: dict[str, bytes] = {}
        self._globals: dict[str, bytes] = {}
        self.position = 0
        """Bytes taken so far."""
        self.is_done = False
        """The end mark was read. What comes after it is dropped."""

    @property
    def left(self) -> int:
        """Bytes of data that the present member still lacks."""
        return self._left if self._meta is None else 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Member | memoryview]:
        """Members, each followed by the pieces of its data, none of them empty.

        Raises:
            BadRequestError: this is no tar, or one of a kind that is not understood.
        """
        view = memoryview(data)
        while view and not self.is_done:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self.position += len(piece)
                if self._meta is None:
                    yield piece
                else:
                    self._meta += piece
            elif self._pad:
                skipped = min(self._pad, len(view))
                self._pad -= skipped
                self.position += skipped
                view = view[skipped:]
            else:
                block, view = self._next_block(view)
                member = None if block is None else self._take_block(block)
                if member is not None:
                    yield member

    def _next_block(self, view: memoryview) -> tuple[bytes | None, memoryview]:
        """A whole block, if there is one by now, and what follows."""
        if self._meta is not None:
            self._end_meta()
        if not self._block and len(view) >= BLOCK:
            self.position += BLOCK
            return bytes(view[:BLOCK]), view[BLOCK:]
        piece = view[: BLOCK - len(self._block)]
        self._block += piece
        self.position += len(piece)
        block = None
        if len(self._block) == BLOCK:
            block = bytes(self._block)
            self._block.clear()
        return block, view[len(piece) :]

    def _take_block(self, block: bytes) -> Member | None:
        if block == _ZEROS:
            self.is_done = True
            return None
        _check_sum(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in _META:
            if size > MAX_RECORDS_BYTES:
                raise BadRequestError(f"the tar's records of one member are over {MAX_RECORDS_BYTES} bytes")  # fmt: skip
            self._meta, self._meta_kind = bytearray(), kind
            self._left, self._pad = size, padding(size)
            return None
        member = self._member(block, kind, size)
        self._left, self._pad = member.size, padding(member.size)
        return member

    def _end_meta(self) -> None:
        data, self._meta = bytes(self._meta or b""), None
        if self._meta_kind == _PAX:
            self._records = _parse_records(data)
        elif self._meta_kind == _PAX_GLOBAL:
            self._globals.update(_parse_records(data))
            if sum(map(len, self._globals.values())) > MAX_RECORDS_BYTES:
                raise BadRequestError(f"the tar's global records are over {MAX_RECORDS_BYTES} bytes")  # fmt: skip
        else:
            self._long[self._meta_kind] = data.rstrip(b"\0")

    def _member(self, block: bytes, kind: bytes, size: int) -> Member:
        records = {**self._globals, **self._records}
        long, self._long, self._records = self._long, {}, {}
        if kind == b"S" or any(key.startswith("GNU.sparse.") for key in records):
            raise BadRequestError(
                "sparse members are not understood: make the tar without --sparse"
            )
        name = records.get("path") or long.get(_LONG_NAME) or _name(block)
        link = records.get("linkpath") or long.get(_LONG_LINK) or _text(block[157:257])
        size = _decimal_number(records["size"], "size") if "size" in records else size
        if kind in _AS_FILE:
            kind = DIRECTORY if name.endswith(b"/") else FILE
        mtime = _nanoseconds(records["mtime"]) if "mtime" in records else _number(block[136:148]) * _NS  # fmt: skip
        return Member(
            name=name,
            kind=kind,
            size=0 if kind in _WITHOUT_DATA else size,
            mode=_number(block[100:108]) & 0o7777,
            mtime_ns=max(-_MOST, min(mtime, _MOST - 1)),
            uid=_number(block[108:116]),
            gid=_number(block[116:124]),
            link=link,
            records=records,
        )


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _name(block: bytes) -> bytes:
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else b""
    name = _text(block[:100])
    return prefix + b"/" + name if prefix else name


def _check_sum(block: bytes) -> None:
    wanted = _text(block[148:156]).strip()
    found = _sum(block) - sum(block[148:156]) + 8 * 0x20
    if not wanted or wanted.translate(None, b"01234567") or int(wanted, 8) != found:
        raise BadRequestError("this is no tar: a member's head has a wrong checksum")


def _number(field: bytes) -> int:
    """Octal digits, or GNU's base 256."""
    text = field.rstrip(b"\0 ").lstrip(b" ")
    if text.isdigit() and not text.translate(None, b"01234567"):
        return int(text, 8)
    if field[0] == 0x80:
        return _bounded(int.from_bytes(field[1:], "big"))
    if field[0] == 0xFF:
        # Before 1970, or a negative size, which nobody means.
        return 0
    text = _text(field).strip()
    if text.translate(None, b"01234567"):
        raise BadRequestError("this is no tar: a member's head holds a number that is none")
    return int(text or b"0", 8)


def _bounded(number: int) -> int:
    if number >= _MOST:
        raise BadRequestError("a number in the tar is too large")
    return number


def _decimal_number(value: bytes, key: str) -> int:
    if not value.isdigit() or len(value) > 19:
        raise BadRequestError(f"the tar's record {key} is not a number")
    return _bounded(int(value))


def _nanoseconds(value: bytes) -> int:
    sign = -1 if value.startswith(b"-") else 1
    whole, _, fraction = value.lstrip(b"-").partition(b".")
    seconds = _decimal_number(whole, "mtime")
    part = fraction[:9].ljust(9, b"0")
    return sign * (seconds * _NS + _decimal_number(part, "mtime"))


def _parse_records(data: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    while data:
        digits = data[:20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record, data = data[:length], data[length:]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) != length or record[-1:] != b"\n":
            raise BadRequestError("this is no tar: its pax records are broken")
        records[key.decode("utf-8", "surrogateescape")] = value
    return records
