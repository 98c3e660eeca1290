"""A tar into a directory, from a sender who may be hostile. Constant memory.

Where its members may lie is `sandman.descent`'s to say. Standard library only: the daemon ships this
file.
"""

# pathlib costs the daemon 5 ms, and knows no directory descriptors.

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from sandman import sparse, tar
from sandman.descent import Descent, Policy, finish, refusal
from sandman.errors import BadRequestError, TooLargeError
from sandman.pack import MAX_TOLD, Skips

if TYPE_CHECKING:
    from types import TracebackType

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_WHY = {tar.CHARACTER: "device", tar.BLOCK_DEVICE: "device", tar.FIFO: "fifo"}


class UnpackError(Exception):
    """The kernel refused a member: its name and the refusal."""

    def __init__(self, name: bytes, error: OSError) -> None:
        super().__init__(str(error))
        self.name = name
        self.error = error


class _File(NamedTuple):
    """A file on its way. `directory`: the descriptor of the one it is in."""

    fd: int
    directory: int
    name: bytes
    member: tar.Member
    content: sparse.Writer


class Unpacker:
    """Takes a tar in pieces. Close it: an unfinished file is removed then.

    Directories that exist keep their mode and owner; those that are made get the sender's mode when
    the sender goes on to another one, so that they can be filled before.

    Raises:
        OSError: `path` is no directory.
    """

    def __init__(self, path: bytes | str | os.PathLike[str], policy: Policy) -> None:
        self._policy = policy
        self._reader = tar.Reader()
        self._descent = Descent(path, policy)
        self._file: _File | None = None
        self.members = 0
        self.bytes = 0
        """Of the files' content."""
        self.last = b""
        """Name of the latest member."""
        self.skips = Skips()

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_done(self) -> bool:
        """The tar's end was read."""
        return self._reader.is_done

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes.

        Raises:
            BadRequestError: no tar.
            PathDeniedError: a member that would leave the directory.
            TooLargeError: over the policy's limit.
            UnpackError: the kernel refused.
        """
        try:
            for item in self._reader.feed(data):
                if isinstance(item, tar.Member):
                    self._end_file()
                    self.last = item.name
                    self._check_limit(item)
                    self._begin(item)
                elif self._file is not None:
                    self.bytes += len(item)
                    self._file.content.write(item)
            if self._reader.left == 0:
                self._end_file()
        except OSError as error:
            raise UnpackError(self.last, error) from error

    def finish(self) -> None:
        """There are no more bytes.

        Raises:
            BadRequestError: the tar has no end; the facts say how far it came.
        """
        if not self._reader.is_done:
            raise BadRequestError(
                f"the tar ends after {self._reader.position} bytes without its end mark",
                field="body",
                facts=self.facts(),
            )
        try:
            self._descent.leave(0)
        except OSError as error:
            raise UnpackError(self.last, error) from error

    def facts(self) -> dict[str, object]:
        """How far it came."""
        return {
            "members": self.members,
            "bytes": self.bytes,
            "last": self.last[-4096:].decode("utf-8", "replace"),
        }

    def close(self) -> None:
        """Let go of everything."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file.fd)
            _unlink(file.name, file.directory)
        self._descent.close()

    # --- members ---

    def _check_limit(self, member: tar.Member) -> None:
        most = self._policy.max_bytes
        if most is not None and self._reader.position + member.size > most:
            raise TooLargeError(
                f"the archive is over the limit of {most} bytes", facts={"limit": most}
            )

    def _begin(self, member: tar.Member) -> None:
        self._take_told(member)
        parts = self._parts(member.name)
        if not parts:
            if member.kind != tar.DIRECTORY:
                self.skips.add(member.name, "has no name")
            elif self._policy.is_new:
                self._descent.is_made(member)
            return
        if member.kind == tar.DIRECTORY:
            self._descent.enter(parts, member)
            self.members += 1
            return
        directory = self._descent.enter(parts[:-1])
        name = parts[-1]
        if member.kind == tar.FILE:
            self._open_file(directory, name, member)
        elif member.kind == tar.SYMLINK:
            self._symlink(directory, name, member, parts)
        elif member.kind == tar.HARDLINK:
            self._hardlink(directory, name, member)
        else:
            self.skips.add(member.name, _WHY.get(member.kind, "of unknown type"))

    def _parts(self, name: bytes) -> list[bytes]:
        """The name's components.

        Raises:
            PathDeniedError: it is absolute, or goes up.
        """
        parts = [part for part in name.split(b"/") if part not in {b"", b"."}]
        if name.startswith(b"/") or b".." in parts:
            raise refusal(name, "its name leaves the directory")
        if b"\0" in name:
            raise refusal(name, "its name holds a NUL")
        return parts

    def _take_told(self, member: tar.Member) -> None:
        """What the sender says it skipped."""
        told = member.records.get(tar.SKIPPED)
        if told is None:
            return
        try:
            items = [(str(name), str(why)) for name, why in json.loads(told)][:MAX_TOLD]
            count = int(member.records.get(tar.SKIPPED_COUNT, b"0"))
        except (ValueError, TypeError, RecursionError):
            return
        for name, why in items:
            self.skips.add(name, why)
        self.skips.count += max(0, count - len(items))

    # --- files and links ---

    def _open_file(self, directory: int, name: bytes, member: tar.Member) -> None:
        try:
            fd = os.open(name, _NEW, 0o600, dir_fd=directory)
        except FileExistsError:
            fd = self._open_over(directory, name)
        self._file = _File(fd, directory, name, member, sparse.Writer(fd))

    def _open_over(self, directory: int, name: bytes) -> int:
        """In place of what is there; written over only where it cannot be taken away: a mount."""
        try:
            os.unlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=directory)
        return os.open(name, _NEW, 0o600, dir_fd=directory)

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.content.finish()
        finish(self._file.fd, self._file.member, self._policy)
        file, self._file = self._file, None
        os.close(file.fd)
        self.members += 1

    def _symlink(self, directory: int, name: bytes, member: tar.Member, parts: list[bytes]) -> None:
        if not self._policy.trusts_links and _leads_out(parts[:-1], member.link):
            self.skips.add(member.name, "link out of the directory")
            return
        if b"\0" in member.link or not member.link:
            self.skips.add(member.name, "link to nowhere")
            return
        try:
            os.symlink(member.link, name, dir_fd=directory)
        except FileExistsError:
            os.unlink(name, dir_fd=directory)
            os.symlink(member.link, name, dir_fd=directory)
        times = (member.mtime_ns, member.mtime_ns)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
        self.members += 1

    def _hardlink(self, directory: int, name: bytes, member: tar.Member) -> None:
        source = self._parts(member.link)
        if not source:
            raise refusal(member.name, "it links to the directory itself")
        found = self._descent.open_below(source[:-1])
        try:
            # A link that is right in its own directory may lead out from another one.
            if not stat.S_ISREG(os.lstat(source[-1], dir_fd=found).st_mode):
                self.skips.add(member.name, "hard link to what is no file")
                return
            options = {"src_dir_fd": found, "dst_dir_fd": directory, "follow_symlinks": False}
            try:
                os.link(source[-1], name, **options)  # type: ignore[arg-type]
            except FileExistsError:
                if _is_same(source[-1], found, name, directory):
                    return
                os.unlink(name, dir_fd=directory)
                os.link(source[-1], name, **options)  # type: ignore[arg-type]
        finally:
            os.close(found)
        self.members += 1


def _leads_out(above: list[bytes], link: bytes) -> bool:
    """Whether a link in this directory may lead out of the top.

    A `..` after a name may: the name may be, or become, a link to a place that is less deep. Without
    those each link leads inside by itself, and so does each chain of them.
    """
    parts = [part for part in link.split(b"/") if part not in {b"", b"."}]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    return link.startswith(b"/") or ups > len(above) or b".." in parts[ups:]


def _is_same(name: bytes, directory: int, other: bytes, its: int) -> bool:
    one = os.stat(name, dir_fd=directory, follow_symlinks=False)
    two = os.stat(other, dir_fd=its, follow_symlinks=False)
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


def _unlink(name: bytes, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
