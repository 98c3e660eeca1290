"""A tar into a directory, from a sender who may be hostile. Constant memory.

Nothing is made outside of the directory: each name is walked component by component from its open
descriptor and no link is followed on the way, but one that was there before and stays below it. So
whoever swaps a directory for a link meanwhile gains nothing. Standard library only: the daemon ships
this file.
"""

# ruff: noqa: PTH118
# pathlib costs the daemon 5 ms, and knows no directory descriptors.

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from sandman import tar
from sandman.errors import BadRequestError, PathDeniedError, SandmanError, TooLargeError
from sandman.pack import MAX_DEPTH, MAX_TOLD, Skips

if TYPE_CHECKING:
    from types import TracebackType

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_WHY = {tar.CHARACTER: "device", tar.BLOCK_DEVICE: "device", tar.FIFO: "fifo"}


class Policy(NamedTuple):
    """What a receiver lets a sender do.

    `owner`: uid and gid of what is made; None: the process's own. `mode_mask`: permission bits that
    are taken over. `trusts_links`: symbolic links may point anywhere, and members may lie below those
    that stay inside; else links out are skipped, and members below any link refused. `max_bytes`: of
    the whole stream. `is_new`: the directory was made for this tar, and gets the sender's mode.
    """

    owner: tuple[int, int] | None = None
    mode_mask: int = 0o7777
    trusts_links: bool = True
    max_bytes: int | None = None
    is_new: bool = False


class _Level:
    """An open directory on the way to the present member. `made`: what to set when it is left."""

    __slots__ = ("fd", "made", "name")

    def __init__(self, name: bytes, fd: int, made: tar.Member | None = None) -> None:
        self.name = name
        self.fd = fd
        self.made = made


class UnpackError(Exception):
    """The kernel refused a member: its name and the refusal."""

    def __init__(self, name: bytes, error: OSError) -> None:
        super().__init__(str(error))
        self.name = name
        self.error = error


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
        self._real = os.fsencode(os.path.realpath(path))
        self._levels = [_Level(b"", os.open(path, os.O_RDONLY | os.O_DIRECTORY))]
        self._file: tuple[int, int, bytes, tar.Member] | None = None
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

    def feed(self, data: bytes) -> None:
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
                    self._write(self._file[0], item)
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
            self._leave(0)
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
            fd, directory, name, _ = self._file
            self._file = None
            os.close(fd)
            _unlink(name, directory)
        for level in self._levels:
            os.close(level.fd)
        self._levels.clear()

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
                self._levels[0].made = member
            return
        if member.kind == tar.DIRECTORY:
            self._enter(parts, member)
            self.members += 1
            return
        directory = self._enter(parts[:-1])
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
            raise _refusal(name, "its name leaves the directory")
        if b"\0" in name:
            raise _refusal(name, "its name holds a NUL")
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
        self._file = (fd, directory, name, member)

    def _open_over(self, directory: int, name: bytes) -> int:
        """In place of what is there; written over only where it cannot be taken away: a mount."""
        try:
            os.unlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=directory)
        return os.open(name, _NEW, 0o600, dir_fd=directory)

    def _write(self, fd: int, piece: memoryview) -> None:
        self.bytes += len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]

    def _end_file(self) -> None:
        if self._file is None:
            return
        fd, _, _, member = self._file
        self._finish_node(fd, member)
        self._file = None
        os.close(fd)
        self.members += 1

    def _finish_node(self, fd: int, member: tar.Member) -> None:
        """Owner, mode and time of a file or directory that was made."""
        if self._policy.owner is not None:
            os.fchown(fd, *self._policy.owner)
        os.fchmod(fd, member.mode & self._policy.mode_mask)  # last: chown takes set-uid away
        os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))

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
        if self._policy.owner is not None:
            os.chown(name, *self._policy.owner, dir_fd=directory, follow_symlinks=False)
        times = (member.mtime_ns, member.mtime_ns)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
        self.members += 1

    def _hardlink(self, directory: int, name: bytes, member: tar.Member) -> None:
        source = self._parts(member.link)
        if not source:
            raise _refusal(member.name, "it links to the directory itself")
        found = self._open_below(source[:-1])
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

    # --- directories ---

    def _enter(self, parts: list[bytes], member: tar.Member | None = None) -> int:
        """Make this directory the present one, with those above it; its descriptor.

        `member`: the directory's own head; those that have none get 0755.
        """
        if len(parts) > MAX_DEPTH:
            raise _refusal(self.last, f"it is below more than {MAX_DEPTH} directories")
        same = 1
        while same < len(self._levels) and same <= len(parts):
            if self._levels[same].name != parts[same - 1]:
                break
            same += 1
        self._leave(same)
        for index in range(same - 1, len(parts)):
            is_own = member is not None and index == len(parts) - 1
            made = member if is_own and member is not None else tar.Member(b"", mode=0o755)
            self._levels.append(self._descend(parts[: index + 1], made))
        return self._levels[-1].fd

    def _descend(self, parts: list[bytes], member: tar.Member) -> _Level:
        above, name = self._levels[-1].fd, parts[-1]
        made: tar.Member | None = None
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            made = member
        except FileExistsError:
            pass
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR} or not _is_link(name, above):
                raise
            fd = self._through_link(parts)
        return _Level(name, fd, made)

    def _through_link(self, parts: list[bytes]) -> int:
        """The directory that a link leads to, if it lies below ours."""
        if not self._policy.trusts_links:
            raise _refusal(self.last, "it lies below a link")
        real = os.path.realpath(os.path.join(self._real, *parts))
        top = self._real.rstrip(b"/") + b"/"
        if real + b"/" != top and not real.startswith(top):
            raise _refusal(self.last, "it lies below a link that leaves the directory")
        return self._open_below([part for part in real[len(top) :].split(b"/") if part])

    def _open_below(self, parts: list[bytes]) -> int:
        """A directory that exists, by names that are no links."""
        fd = os.dup(self._levels[0].fd)
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _leave(self, count: int) -> None:
        """Keep so many levels."""
        while len(self._levels) > count:
            level = self._levels.pop()
            try:
                if level.made is not None:
                    self._finish_made(level.fd, level.made)
            finally:
                os.close(level.fd)

    def _finish_made(self, fd: int, member: tar.Member) -> None:
        if member.name:
            self._finish_node(fd, member)
            return
        if self._policy.owner is not None:
            os.fchown(fd, *self._policy.owner)
        os.fchmod(fd, member.mode)


def _refusal(name: bytes, why: str) -> SandmanError:
    text = name[:4096].decode("utf-8", "surrogateescape")
    return PathDeniedError(f"{text}: the archive's member is refused: {why}", field="body")


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


def _is_link(name: bytes, directory: int) -> bool:
    return stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode)


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
