"""`copy TARGET`: the init container puts the daemon into a volume where nodes lack image volumes.

There is no shell and no `cp` in its image. Each file appears under its name only when it is
complete, the interpreter last, and a second run after a broken first one mends it.
"""

# ruff: noqa: PTH101, PTH103, PTH104, PTH108, PTH110, PTH112, PTH118, PTH120
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
import sys

MODE = 0o555
"""Nobody writes: the commands of a sandbox share the volume's mount with their daemon."""
_PARTS = ("lib", "app", "licenses", "bin")
_BLOCK = 8 * 1024 * 1024


def own_tree() -> str:
    """The directory that this daemon was started from."""
    return os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))


def copy(source: str, target: str) -> tuple[int, int]:
    """Copy the tree's parts; number of files, and bytes.

    The image's root may be the source itself, so only the parts that belong to it are taken.
    """
    files = size = 0
    for part in _PARTS:
        start = os.path.join(source, part)
        if os.path.isdir(start):
            more, length = _copy_directory(start, os.path.join(target, part))
            files, size = files + more, size + length
    return files, size


def _copy_directory(source: str, target: str) -> tuple[int, int]:
    files = size = 0
    os.makedirs(target, exist_ok=True)
    os.chmod(target, 0o755)  # nosec B103  # noqa: S103 - as long as files are made in it
    for entry in os.scandir(source):
        place = os.path.join(target, entry.name)
        if entry.is_dir():
            more, length = _copy_directory(entry.path, place)
            files, size = files + more, size + length
        else:
            files, size = files + 1, size + _copy_file(entry.path, place)
    os.chmod(target, MODE)
    return files, size


def _copy_file(source: str, target: str) -> int:
    partial = f"{target}.partial"
    if os.path.exists(partial):
        os.unlink(partial)
    reader = os.open(source, os.O_RDONLY)
    try:
        writer = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        try:
            size = 0
            while sent := os.sendfile(writer, reader, None, _BLOCK):
                size += sent
            os.fchmod(writer, MODE)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    os.rename(partial, target)
    return size
