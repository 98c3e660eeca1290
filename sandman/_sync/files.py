# Written by scripts/unasync.py from sandman/_async/files.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Files of a sandbox: bytes in and out, one file a call."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults, local_files
from sandman._core.local_trees import MAX_BYTES, Sender
from sandman._core.retry import Repeat
from sandman._core.sources import CHUNK_BYTES
from sandman._core.values import EntryInfo, FileInfo, TreeInfo
from sandman._sync.bodies import Body, Data, Source
from sandman._sync.transport import Answer, Call, Transport
from sandman._sync.trees import TreeBody, save
from sandman.errors import (
    CallerError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathNotFoundError,
    TooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandman._sync.trees import Progress

Info = TypeVar("Info", EntryInfo, FileInfo, TreeInfo)
User = str | int | None
Remote = str | os.PathLike[str]
"""A path in the sandbox: absolute, or relative to the working directory."""
MAX_READ_BYTES = 1024**3
"""Of a file that is read into the caller's memory: what runs in the sandbox may have made it any size."""


class FileStream:
    """A file's bytes as they come, and no more than were asked for: what sends them may be hostile.

    `mode`: its permission bits.
    """

    def __init__(self, answer: Answer, most: int | None, sandbox: str) -> None:
        self._chunks = answer.chunks
        self._left = most
        self._most = most
        self._sandbox = sandbox
        self.mode = int(answer.response.headers.get("sandman-mode", "0644"), 8) & 0o777

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        if self._left is not None:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooLargeError(
                    f"the file is over the limit of {self._most} bytes",
                    sandbox=self._sandbox,
                    facts={"limit": self._most},
                )
        return chunk

    def read(self) -> bytes:
        """All of them."""
        parts = []
        while (part := next(self, None)) is not None:
            parts.append(part)
        return b"".join(parts)


class Files:
    """Reads and writes files of one sandbox. `Sandbox.files`.

    `user`, of every method: the name or uid as whom it is done, with that user's rights alone; None:
    the sandbox's user. What is made is that user's.

    Raises, of every method: PathNotFoundError, IsADirectoryPathError, NotADirectoryPathError,
    PathDeniedError, NoSpaceError; SandmanError for the sandbox's end and the way there.
    """

    def __init__(self, transport: Transport, sandbox: str, path: str) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self._path = path

    def read(
        self, path: Remote, *, max_bytes: int | None = MAX_READ_BYTES, user: User = None
    ) -> bytes:
        """The file's bytes.

        Raises:
            TooLargeError: more than `max_bytes` (1 GiB; None: no limit). Nothing is sent then.
        """
        with self.stream(path, max_bytes=max_bytes, user=user) as chunks:
            return chunks.read()

    def read_text(
        self,
        path: Remote,
        *,
        errors: str = "strict",
        max_bytes: int | None = MAX_READ_BYTES,
        user: User = None,
    ) -> str:
        """The file as UTF-8; line ends stay as they are.

        Raises:
            UnicodeDecodeError: it is not UTF-8, with `errors="strict"`.
            TooLargeError: more than `max_bytes`, as of `read`.
        """
        return (self.read(path, max_bytes=max_bytes, user=user)).decode("utf-8", errors)

    @contextmanager
    def stream(
        self, path: Remote, *, max_bytes: int | None = None, user: User = None
    ) -> Iterator[FileStream]:
        """The file's bytes as they come: `with files.stream(path) as f: for data in f: …`.

        Raises:
            TooLargeError: more than `max_bytes`, before the first of them where the size is known.
        """
        query = _user(user) + ("" if max_bytes is None else f"&max_bytes={max_bytes}")
        with self._transport.open(self._call("GET", path, query)) as answer:
            yield FileStream(answer, max_bytes, self._sandbox)

    def write(
        self,
        path: Remote,
        data: Data,
        *,
        mode: int | None = None,
        user: User = None,
    ) -> FileInfo:
        """Write the file whole or not at all; parents are made.

        Args:
            path: where.
            data: bytes, text (as UTF-8), a binary file from where it stands, or an iterable of bytes.
            mode: permission bits; None: an existing file keeps its own, a new one gets 0644.
            user: as whom; an existing file keeps its owner where that user may give files away.

        Raises:
            InternalError: other bytes arrived than were sent.
            UserUnsupportedError: no such user, or the sandbox may not act as that user.
        """
        return self._put(path, Source(data), mode, user)

    def upload(
        self,
        local: str | os.PathLike[str],
        path: Remote,
        *,
        mode: int | None = None,
        user: User = None,
    ) -> FileInfo:
        """Copy one local file into the sandbox; `mode` None: with its permission bits.

        Raises:
            OSError: the local file cannot be read.
        """
        file, size, own_mode = anyio.to_thread.run_sync(local_files.open_to_read, local)
        try:
            return self._put(
                path, Source(file, size=size), own_mode if mode is None else mode, user
            )
        finally:
            file.close()

    def download(
        self,
        path: Remote,
        local: str | os.PathLike[str],
        *,
        max_bytes: int | None = MAX_BYTES,
        user: User = None,
    ) -> None:
        """Copy one file out of the sandbox, whole or not at all, with its permission bits.

        Raises:
            OSError: the local file cannot be written.
            TooLargeError: more than `max_bytes` (16 GiB; None: no limit).
        """
        with self.stream(path, max_bytes=max_bytes, user=user) as chunks:
            _save(chunks, Path(local))

    def upload_dir(
        self,
        local: str | os.PathLike[str],
        path: Remote,
        *,
        user: User = None,
        progress: Progress | None = None,
    ) -> TreeInfo:
        """Copy what is in a local directory into one of the sandbox, which is made when it is missing.

        Modes, times, links and empty directories are kept; directories that exist keep theirs. An
        error leaves what had arrived by then.

        Args:
            local: the directory here.
            path: the directory there.
            user: as whom, as of every method.
            progress: is called with the bytes sent so far, and None; anew from 0 in another attempt.

        Raises:
            OSError: the local directory cannot be read.
        """
        sender = Sender(local)
        try:
            anyio.to_thread.run_sync(sender.open)
            call = self._call("PUT", path, _user(user), tail="archive")
            call.headers = {"content-type": names.MEDIA_TAR}
            call.body = TreeBody(sender, progress)
            return self._parsed(call, TreeInfo)
        finally:
            sender.close()

    def download_dir(
        self,
        path: Remote,
        local: str | os.PathLike[str],
        *,
        max_bytes: int | None = MAX_BYTES,
        user: User = None,
        progress: Progress | None = None,
    ) -> TreeInfo:
        """Copy what is in a directory of the sandbox into a local one, made when it is missing.

        What comes is not trusted: nothing is written outside of `local`, links out of it, devices and
        FIFOs are skipped, set-uid bits dropped. An error leaves what had arrived by then.

        Args:
            path: the directory there.
            local: the directory here.
            max_bytes: of the whole stream (16 GiB); None: no limit.
            user: as whom, as of every method.
            progress: is called with the bytes so far and their total, None until the end.

        Raises:
            TooLargeError: more than `max_bytes`.
            PathDeniedError: also for a name that would leave `local`.
            OSError: the local directory cannot be written.
        """
        call = self._call("GET", path, _user(user), tail="archive")
        with self._transport.open(call) as answer:
            return save(answer, local, max_bytes, self._sandbox, progress)

    def stat(self, path: Remote, *, follow: bool = False, user: User = None) -> EntryInfo:
        """What there is at the path; of a link the link itself, unless `follow`."""
        query = _user(user) + ("&follow=1" if follow else "")
        return self._parsed(self._call("GET", path, query, tail="files/stat"), EntryInfo)

    def list(self, path: Remote, *, depth: int = 1, user: User = None) -> Sequence[EntryInfo]:
        """What is in the directory, by name; with `depth` also in those below it.

        Raises:
            TooLargeError: more than 50,000 entries.
        """
        call = self._call("GET", path, f"&depth={depth}{_user(user)}", tail="files/list")
        answer = self._transport.json(call)
        try:
            return [EntryInfo.from_json(entry) for entry in answer["entries"]]  # type: ignore[index]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise faults.not_understood("a listing", answer) from None

    def move(
        self, path: Remote, to: Remote, *, replace: bool = False, user: User = None
    ) -> EntryInfo:
        """Rename a file or directory, within one file system of the sandbox.

        Raises:
            ConflictError: `to` exists, without `replace`.
        """
        body = {"from": os.fsdecode(path), "to": os.fsdecode(to), "replace": replace, **_as(user)}
        return self._parsed(self._post("files/move", body, Repeat.UNSENT), EntryInfo)

    def mkdir(
        self, path: Remote, *, parents: bool = False, mode: int = 0o755, user: User = None
    ) -> EntryInfo:
        """Make a directory; with `parents` those above it, and none of them need be missing.

        Raises:
            ConflictError: it exists, without `parents`.
        """
        body = {"path": os.fsdecode(path), "parents": parents, "mode": f"{mode:04o}", **_as(user)}
        repeat = Repeat.SAFE if parents else Repeat.UNSENT
        return self._parsed(self._post("files/mkdir", body, repeat), EntryInfo)

    def delete(self, path: Remote, *, recursive: bool = False, user: User = None) -> None:
        """Remove the file, or the empty directory; with `recursive` any directory."""
        query = _user(user) + ("&recursive=1" if recursive else "")
        self._transport.json(self._call("DELETE", path, query, repeat=Repeat.UNSENT))

    def exists(self, path: Remote, *, user: User = None) -> bool:
        """Whether there is a file or a directory."""
        try:
            with self._transport.open(self._call("HEAD", path, _user(user))):
                return True
        except CallerError:
            return self._exists_by_reason(path, user)

    def _exists_by_reason(self, path: Remote, user: User) -> bool:
        # An answer to HEAD has no body that could tell a missing path from a missing sandbox.
        try:
            with self._transport.open(self._call("GET", path, _user(user))):
                return True
        except (PathNotFoundError, NotADirectoryPathError):
            return False
        except IsADirectoryPathError:
            return True

    def _put(self, path: Remote, source: Source, mode: int | None, user: User) -> FileInfo:
        query = _user(user) + ("" if mode is None else f"&mode={mode:04o}")
        if (whole := source.whole) is not None:
            digest = (anyio.to_thread.run_sync(hashlib.sha256, whole)).hexdigest()
            query += f"&sha256={digest}"
        body = Body(source)
        call = self._call(
            "PUT", path, query, repeat=Repeat.SAFE if source.replayable else Repeat.UNSENT
        )
        call.headers = {"content-type": names.MEDIA_BYTES}
        call.body = body
        info = self._parsed(call, FileInfo, "a file")
        if info.sha256 != body.sha256.hexdigest():  # not secret: of a file
            raise faults.altered(os.fspath(path), self._sandbox)
        return info

    def _parsed(self, call: Call, kind: type[Info], wanted: str = "what the call asks for") -> Info:
        answer = self._transport.json(call)
        try:
            return kind.from_json(answer)  # type: ignore[arg-type]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise faults.not_understood(wanted, answer) from None

    def _post(self, tail: str, document: dict[str, object], repeat: Repeat) -> Call:
        call = Call.with_json("POST", f"{self._path}/{tail}", document)
        call.repeat, call.sandbox = repeat, self._sandbox
        return call

    def _call(
        self,
        method: str,
        path: Remote,
        query: str = "",
        *,
        repeat: Repeat = Repeat.SAFE,
        tail: str = "files",
    ) -> Call:
        target = f"{self._path}/{tail}?path={quote(os.fsencode(path), safe='/')}{query}"
        return Call(method, target, repeat=repeat, sandbox=self._sandbox)


def _user(user: User) -> str:
    return "" if user is None else f"&user={quote(os.fsencode(str(user)), safe='')}"


def _as(user: User) -> dict[str, object]:
    return {} if user is None else {"user": user}


def _save(chunks: FileStream, local: Path) -> None:
    """Write beside the target, then put it in place: nobody sees half a file."""
    part = local_files.Part(local)
    batch = bytearray()
    try:
        for chunk in chunks:
            batch += chunk
            # A way to another thread and back for each TLS record would take longer than the writing.
            if len(batch) >= CHUNK_BYTES:
                anyio.to_thread.run_sync(part.write, batch)
                batch = bytearray()
        anyio.to_thread.run_sync(part.write, batch)
        anyio.to_thread.run_sync(part.finish, chunks.mode)
    finally:
        part.close()
