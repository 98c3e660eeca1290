"""The tar codec, against the standard library's and against what is no tar."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from sandman import tar
from sandman.errors import BadRequestError

MEMBERS = [
    tar.Member(b"plain", size=3, mode=0o4755, mtime_ns=1_700_000_000_123_456_789, uid=1, gid=2),
    tar.Member(b"dir/", tar.DIRECTORY, mode=0o1777),
    tar.Member(b"x" * 255, size=600),
    tar.Member("ü".encode() * 100, mtime_ns=-1_500_000_000),
    tar.Member(b"\xff\n" * 60, size=1),
    tar.Member(b"\xfe", tar.SYMLINK, link=b"y" * 300),
    tar.Member(b"hard", tar.HARDLINK, link=b"plain"),
    tar.Member(b"ids", uid=2**31, gid=2**21, size=512),
    tar.Member(b"told", records={tar.SKIPPED: b"[]"}),
]


def packed(*members: tar.Member) -> bytes:
    return (
        b"".join(tar.encode(m) + b"d" * m.size + bytes(tar.padding(m.size)) for m in members)
        + tar.END
    )


def read(data: bytes, step: int = 65536) -> tuple[tar.Reader, list[tuple[tar.Member, bytes]]]:
    reader = tar.Reader()
    found: list[tuple[tar.Member, bytearray]] = []
    for start in range(0, len(data), step):
        for item in reader.feed(data[start : start + step]):
            if isinstance(item, tar.Member):
                found.append((item, bytearray()))
            else:
                assert item
                found[-1][1].extend(item)
    return reader, [(member, bytes(content)) for member, content in found]


@pytest.mark.parametrize("step", [1, 7, 512, 65536])
def test_there_and_back(step: int) -> None:
    reader, found = read(packed(*MEMBERS), step)
    assert reader.is_done
    assert [content for _, content in found] == [b"d" * m.size for m in MEMBERS]
    for (member, _), sent in zip(found, MEMBERS, strict=True):
        kept = member._replace(records={}, uid=sent.uid, gid=sent.gid)
        assert kept == sent._replace(records={})
    assert found[-1][0].records == {tar.SKIPPED: b"[]"}


def test_the_standard_library_reads_what_is_written() -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(*MEMBERS))) as library:
        infos = library.getmembers()
    for info, sent in zip(infos, MEMBERS, strict=True):
        assert os.fsencode(info.name) == sent.name.rstrip(b"/")
        assert os.fsencode(info.linkname) == sent.link
        assert (info.size, info.mode, info.uid, info.gid) == (sent.size, sent.mode, sent.uid, sent.gid)  # fmt: skip
        assert abs(info.mtime - sent.mtime_ns / 1e9) < 1e-3


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_the_standard_library_writes_is_read(form: int) -> None:
    stream = io.BytesIO()
    names = ["a", "dir/sub", "p" * 90 + "/" + "n" * 90, *(["ü" * 150] if form else [])]
    with tarfile.open(fileobj=stream, mode="w", format=form) as library:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = 700, 1000, 0o640
            library.addfile(info, io.BytesIO(b"d" * 700))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "l" * (90 if form == 0 else 200)
        library.addfile(link)
    reader, found = read(stream.getvalue())
    assert reader.is_done
    assert [m.name.decode() for m, _ in found] == [*names, "link"]
    assert [m.link.decode() for m, _ in found][-1] == link.linkname
    assert {(m.mtime_ns, m.mode, c) for m, c in found[:-1]} == {(1000 * 10**9, 0o640, b"d" * 700)}


def test_sizes_over_eight_gibibytes() -> None:
    big = tar.Member(b"big", size=2**40)
    [member] = tar.Reader().feed(tar.encode(big))
    assert (member.size, tarfile.TarInfo.frombuf(tar.encode(big)[-512:], "utf-8", "strict").size) == (2**40, 0)  # fmt: skip
    gnu = tarfile.TarInfo("big")
    gnu.size = 2**40
    [member] = tar.Reader().feed(gnu.tobuf(tarfile.GNU_FORMAT))
    assert member.size == 2**40


def test_old_files_and_kinds() -> None:
    old = tarfile.TarInfo("dir/")
    old.type = tarfile.AREGTYPE
    [member] = tar.Reader().feed(old.tobuf(tarfile.USTAR_FORMAT))
    assert member.kind == tar.DIRECTORY
    fifo = tarfile.TarInfo("fifo")
    fifo.type, fifo.size = tarfile.FIFOTYPE, 512
    _, found = read(fifo.tobuf() + tar.END)
    assert (found[0][0].kind, found[0][0].size) == (tar.FIFO, 0)
    before = tarfile.TarInfo("x")
    before.mtime = -5
    [member] = tar.Reader().feed(before.tobuf(tarfile.GNU_FORMAT))
    assert member.mtime_ns == 0


def test_global_records_hold_for_all_that_follow() -> None:
    body = tar._record(b"mtime", b"12.5")
    head = tar._header(tar.Member(b"pax_global_header", b"g", len(body)))
    data = head + body + bytes(tar.padding(len(body))) + packed(tar.Member(b"a"), tar.Member(b"b"))
    _, found = read(data)
    assert [m.mtime_ns for m, _ in found] == [12_500_000_000] * 2


def resum(block: bytes) -> bytes:
    block = block[:148] + b"        " + block[156:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def pax(records: bytes) -> bytes:
    head = tar._header(tar.Member(b"x", b"x", len(records)))
    return head + records + bytes(tar.padding(len(records))) + tar.encode(tar.Member(b"a"))


def altered(at: int, data: bytes) -> bytes:
    block = tar.encode(tar.Member(b"a"))
    return resum(block[:at] + data + block[at + len(data) :])


GLOBAL = tar._record(b"a", b"x" * 1_000_000)
HOSTILE = {
    "text": b"hello" * 200,
    "checksum": tar.encode(tar.Member(b"a"))[:-1] + b"x",
    "no checksum": tar.encode(tar.Member(b"a"))[:148] + bytes(8) + bytes(356),
    "number": altered(124, b"99999999999\0"),
    "huge number": altered(124, b"\x80" + b"\xff" * 11),
    "sparse": altered(156, b"S"),
    "pax sparse": pax(tar._record(b"GNU.sparse.major", b"1")),
    "records": pax(b"junk"),
    "record's length": pax(b"99 a=b\n"),
    "record without an end": pax(b"7 a=bcx"),
    "record of no length": pax(b"0 a=b\n"),
    "size": pax(tar._record(b"size", b"-1")),
    "large size": pax(tar._record(b"size", b"9" * 19)),
    "larger size": pax(tar._record(b"size", b"9" * 40)),
    "time": pax(tar._record(b"mtime", b"now")),
    "many records": tar._header(tar.Member(b"x", b"x", 2 * tar.MAX_RECORDS_BYTES)),
    "long name": tar._header(tar.Member(b"x", b"L", 2 * tar.MAX_RECORDS_BYTES)),
    "many global records": b"".join(
        tar._header(tar.Member(b"g", b"g", len(record))) + record + bytes(tar.padding(len(record)))
        for record in (GLOBAL, GLOBAL.replace(b"a=", b"b="))
    ) + tar.encode(tar.Member(b"a")),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_tar_is_refused(what: str) -> None:
    with pytest.raises(BadRequestError):
        read(HOSTILE[what])


def test_nothing_is_read_after_the_end() -> None:
    reader, found = read(packed(tar.Member(b"a")) + b"junk" * 1000)
    assert (reader.is_done, len(found)) == (True, 1)
    assert reader.position == 1024


def test_the_sum_of_any_block() -> None:
    """Checked by the sums themselves, also of the largest bytes that there are."""
    blocks = [bytes([value]) * tar.BLOCK for value in (0, 1, 254, 255)]
    blocks += [b"\xff" * 256 + bytes(256), bytes(256) + b"\xff" * 256, os.urandom(tar.BLOCK)]
    for block in blocks:
        assert tar._sum(block) == sum(block)


@pytest.mark.parametrize(
    "field", [b"0000644\0", b"   644 \0", b"644\0\0\0\0\0", b"\x80" + b"\0" * 5 + b"\x01\xa4"]
)
def test_numbers_of_all_forms(field: bytes) -> None:
    assert tar._number(field) == 0o644
