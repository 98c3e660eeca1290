"""The way to each member of a tar from a sender who may be hostile.

Nothing is reached outside of the directory: each name is walked component by component from its open
descriptor and no link is followed on the way, but one that was there before and stays below it. So
whoever swaps a directory for a link meanwhile gains nothing. Standard library only: the daemon ships
this file.
"""

# ruff: noqa: PTH118
# pathlib costs the daemon 5 ms, and knows no directory descriptors.

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from sandman import tar
from sandman.errors import PathDeniedError, SandmanError
from sandman.pack import MAX_DEPTH

# Windows has neither; there the client copies single files only.
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Policy(NamedTuple):
    """What a receiver lets a sender do.

    What is made belongs to whom the thread acts as. `mode_mask`: permission bits that are taken over. `trusts_links`: symbolic links may point anywhere, and members may lie below those
    that stay inside; else links out are skipped, and members below any link refused. `max_bytes`: of
    the whole stream. `is_new`: the directory was made for this tar, and gets the sender's mode.
    """

    mode_mask: int = 0o7777
    trusts_links: bool = True
    max_bytes: int | None = None
    is_new: bool = False


class _Level:
    """An open directory on the way to the present member. `made`: what to set when it is left."""

    __slots__ = ("fd", "made", "name")

    def __init__(self, name: bytes, fd: int, made: tar.Member | None = None) -> None:
        self.name = name
        self.fd = fd
        self.made = made


class Descent:
    """The open directories from the top down to the present one. Close it.

    Directories that exist keep their mode and owner; those that are made get the sender's mode when
    the sender goes on to another one, so that they can be filled before.

    Raises:
        OSError: `path` is no directory.
    """

    def __init__(self, path: bytes | str | os.PathLike[str], policy: Policy) -> None:
        self._policy = policy
        self._real = os.fsencode(os.path.realpath(path))
        self._levels = [_Level(b"", os.open(path, os.O_RDONLY | os.O_DIRECTORY))]

    def close(self) -> None:
        """Let go of all directories as they are."""
        for level in self._levels:
            os.close(level.fd)
        self._levels.clear()

    def is_made(self, member: tar.Member) -> None:
        """The top was made for this tar, and is to become like this member."""
        self._levels[0].made = member

    def enter(self, parts: list[bytes], member: tar.Member | None = None) -> int:
        """Make this directory the present one, with those above it; its descriptor.

        `member`: the directory's own head; those that have none get 0755.
        """
        if len(parts) > MAX_DEPTH:
            raise refusal(b"/".join(parts), f"it is below more than {MAX_DEPTH} directories")
        same = 1
        while same < len(self._levels) and same <= len(parts):
            if self._levels[same].name != parts[same - 1]:
                break
            same += 1
        self.leave(same)
        for index in range(same - 1, len(parts)):
            is_own = member is not None and index == len(parts) - 1
            made = member if is_own and member is not None else tar.Member(b"", mode=0o755)
            self._levels.append(self._descend(parts[: index + 1], made))
        return self._levels[-1].fd

    def _descend(self, parts: list[bytes], member: tar.Member) -> _Level:
        above, name = self._levels[-1].fd, parts[-1]
        made: tar.Member | None = None
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            made = member
        except FileExistsError:
            pass
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR} or not _is_link(name, above):
                raise
            fd = self._through_link(parts)
        return _Level(name, fd, made)

    def _through_link(self, parts: list[bytes]) -> int:
        """The directory that a link leads to, if it lies below ours."""
        if not self._policy.trusts_links:
            raise refusal(b"/".join(parts), "it lies below a link")
        real = os.path.realpath(os.path.join(self._real, *parts))
        top = self._real.rstrip(b"/") + b"/"
        if real + b"/" != top and not real.startswith(top):
            raise refusal(b"/".join(parts), "it lies below a link that leaves the directory")
        return self.open_below([part for part in real[len(top) :].split(b"/") if part])

    def open_below(self, parts: list[bytes]) -> int:
        """A directory that exists, by names that are no links."""
        fd = os.dup(self._levels[0].fd)
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd

    def leave(self, count: int) -> None:
        """Keep so many levels."""
        while len(self._levels) > count:
            level = self._levels.pop()
            try:
                if level.made is not None:
                    self._finish_made(level.fd, level.made)
            finally:
                os.close(level.fd)

    def _finish_made(self, fd: int, member: tar.Member) -> None:
        if member.name:
            finish(fd, member, self._policy)
            return
        os.fchmod(fd, member.mode)


def finish(fd: int, member: tar.Member, policy: Policy) -> None:
    """Mode and time of a file or directory that was made."""
    os.fchmod(fd, member.mode & policy.mode_mask)
    os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))


def refusal(name: bytes, why: str) -> SandmanError:
    """The error for a member that would leave the directory."""
    text = name[:4096].decode("utf-8", "surrogateescape")
    return PathDeniedError(f"{text}: the archive's member is refused: {why}", field="body")


def _is_link(name: bytes, directory: int) -> bool:
    return stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode)
