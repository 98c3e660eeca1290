"""Trees of ours, taken away."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def remove_tree(path: Path) -> None:
    """As much of it as the kernel lets go; that is all of it where we own it.

    Directories that their owner may not change are opened first: overlayfs makes one in each of its working directories, sandboxes
    and images have others, and who is not root could not look into them.
    """
    _open_all(path)
    shutil.rmtree(path, ignore_errors=True)


def _open_all(path: Path) -> None:
    _open(str(path))
    for directory, below, _ in os.walk(path):
        for name in below:
            _open(os.path.join(directory, name))  # noqa: PTH118 - there may be very many


def _open(path: str) -> None:
    """Before the walk goes into it; never what a link leads to, whoever puts one there meanwhile."""
    with suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # noqa: PTH101 - such a fd takes no fchmod
        finally:
            os.close(fd)
