"""Files of a sandbox: bytes in and out, one file a call."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

import anyio

from sandman import names
from sandman._async.bodies import Body, Data, Source
from sandman._async.transport import Answer, Call, Transport
from sandman._core import faults, local_files
from sandman._core.retry import Repeat
from sandman._core.values import FileInfo
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

    async def read(self, path: Remote) -> bytes:
        """The file's bytes."""
        async with self._transport.open(self._call("GET", path)) as answer:
            return await answer.read()

    async def read_text(self, path: Remote, *, errors: str = "strict") -> str:
        """The file as UTF-8; line ends stay as they are.

        Raises:
            UnicodeDecodeError: it is not UTF-8, with `errors="strict"`.
        """
        return (await self.read(path)).decode("utf-8", errors)

    async def write(self, path: Remote, data: Data, *, mode: int | None = None) -> FileInfo:
        """Write the file whole or not at all; parents are made.

        Args:
            path: where.
            data: bytes, text (as UTF-8), a binary file from where it stands, or an iterable of bytes.
            mode: permission bits; None: an existing file keeps its own, a new one gets 0644.

        Raises:
            InternalError: other bytes arrived than were sent.
        """
        return await self._put(path, Source(data), mode)

    async def upload(
        self, local: str | os.PathLike[str], path: Remote, *, mode: int | None = None
    ) -> FileInfo:
        """Copy one local file into the sandbox; `mode` None: with its permission bits.

        Raises:
            OSError: the local file cannot be read.
        """
        file, size, own_mode = await anyio.to_thread.run_sync(local_files.open_to_read, local)
        try:
            return await self._put(
                path, Source(file, size=size), own_mode if mode is None else mode
            )
        finally:
            file.close()

    async def download(self, path: Remote, local: str | os.PathLike[str]) -> None:
        """Copy one file out of the sandbox, whole or not at all, with its permission bits.

        Raises:
            OSError: the local file cannot be written.
        """
        async with self._transport.open(self._call("GET", path)) as answer:
            mode = int(answer.response.headers.get("sandman-mode", "0644"), 8)
            await _save(answer, Path(local), mode & 0o777)

    async def delete(self, path: Remote) -> None:
        """Remove the file, or the empty directory."""
        await self._transport.json(self._call("DELETE", path, repeat=Repeat.UNSENT))

    async def exists(self, path: Remote) -> bool:
        """Whether there is a file or a directory."""
        try:
            async with self._transport.open(self._call("HEAD", path)):
                return True
        except CallerError:
            return await self._exists_by_reason(path)

    async def _exists_by_reason(self, path: Remote) -> bool:
        # An answer to HEAD has no body that could tell a missing path from a missing sandbox.
        try:
            async with self._transport.open(self._call("GET", path)):
                return True
        except (PathNotFoundError, NotADirectoryPathError):
            return False
        except IsADirectoryPathError:
            return True

    async def _put(self, path: Remote, source: Source, mode: int | None) -> FileInfo:
        query = "" if mode is None else f"&mode={mode:04o}"
        if (whole := source.whole) is not None:
            digest = (await anyio.to_thread.run_sync(hashlib.sha256, whole)).hexdigest()
            query += f"&sha256={digest}"
        body = Body(source)
        call = self._call(
            "PUT", path, query, repeat=Repeat.SAFE if source.replayable else Repeat.UNSENT
        )
        call.headers = {"content-type": names.MEDIA_BYTES}
        call.body = body
        answer = await self._transport.json(call)
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


async def _save(answer: Answer, local: Path, mode: int) -> None:
    """Write beside the target, then put it in place: nobody sees half a file."""
    part = local_files.Part(local)
    try:
        async for chunk in answer.chunks:
            await anyio.to_thread.run_sync(part.write, chunk)
        await anyio.to_thread.run_sync(part.finish, mode)
    finally:
        part.close()
