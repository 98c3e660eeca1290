"""A directory as pieces of one tar. Constant memory, whatever is in it; nothing is followed out of it.

A large file's bytes are not read here: its descriptor is handed out, for `sendfile` or `read`. Standard
library only: the daemon ships this file.
"""

# pathlib costs the daemon 5 ms, and knows no directory descriptors.

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from sandman import tar

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 200
"""Levels of directories: each holds two descriptors, and 1024 is a usual limit of them."""
MAX_TOLD = 100
"""Skipped members that are told by name; all are counted."""
_SMALL_BYTES = 64 * 1024
"""Up to this a file is read before its head is written: its true length is known then, also that of
files in /proc, whose size the kernel does not know."""
_FLUSH_BYTES = 256 * 1024
_KINDS = {
    stat.S_IFIFO: "fifo", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFSOCK: "socket",
}  # fmt: skip


class FilePart(NamedTuple):
    """So many bytes of an open file come next; its reader fills up with zeros what the file has no
    more, and says so by `Skips.add`."""

    fd: int
    size: int
    name: str


class Skips:
    """What was left out, and why: all counted, the first ones told."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[tuple[str, str]] = []

    def add(self, name: bytes | str, why: str) -> None:
        """One more."""
        self.count += 1
        if len(self.told) < MAX_TOLD:
            text = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
            self.told.append((text, why))

    def records(self) -> dict[str, bytes]:
        """As records of the tar's last member."""
        return {
            tar.SKIPPED: json.dumps(self.told).encode(),
            tar.SKIPPED_COUNT: b"%d" % self.count,
        }


class Packer:
    """One directory on its way into a tar.

    What vanishes meanwhile is as if it had never been. What cannot be read, and what is neither file,
    directory nor link, is skipped. A file that became shorter is filled up with zeros and told like a
    skipped one. When anything was skipped a second `./` ends the tar, whose pax records tell it.

    Raises:
        OSError: `path` is no directory that can be read.
    """

    def __init__(self, path: bytes | str | os.PathLike[str]) -> None:
        self.skips = Skips()
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._buffer = bytearray()

    def close(self) -> None:
        """Let go of the directory; once `parts` was ended."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def parts(self) -> Iterator[bytes | FilePart]:
        """The tar, piece by piece. A file's descriptor is good until the next piece is asked for."""
        own = os.fstat(self._root)
        root = _member(b"./", own, tar.DIRECTORY)
        self._buffer += tar.encode(root)
        yield from self._walk(self._root, b"", 0)
        if self.skips.count:
            self._buffer += tar.encode(root._replace(records=self.skips.records()))
        self._buffer += tar.END
        yield bytes(self._buffer)

    def _walk(self, directory: int, prefix: bytes, depth: int) -> Iterator[bytes | FilePart]:
        try:
            entries = os.scandir(directory)
        except OSError as error:
            self._skip(prefix, error)
            return
        with entries:
            for entry in entries:
                yield from self._entry(directory, entry, prefix, depth)
                if len(self._buffer) >= _FLUSH_BYTES:
                    data = bytes(self._buffer)
                    self._buffer.clear()
                    yield data

    def _entry(
        self, directory: int, entry: os.DirEntry[str], prefix: bytes, depth: int
    ) -> Iterator[bytes | FilePart]:
        name = prefix + os.fsencode(entry.name)
        try:
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                yield from self._file(directory, entry.name, name)
            elif stat.S_ISDIR(found.st_mode):
                yield from self._directory(directory, entry.name, name + b"/", depth + 1)
            elif stat.S_ISLNK(found.st_mode):
                link = os.fsencode(os.readlink(entry.name, dir_fd=directory))
                self._buffer += tar.encode(_member(name, found, tar.SYMLINK, link=link))
            else:
                self.skips.add(name, _KINDS.get(stat.S_IFMT(found.st_mode), "of unknown type"))
        except OSError as error:
            self._skip(name, error)

    def _directory(
        self, parent: int, entry: str, name: bytes, depth: int
    ) -> Iterator[bytes | FilePart]:
        if depth > MAX_DEPTH:
            self.skips.add(name, f"below more than {MAX_DEPTH} directories")
            return
        fd = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            self._buffer += tar.encode(_member(name, os.fstat(fd), tar.DIRECTORY))
            yield from self._walk(fd, name, depth)
        finally:
            os.close(fd)

    def _file(self, directory: int, entry: str, name: bytes) -> Iterator[bytes | FilePart]:
        # By now it may be another thing, a FIFO that would block among them.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(entry, flags, dir_fd=directory)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                self.skips.add(name, "changed while it was read")
                return
            content = _read_small(fd) if found.st_size <= _SMALL_BYTES else None
            if content is None and found.st_size <= _SMALL_BYTES:
                found = os.fstat(fd)
                if found.st_size <= _SMALL_BYTES:
                    self.skips.add(name, "longer than its size says")
                    return
            if content is not None:
                self._buffer += tar.encode(_member(name, found, tar.FILE, len(content)))
                self._buffer += content
                self._buffer += bytes(tar.padding(len(content)))
                return
            self._buffer += tar.encode(_member(name, found, tar.FILE, found.st_size))
            data = bytes(self._buffer)
            self._buffer.clear()
            yield data
            yield FilePart(fd, found.st_size, name.decode("utf-8", "surrogateescape"))
            self._buffer += bytes(tar.padding(found.st_size))
        finally:
            os.close(fd)

    def _skip(self, name: bytes, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.skips.add(name or b"./", (error.strerror or str(error)).lower())


def _member(
    name: bytes, found: os.stat_result, kind: bytes, size: int = 0, *, link: bytes = b""
) -> tar.Member:
    mode = stat.S_IMODE(found.st_mode)
    return tar.Member(name, kind, size, mode, found.st_mtime_ns, found.st_uid, found.st_gid, link)


def _read_small(fd: int) -> bytes | None:
    """All of the file; None: it is no small one. The descriptor then stands at its start."""
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(fd, _SMALL_BYTES + 1 - size):
        pieces.append(piece)
        size += len(piece)
        if size > _SMALL_BYTES:
            os.lseek(fd, 0, os.SEEK_SET)
            return None
    return b"".join(pieces)


def read_part(part: FilePart, skips: Skips, most: int) -> Iterator[bytes]:
    """The bytes of a file's part, exactly as many as were announced."""
    left = part.size
    while left:
        try:
            data = os.read(part.fd, min(left, most))
        except OSError:
            data = b""
        if not data:
            skips.add(part.name, "became shorter while it was read: filled up with zeros")
            break
        left -= len(data)
        yield data
    while left:
        zeros = bytes(min(left, most))
        left -= len(zeros)
        yield zeros
