"""Files with holes stay files with holes: zeros are passed over instead of written.

A file of a gigabyte that holds a page of data would else fill the disk at the other end. Standard library
only: the daemon ships this file.
"""

from __future__ import annotations

import os

_STEP_BYTES = 64 * 1024
"""Zeros are looked for in so many bytes at a time."""
_ZEROS = bytes(_STEP_BYTES)


class Writer:
    """Writes to a new, empty file from its start. `finish` it: it may end in a hole."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._has_hole = False
        """Where the file stands is past its end."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes.

        Raises:
            OSError: the kernel refused; the disk is full, for one.
        """
        view = memoryview(data)
        start = 0
        for at in range(0, len(view), _STEP_BYTES):
            piece = view[at : at + _STEP_BYTES]
            if _is_zeros(piece):
                self._write(view[start:at])
                start = at + len(piece)
                os.lseek(self._fd, len(piece), os.SEEK_CUR)
                self._has_hole = True
        self._write(view[start:])

    def finish(self) -> None:
        """Give the file its length."""
        if self._has_hole:
            os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR))

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._fd, view) :]
            self._has_hole = False


def _is_zeros(view: memoryview) -> bool:
    if view[0] or view[-1] or view[len(view) // 2]:
        return False
    # As bytes: memoryviews are compared number by number.
    return bytes(view) == _ZEROS[: len(view)]
