"""Files of the sandbox: opened, written, removed, with one typed error for each way to fail."""

# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH114, PTH116, PTH118, PTH119, PTH120
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import errno
import os
import stat

from daemon import kernel
from sandman import sparse
from sandman.errors import (
    BadRequestError,
    ConflictError,
    IsADirectoryPathError,
    NoSpaceError,
    NotADirectoryPathError,
    PathDeniedError,
    PathNotFoundError,
    SandmanError,
    TooLargeError,
    UnreachableError,
)

ERRORS: dict[int, type[SandmanError]] = {
    errno.ENOENT: PathNotFoundError,
    errno.EISDIR: IsADirectoryPathError,
    errno.ENOTEMPTY: IsADirectoryPathError,
    errno.ENOTDIR: NotADirectoryPathError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.EEXIST: ConflictError,
    errno.EFBIG: TooLargeError,
    errno.ENAMETOOLONG: BadRequestError,
}
"""What each refusal of the kernel is. What the sandbox has used up (`kernel.NO_ROOM`) is `unreachable`, and
all others are `path_denied`."""
_CANNOT_REPLACE = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM})
_CANNOT_CREATE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_BLOCK = 1024 * 1024
MAX_ASIDE_BYTES = 64 * 1024 * 1024
"""Of a file that is written over in place: until all of it has come it is kept in the sandbox's memory."""


def translate(error: OSError, path: bytes) -> SandmanError:
    """The kernel's refusal as an error of ours that names the path.

    A file system may refuse with any number (a server that went away, an encryption key that is not
    there): then the path cannot be read or written. The kernel's name for it is among the facts.
    """
    number = error.errno or 0
    text = f"{os.fsdecode(path)}: {error.strerror or error}"
    facts = kernel.name_of(error)
    if number in kernel.NO_ROOM:
        return UnreachableError(text, field="path", cause="sandbox", retry_after=1.0, facts=facts)
    cls = ERRORS.get(number, PathDeniedError)
    if number == errno.EISDIR:
        text = f"{os.fsdecode(path)}: is a directory"
    return cls(text, field="path", facts=facts)


def open_for_reading(path: bytes) -> tuple[int, os.stat_result]:
    """A regular file's descriptor and what the kernel says of it.

    Raises:
        OSError: it cannot be opened.
        SandmanError: it is something else.
    """
    # Without NONBLOCK a FIFO that nobody writes to would hold the thread for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode):
        return fd, found
    os.close(fd)
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise PathDeniedError(f"{os.fsdecode(path)}: not a regular file", field="path")


def make_directories(path: bytes, mode: int = 0o755, made: list[bytes] | None = None) -> bool:
    """Make a directory and those above it that are missing; whether it was missing itself.

    Args:
        path: absolute or relative to the daemon's own directory.
        mode: of the last one; those above get 0755.
        made: gets those that were made; on failure they are taken away again.
    """
    path = path.rstrip(b"/")
    missing: list[bytes] = []
    while path and _stat(path) is None:
        missing.append(path)
        path = os.path.dirname(path)
    made = [] if made is None else made
    is_new = False
    try:
        for one in reversed(missing):
            is_new = make_directory(one, mode if one == missing[0] else 0o755)
            if is_new:
                made.append(one)
    except OSError:
        remove_empty(made)
        raise
    return is_new


def remove_empty(made: list[bytes]) -> None:
    """Take away the directories that were made in vain, in so far as nobody uses them by now."""
    try:
        while made:
            os.rmdir(made.pop())
    except OSError:
        made.clear()


def make_directory(path: bytes, mode: int) -> bool:
    """Make one; False when somebody else just did."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    # By descriptor: a command may put a link in its place meanwhile.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # A directory whose group passes on to what is made in it passes that on, too.
        os.fchmod(fd, mode | (os.fstat(fd).st_mode & stat.S_ISGID))
    finally:
        os.close(fd)
    return True


class Writer:
    """A file on its way: invisible until `commit`, gone after `abort`.

    The bytes go to a neighbour of the target, which then takes its place. Where that cannot be (the
    target is a mount of its own, as /etc/hosts is in a pod, or a device, or its directory may not be
    written), they are kept aside and copied over it at the commit.

    `mode` None: an existing file keeps its own. It keeps its owner, too, if whoever writes may give
    files away; else the new one is the writer's, without the old one's set-uid bits.
    """

    def __init__(self, path: bytes, mode: int | None) -> None:
        # A link is written through: what it points to is what the caller means.
        self._path = os.path.realpath(path) if os.path.islink(path) else path
        self._mode = mode
        self._old = _stat(self._path)
        if self._old is not None and stat.S_ISDIR(self._old.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.basename(self._path) in {b"", b".", b".."}:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._partial: bytes | None = None
        self._made: list[bytes] = []
        self._aside = 0
        self._fd = self._open()
        self._content = sparse.Writer(self._fd)

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes.

        Raises:
            TooLargeError: more than is kept aside for a target that cannot be replaced.
        """
        if self._partial is None:
            self._aside += len(data)
            if self._aside > MAX_ASIDE_BYTES:
                raise TooLargeError(
                    f"{os.fsdecode(self._path)}: no file of more than {MAX_ASIDE_BYTES} bytes can be "
                    "written where it cannot be replaced: a mount, a device, another's directory",
                    field="path",
                    facts={"limit": MAX_ASIDE_BYTES},
                )
        self._content.write(data)

    def commit(self) -> int:
        """Make the file appear; its mode."""
        try:
            self._content.finish()
            if self._partial is None:
                return self._overwrite()
            mode = self._take_over()
            os.fchmod(self._fd, mode)  # last: a change of owner takes set-uid away
            return self._replace(self._partial, mode)
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave nothing behind; harmless after a commit."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        partial, self._partial = self._partial, None
        if partial is not None:
            os.unlink(partial)
            remove_empty(self._made)

    def _open(self) -> int:
        if self._old is not None and not stat.S_ISREG(self._old.st_mode):
            return _aside()
        if self._old is not None:
            _require_writable(self._path)
        directory = os.path.dirname(self._path)
        make_directories(directory, made=self._made)
        # Not derived from the target's name, which may be as long as the file system allows.
        partial = os.path.join(directory, b".sandman-" + os.urandom(8).hex().encode())
        try:
            fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if self._old is None or error.errno not in _CANNOT_CREATE:
                remove_empty(self._made)
                raise
            # Or fail now, before the body comes.
            os.close(os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
            return _aside()
        self._partial = partial
        return fd

    def _take_over(self) -> int:
        """Give the new file the old one's owner, as far as may be; the mode that it is to have."""
        mode, old = self._mode, self._old
        if old is None:
            return 0o644 if mode is None else mode
        if mode is None:
            mode = stat.S_IMODE(old.st_mode)
        new = os.fstat(self._fd)
        if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
            return mode
        try:
            os.fchown(self._fd, old.st_uid, old.st_gid)
        except PermissionError:
            # What ran as the old owner must not run as the writer.
            return mode if self._mode is not None else mode & 0o1777
        return mode

    def _replace(self, partial: bytes, mode: int) -> int:
        try:
            os.rename(partial, self._path)
            self._partial = None
        except OSError as error:
            if self._old is None or error.errno not in _CANNOT_REPLACE:
                raise
            return self._overwrite()
        return mode

    def _overwrite(self) -> int:
        """Copy over the target in place; not atomic, but there is no other way."""
        target = os.open(self._path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.lseek(self._fd, 0, os.SEEK_SET)
            while data := os.read(self._fd, _BLOCK):
                view = memoryview(data)
                while view:
                    view = view[os.write(target, view) :]
            if self._mode is not None:
                os.fchmod(target, self._mode)
            return stat.S_IMODE(os.fstat(target).st_mode)
        finally:
            os.close(target)


def _aside() -> int:
    """A file in memory. The kernel gives it to all, and /proc shows it to who finds it there."""
    fd = os.memfd_create("upload")
    os.fchmod(fd, 0o600)
    return fd


def _require_writable(path: bytes) -> None:
    """A rename asks the directory alone: that a file itself is read-only would mean nothing.

    Raises:
        OSError: who may not write it.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise
        # A program that runs, for one, cannot be written, and may be replaced.


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
