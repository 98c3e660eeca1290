"""As whom a thread works on files: the user's own rights, and the kernel to hold them.

A daemon that runs as root acts for a sandbox's user, or for one that the call names. To check
beforehand, or to change owners afterwards, would be a race against what runs in the sandbox: it may
swap any directory of its own for a link at any moment. So the thread takes on the user's identity for
the file system, user, group and supplementary groups, and with it loses root's rights over files. A
link then leads nobody where its user could not go anyway.

Linux has such an identity for each thread; libc's calls for the other kinds change all threads. A
signal, a new connection and another thread know nothing of it. Where the kernel has none, as gVisor's,
`runtime/native/fsuser.c` changes the thread's effective identity instead.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from daemon import kernel, log, users
from daemon.files import translate
from sandman.errors import UserUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from daemon.users import User

try:
    from _sandman import set_fs_user as _built_in  # the runtime's own Python has it
except ImportError:
    _built_in = None

_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The system call's number, where there is no C module that knows it."""


def choose(wanted: str | int | None, default: User | None) -> User | None:
    """Whose rights count: those of the user that is named, else the default's; None: the daemon's.

    Raises:
        UserUnsupportedError: there is no such user, or this daemon may not become it.
    """
    user = default if wanted is None else users.find(wanted)
    own = os.geteuid()
    if user is None or (user.uid, user.gid) == (own, os.getegid()):
        return None
    if own not in {0, user.uid}:
        raise UserUnsupportedError(
            f"the sandbox runs as uid {own} and cannot switch to {user.name}", field="user"
        )
    return None if own == user.uid else user


class Acting:
    """Within it, this thread works on files as the user, and refusals of the kernel are ours.

    Nothing may be imported within: the daemon's own files need not be the user's to read.

    Raises:
        UserUnsupportedError: the daemon lacks the capability.
        SandmanError: for an OSError within.
    """

    def __init__(self, user: User | None, path: bytes) -> None:
        self._user = user
        self._path = path
        self._before: tuple[int, int, list[int]] | None = None

    def __enter__(self) -> None:
        user = self._user
        if user is None:
            return
        self._before = os.geteuid(), os.getegid(), os.getgroups()
        try:
            set_fs_user(user.uid, user.gid, user.groups)
        except OSError as error:
            self._return()
            raise UserUnsupportedError(
                f"the daemon may not act as user {user.name}: {error.strerror}", field="user"
            ) from None
        # The kernel undoes it at such a change, on machines that want core files of set-uid programs.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._return()
        if isinstance(error, OSError):
            raise translate(error, self._path) from None

    def _return(self) -> None:
        """Become the daemon again, or end the thread: it must serve nobody as somebody else."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            set_fs_user(*before)
        except OSError as error:
            log.line(f"a thread cannot become the daemon's again and ends: {error}")
            raise SystemExit from error
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def set_fs_user(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Change the calling thread's identity for files, and its supplementary groups.

    Raises:
        OSError: refused; some of it may have been done.
    """
    # Same groups are not set: to stay who one is takes no capability, and so never fails.
    is_same = sorted(groups) == sorted(os.getgroups())
    (_built_in or set_by_ctypes)(uid, gid, None if is_same else groups)


def set_by_ctypes(uid: int, gid: int, groups: Sequence[int] | None) -> None:
    """The same on a plain Python, as in local mode and tests. The runtime's own has no ctypes."""
    # No statement: the runtime's build takes those for what must be there.
    ctypes = __import__("ctypes")  # on purpose: a name of ours
    libc = ctypes.CDLL(None, use_errno=True)
    if groups is not None:
        number = _SETGROUPS.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        # Not libc's setgroups(), which is for all threads.
        array = (ctypes.c_uint32 * len(groups))(*groups)
        if libc.syscall(ctypes.c_long(number), ctypes.c_long(len(groups)), array) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for change, wanted in ((libc.setfsgid, gid), (libc.setfsuid, uid)):
        # They never fail; an id that is none changes nothing, and the answer is the one it has.
        change(ctypes.c_uint32(wanted))
        if change(ctypes.c_uint32(0xFFFFFFFF)) & 0xFFFFFFFF != wanted:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
