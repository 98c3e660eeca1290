"""Files on the caller's own machine, for copies in and out."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sandman import sparse

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_to_read(path: str | os.PathLike[str]) -> tuple[IO[bytes], int, int]:
    """A local file: open for reading, its size in bytes and its permission bits."""
    file = Path(path).open("rb")  # noqa: SIM115 - the caller closes it
    status = os.fstat(file.fileno())
    return file, status.st_size, status.st_mode & 0o777


class Part:
    """A file in the making beside its target, so that nobody sees half of it.

    Raises, of every method: OSError with the target's name: nobody asked for the other file.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        # Not derived from the target's name, which may be as long as the file system allows.
        with self._naming_target():
            self._fd, name = tempfile.mkstemp(prefix=".sandman-", dir=target.parent)
        self._content = sparse.Writer(self._fd)
        self._path = Path(name)

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes."""
        with self._naming_target():
            self._content.write(data)

    def finish(self, mode: int) -> None:
        """Put it in the target's place, with these permission bits."""
        with self._naming_target():
            self._content.finish()
            self._close()
            self._path.chmod(mode)
            self._path.replace(self._target)

    def close(self) -> None:
        """Remove what was not finished."""
        self._close()
        self._path.unlink(missing_ok=True)

    @contextmanager
    def _naming_target(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._target)) from error

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
