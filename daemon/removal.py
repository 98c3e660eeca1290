"""A directory and all that is below it, gone. No link is followed, whoever changes the tree meanwhile.

Two descriptors at any depth: the way back up is `..`, checked to be where we came from.
"""

# ruff: noqa: PTH106, PTH108, PTH119
# pathlib costs 5 ms at each pod's start, and knows no directory descriptors.

from __future__ import annotations

import errno
import os
import stat

from sandman.errors import PathDeniedError

_BATCH = 500
"""Directories of one directory that are remembered at once: their number may be anything."""
_IS_FULL = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_tree(path: bytes) -> None:
    """Remove a file, a link itself, or a directory with all that is in it.

    Raises:
        OSError: the first refusal; what was removed by then stays removed.
        PathDeniedError: it is the root directory, or has no name.
    """
    path = _named(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    if os.path.realpath(path) == b"/":
        raise _refusal("/", "the root directory is not removed", errno.EBUSY)
    try:
        # First, not last alone: a directory that will not go (a mount, another's) keeps what is in it.
        os.rmdir(path)
    except OSError as error:
        if error.errno not in _IS_FULL:
            raise
        _empty(os.open(path, _DIRECTORY))
        os.rmdir(path)


def remove(path: bytes) -> None:
    """Remove a file, a link itself, or an empty directory.

    Raises:
        OSError: refused.
        PathDeniedError: it has no name.
    """
    path = _named(path)
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)


def _named(path: bytes) -> bytes:
    """The path by which it can be removed: the kernel removes names, and `.` and `..` are none.

    With slashes at its end the path means a directory and no link: they would lead through the link.
    """
    bare = path.rstrip(b"/") or b"/"
    if os.path.basename(bare) in {b".", b".."}:
        why = "a path that ends in `.` or `..` is not removed"
        raise _refusal(os.fsdecode(path), why, errno.EINVAL)
    if bare != path and not stat.S_ISDIR(os.lstat(bare).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return bare


def _refusal(path: str, why: str, number: int) -> PathDeniedError:
    return PathDeniedError(f"{path}: {why}", field="path", facts={"errno": errno.errorcode[number]})


def _empty(fd: int) -> None:
    """Remove all below the directory, and close its descriptor."""
    above: list[tuple[str, tuple[int, int], list[str]]] = []
    try:
        pending = _remove_flat(fd)
        while pending or above:
            if pending:
                name = pending.pop()
                above.append((name, _identity(fd), pending))
                fd = _move(fd, name)
                pending = _remove_flat(fd)
            else:
                name, identity, siblings = above.pop()
                fd = _move(fd, "..")
                _check_back(fd, identity)
                os.rmdir(name, dir_fd=fd)
                pending = siblings or _remove_flat(fd)
    finally:
        os.close(fd)


def _check_back(fd: int, identity: tuple[int, int]) -> None:
    if _identity(fd) != identity:
        raise OSError(errno.EBUSY, "the directory was moved while it was removed")


def _move(fd: int, name: str) -> int:
    new = os.open(name, _DIRECTORY, dir_fd=fd)
    os.close(fd)
    return new


def _remove_flat(fd: int) -> list[str]:
    """Remove what is no directory, up to the first so many directories; those."""
    found: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=fd)
                continue
            found.append(entry.name)
            if len(found) == _BATCH:
                break
    return found


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
