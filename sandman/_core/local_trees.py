"""Directories on the caller's own machine, for copies in and out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import errors
from sandman._core.sources import CHUNK_BYTES
from sandman._core.values import TreeInfo
from sandman.descent import Policy
from sandman.pack import FilePart, Packer, read_part
from sandman.unpack import Unpacker, UnpackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_BYTES = 16 * 1024**3
"""Of a directory that comes out of a sandbox: what runs there may try to fill the caller's disk."""


class Sender:
    """A local directory as a tar, in pieces of about CHUNK_BYTES. May begin again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._packer: Packer | None = None
        self._pieces: Iterator[bytes] | None = None

    def open(self) -> None:
        """Start, or start again.

        Raises:
            OSError: it is no directory that can be read.
        """
        if self._pieces is None and self._packer is not None:
            return  # nothing was read yet
        self.close()
        self._packer = Packer(self._path)

    def read(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._pieces is None and self._packer is not None:
            self._pieces = _pieces(self._packer)
        if self._pieces is None:
            return b""
        batch = bytearray()
        while len(batch) < CHUNK_BYTES:
            piece = next(self._pieces, b"")
            if not piece:
                break
            batch += piece
        return bytes(batch)

    def close(self) -> None:
        """Let go of all files."""
        if self._pieces is not None:
            self._pieces.close()  # type: ignore[attr-defined]
            self._pieces = None
        if self._packer is not None:
            self._packer.close()
            self._packer = None


def _pieces(packer: Packer) -> Iterator[bytes]:
    parts = packer.parts()
    try:
        for part in parts:
            if isinstance(part, FilePart):
                yield from read_part(part, packer.skips, CHUNK_BYTES)
            else:
                yield part
    finally:
        parts.close()  # type: ignore[attr-defined]


class Receiver:
    """A tar out of a sandbox, which may be hostile, into a local directory."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int | None, sandbox: str) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._sandbox = sandbox
        self._unpacker: Unpacker | None = None

    def open(self) -> None:
        """Make the directory when it is missing.

        Raises:
            OSError: it cannot be made.
        """
        is_new = not self._path.exists()
        self._path.mkdir(parents=True, exist_ok=True)
        policy = Policy(
            mode_mask=0o777, trusts_links=False, max_bytes=self._max_bytes, is_new=is_new
        )
        self._unpacker = Unpacker(self._path, policy)

    def feed(self, data: bytes | bytearray) -> None:
        """Take the next bytes.

        Raises:
            OSError: the local file system refused.
            PathDeniedError: a member that would leave the directory.
            TooLargeError: over `max_bytes`.
            InternalError: no tar.
        """
        self._carefully(lambda unpacker: unpacker.feed(data))

    def finish(self) -> TreeInfo:
        """There are no more bytes; what was made. Raises as `feed`."""
        one = self._carefully(lambda unpacker: unpacker.finish())
        return TreeInfo(one.members, one.bytes, tuple(one.skips.told), one.skips.count)

    def _carefully(self, call: Callable[[Unpacker], None]) -> Unpacker:
        if self._unpacker is None:
            raise RuntimeError("not open")
        try:
            call(self._unpacker)
        except UnpackError as error:
            cause = error.error
            raise type(cause)(cause.errno, cause.strerror, os.fsdecode(error.name)) from error
        except errors.SandmanError as error:
            raise self._translated(error) from error
        return self._unpacker

    def close(self) -> None:
        """Let go of all files; one that is not whole is removed."""
        if self._unpacker is not None:
            self._unpacker.close()

    def _translated(self, error: errors.SandmanError) -> errors.SandmanError:
        if isinstance(error, errors.BadRequestError):
            error = errors.InternalError(
                f"the archive is broken: {error.detail}", facts=error.facts
            )
        error.sandbox = self._sandbox
        error.field = None
        if isinstance(error, errors.PathDeniedError):
            error.cause = errors.SANDBOX
        return error
