# Written by scripts/unasync.py from sandman/_async/files.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Files of a sandbox: bytes in and out, one file a call."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults, local_files
from sandman._core.retry import Repeat
from sandman._core.values import FileInfo
from sandman._sync.bodies import Body, Data, Source
from sandman._sync.transport import Answer, Call, Transport
from sandman.errors import (
    CallerError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathNotFoundError,
)

Remote = str | os.PathLike[str]
"""A path in the sandbox: absolute, or relative to the working directory."""


class Files:
    """Reads and writes files of one sandbox, as its user. `Sandbox.files`.

    Raises, of every method: PathNotFoundError, IsADirectoryPathError, NotADirectoryPathError,
    PathDeniedError, NoSpaceError; SandmanError for the sandbox's end and the way there.
    """

    def __init__(self, transport: Transport, sandbox: str, path: str) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self._path = path

    def read(self, path: Remote) -> bytes:
        """The file's bytes."""
        with self._transport.open(self._call("GET", path)) as answer:
            return answer.read()

    def read_text(self, path: Remote, *, errors: str = "strict") -> str:
        """The file as UTF-8; line ends stay as they are.

        Raises:
            UnicodeDecodeError: it is not UTF-8, with `errors="strict"`.
        """
        return (self.read(path)).decode("utf-8", errors)

    def write(self, path: Remote, data: Data, *, mode: int | None = None) -> FileInfo:
        """Write the file whole or not at all; parents are made.

        Args:
            path: where.
            data: bytes, text (as UTF-8), a binary file from where it stands, or an iterable of bytes.
            mode: permission bits; None: an existing file keeps its own, a new one gets 0644.

        Raises:
            InternalError: other bytes arrived than were sent.
        """
        return self._put(path, Source(data), mode)

    def upload(
        self, local: str | os.PathLike[str], path: Remote, *, mode: int | None = None
    ) -> FileInfo:
        """Copy one local file into the sandbox; `mode` None: with its permission bits.

        Raises:
            OSError: the local file cannot be read.
        """
        file, size, own_mode = anyio.to_thread.run_sync(local_files.open_to_read, local)
        try:
            return self._put(path, Source(file, size=size), own_mode if mode is None else mode)
        finally:
            file.close()

    def download(self, path: Remote, local: str | os.PathLike[str]) -> None:
        """Copy one file out of the sandbox, whole or not at all, with its permission bits.

        Raises:
            OSError: the local file cannot be written.
        """
        with self._transport.open(self._call("GET", path)) as answer:
            mode = int(answer.response.headers.get("sandman-mode", "0644"), 8)
            _save(answer, Path(local), mode & 0o777)

    def delete(self, path: Remote) -> None:
        """Remove the file, or the empty directory."""
        self._transport.json(self._call("DELETE", path, repeat=Repeat.UNSENT))

    def exists(self, path: Remote) -> bool:
        """Whether there is a file or a directory."""
        try:
            with self._transport.open(self._call("HEAD", path)):
                return True
        except CallerError:
            return self._exists_by_reason(path)

    def _exists_by_reason(self, path: Remote) -> bool:
        # An answer to HEAD has no body that could tell a missing path from a missing sandbox.
        try:
            with self._transport.open(self._call("GET", path)):
                return True
        except (PathNotFoundError, NotADirectoryPathError):
            return False
        except IsADirectoryPathError:
            return True

    def _put(self, path: Remote, source: Source, mode: int | None) -> FileInfo:
        query = "" if mode is None else f"&mode={mode:04o}"
        if (whole := source.whole) is not None:
            digest = (anyio.to_thread.run_sync(hashlib.sha256, whole)).hexdigest()
            query += f"&sha256={digest}"
        body = Body(source)
        call = self._call(
            "PUT", path, query, repeat=Repeat.SAFE if source.replayable else Repeat.UNSENT
        )
        call.headers = {"content-type": names.MEDIA_BYTES}
        call.body = body
        answer = self._transport.json(call)
        if not isinstance(answer, dict):
            raise faults.not_understood("a file", answer)
        info = FileInfo.from_json(answer)
        if info.sha256 != body.sha256.hexdigest():
            raise faults.altered(os.fspath(path), self._sandbox)
        return info

    def _call(
        self, method: str, path: Remote, query: str = "", *, repeat: Repeat = Repeat.SAFE
    ) -> Call:
        target = f"{self._path}/files?path={quote(os.fsencode(path), safe='/')}{query}"
        return Call(method, target, repeat=repeat, sandbox=self._sandbox)


def _save(answer: Answer, local: Path, mode: int) -> None:
    """Write beside the target, then put it in place: nobody sees half a file."""
    part = local_files.Part(local)
    try:
        for chunk in answer.chunks:
            anyio.to_thread.run_sync(part.write, chunk)
        anyio.to_thread.run_sync(part.finish, mode)
    finally:
        part.close()
