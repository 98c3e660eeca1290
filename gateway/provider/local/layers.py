"""Layers of an image into one directory: tars from whoever made the image, who may be hostile.

`sandman.unpack` keeps members inside of the directory. Here is what images have besides: whiteouts, owners, entries that take
the place of what another layer has put there, and parents that are links in the image's own root.
"""

# ruff: noqa: PTH115, PTH118
# Names are bytes.

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from typing import TYPE_CHECKING, NamedTuple

from gateway.provider.local.directories import give
from gateway.provider.local.inflate import plain
from sandman import tar
from sandman.descent import Policy
from sandman.errors import BadRequestError, TooLargeError
from sandman.unpack import Unpacker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gateway.provider.local.directories import Directories

IMAGE_MAX_BYTES = 32 * 1024**3
"""Of an image's layers together, unpacked: twice the largest task images known to us."""
IMAGE_MAX_MEMBERS = 2_000_000
"""Files of an image: as many inodes as a small file system has."""
LINKS_MAX = 40
"""Links on the way to one member: the kernel's own limit."""
WHITEOUT, OPAQUE = b".wh.", b".wh..wh..opq"


class Layer(NamedTuple):
    """One layer as its manifest names it; `digest` "": nobody says one."""

    name: str
    digest: str = ""


class Budget:
    """What is left for an image."""

    def __init__(
        self, most_bytes: int = IMAGE_MAX_BYTES, most_members: int = IMAGE_MAX_MEMBERS
    ) -> None:
        self.bytes = most_bytes
        self.members = most_members

    def take(self, data: int) -> None:
        """So many bytes more.

        Raises:
            TooLargeError: that is too much.
        """
        self.bytes -= data
        if self.bytes < 0:
            raise TooLargeError("the image is larger than local mode takes")

    def take_member(self) -> None:
        """One member more; raises as `take`."""
        self.members -= 1
        if self.members < 0:
            raise TooLargeError("the image has more files than local mode takes")


def sha256(data: bytes) -> str:
    """Its digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def checked(data: Iterable[bytes], digest: str) -> Iterator[bytes]:
    """The data as it comes.

    Raises:
        ValueError: at its end: it is not what the digest says, or nobody knows that kind of digest.
    """
    name, _, wanted = digest.partition(":")
    if name not in {"sha256", "sha512"}:
        raise ValueError(f"a digest of an unknown kind: {digest[:80]}")
    found = hashlib.new(name)
    for chunk in data:
        found.update(chunk)
        yield chunk
    # not secret: of an image
    if found.hexdigest() != wanted:
        raise ValueError(f"what came is not what its digest says: {digest}")


def apply(data: Iterable[bytes], top: Path, budget: Budget, directories: Directories) -> None:
    """One layer on those that are there already; its directories stay open until they are settled.

    Raises:
        SandmanError: it is no tar, leads out of the image, or is too large.
        UnpackError, OSError: the kernel refused.
        ValueError: as `plain`.
    """
    with LayerUnpacker(top, budget, directories) as unpacker:
        for chunk in plain(data):
            budget.take(len(chunk))
            if not unpacker.is_done:
                unpacker.feed(chunk)
        unpacker.finish()


class LayerUnpacker(Unpacker):
    """One layer.

    Args:
        top: the image's directory.
        budget: what is left for all of them.
        directories: those of all of them.
    """

    def __init__(self, top: Path, budget: Budget, directories: Directories) -> None:
        super().__init__(top, Policy())
        self._top = os.fsencode(top)
        self._budget = budget
        self._is_root = os.geteuid() == 0
        self._own: set[tuple[bytes, ...]] = set()
        """What this layer has made: no whiteout of its own is meant for it."""
        self._directories = directories

    # --- members ---

    def _begin(self, member: tar.Member) -> None:
        self._budget.take_member()
        parts = self._parts(member.name)
        base = parts[-1] if parts else b""
        if base == OPAQUE:
            self._empty(parts[:-1])
        elif base.startswith(WHITEOUT):
            self._take_away([*parts[:-1], base[len(WHITEOUT) :]])
        elif member.kind == tar.DIRECTORY:
            self._own.add(tuple(parts))
            self._make_room(parts, member)
            # Until all layers are there it must be ours to fill.
            super()._begin(member._replace(mode=member.mode | 0o700))
            self._directories.make(parts, member, self._budget.take_member)
        else:
            self._own.add(tuple(parts))
            self._make_room(parts, member)
            super()._begin(member)

    def _parts(self, name: bytes) -> list[bytes]:
        """Where the member lies, by names that are no links: those above it are followed in the image's root."""
        bare = [part for part in name.split(b"/") if part not in {b"", b"."}]
        parts = super()._parts(b"/".join(bare))
        return [*self._resolved(parts[:-1]), *parts[-1:]]

    def _resolved(self, parts: list[bytes]) -> list[bytes]:
        todo, done, links = list(reversed(parts)), list[bytes](), 0
        while todo:
            part = todo.pop()
            if part == b"..":
                del done[-1:]
                continue
            try:
                target = os.readlink(os.path.join(self._top, *done, part))
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > LINKS_MAX:
                raise BadRequestError("a member lies below links without an end")
            if target.startswith(b"/"):
                done = []
            todo += reversed([one for one in target.split(b"/") if one not in {b"", b"."}])
        return done

    def _make_room(self, parts: list[bytes], member: tar.Member) -> None:
        """What another layer has put there goes, unless both are directories."""
        if not parts:
            return
        try:
            fd = self._descent.open_below(parts[:-1])
        except (FileNotFoundError, NotADirectoryError):
            self._make_room(parts[:-1], member._replace(kind=tar.DIRECTORY))
            return
        try:
            there = os.lstat(parts[-1], dir_fd=fd)
            if stat.S_ISDIR(there.st_mode) != (member.kind == tar.DIRECTORY):
                self._remove(parts, fd, there)
        except FileNotFoundError:
            return
        finally:
            os.close(fd)

    def _take_away(self, parts: list[bytes]) -> None:
        if tuple(parts) in self._own or parts[-1] in {b"", b".", b".."}:
            return
        try:
            fd = self._descent.open_below(parts[:-1])
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            self._remove(parts, fd, os.lstat(parts[-1], dir_fd=fd))
        except FileNotFoundError:
            return
        finally:
            os.close(fd)

    def _remove(self, parts: list[bytes], directory: int, there: os.stat_result) -> None:
        if stat.S_ISDIR(there.st_mode):
            shutil.rmtree(parts[-1], dir_fd=directory)
            self._directories.forget(parts)
        else:
            os.unlink(parts[-1], dir_fd=directory)

    def _empty(self, parts: list[bytes]) -> None:
        try:
            fd = self._descent.open_below(parts)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            names = [os.fsencode(name) for name in os.listdir(fd)]  # noqa: PTH208 - by descriptor
        finally:
            os.close(fd)
        for name in names:
            self._take_away([*parts, name])

    # --- owners ---

    def _end_file(self) -> None:
        if self._file is not None:
            give(self._file.fd, self._file.member, self._is_root)
        super()._end_file()

    def _symlink(self, directory: int, name: bytes, member: tar.Member, parts: list[bytes]) -> None:
        super()._symlink(directory, name, member, parts)
        if self._is_root and max(member.uid, member.gid) < 2**32 - 1:
            os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
