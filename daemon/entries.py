"""What there is at a path and below: one document an entry."""

# ruff: noqa: PTH115, PTH116, PTH118
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from daemon.files import translate
from sandman.errors import SandmanError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENTRIES = 50_000
"""Of one listing. As JSON they are some 12 MiB of the sandbox's memory; more is seldom looked at."""
MAX_DEPTH = 64
_TYPES = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFSOCK: "socket",
}  # fmt: skip


def describe(path: bytes, *, follow: bool = False) -> dict[str, object]:
    """One entry.

    Raises:
        OSError: there is none.
    """
    found = os.stat(path, follow_symlinks=follow)
    document: dict[str, object] = {
        "path": _text(path),
        "type": _TYPES.get(stat.S_IFMT(found.st_mode), "unknown"),
        "size": found.st_size,
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mtime": found.st_mtime_ns / 1e9,
    }
    if stat.S_ISLNK(found.st_mode):
        document["target"] = _text(os.readlink(path))
    return document


def listing(path: bytes, depth: int) -> Iterator[dict[str, object]]:
    """The entries of a directory, by name, each directory before what is in it. No link is followed.

    A directory further down that cannot be read has the reason in `error`.

    Raises:
        OSError: `path` cannot be read.
        TooLargeError: more than MAX_ENTRIES.
    """
    budget = [MAX_ENTRIES]
    yield from _below(path, sorted(_names(path, budget)), depth, budget)


def _below(
    path: bytes, names: list[bytes], depth: int, budget: list[int]
) -> Iterator[dict[str, object]]:
    for name in names:
        place = os.path.join(path, name)
        try:
            document = describe(place)
        except FileNotFoundError:
            continue  # gone since
        inner: list[bytes] = []
        if depth > 1 and document["type"] == "directory":
            try:
                inner = sorted(_names(place, budget))
            except OSError as error:
                document["error"] = translate(error, place).reason
        yield document
        yield from _below(place, inner, depth - 1, budget)


def _names(path: bytes, budget: list[int]) -> Iterator[bytes]:
    with os.scandir(path) as entries:
        for entry in entries:
            budget[0] -= 1
            if budget[0] < 0:
                raise _too_many(path)
            yield entry.name


def _too_many(path: bytes) -> SandmanError:
    return TooLargeError(
        f"{_text(path)}: more than {MAX_ENTRIES} entries: list it in parts, or by a command",
        field="path",
        facts={"limit": MAX_ENTRIES},
    )


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
