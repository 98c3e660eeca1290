"""Users and groups from the sandbox's own files, parsed here.

libc's NSS would map the image's libraries into the daemon, and a static binary has none. The files
are read anew at each call: a command may have created a user just now.
"""

# ruff: noqa: PTH123
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
import stat

from sandman.errors import UserUnsupportedError
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWD = "/etc/passwd"  # noqa: S105 - a path
GROUP = "/etc/group"
_MAX_BYTES = 8 * 1024 * 1024
"""A file of the sandbox's own making must not fill the daemon's memory."""


class User(NamedTuple):
    """Who a command runs as. Text may hold surrogate escapes."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def find(wanted: str | int) -> User:
    """The user of this name or uid.

    A uid without an entry is taken as container runtimes take it: group 0, home `/`.

    Raises:
        UserUnsupportedError: no such name.
    """
    for fields in _rows(PASSWD, 7):
        if fields[0] == wanted or (not isinstance(wanted, str) and fields[2] == str(wanted)):
            user = _user(fields)
            if user is not None:
                return user
    if isinstance(wanted, str):
        if wanted.isascii() and wanted.isdigit():
            return find(_checked(int(wanted), wanted))
        if wanted != "root":
            raise UserUnsupportedError(f"there is no user {wanted!r} in {PASSWD}", field="user")
        wanted = 0
    home = "/root" if wanted == 0 else "/"
    return User("root" if wanted == 0 else str(wanted), _checked(wanted, wanted), 0, (0,), home, "")


def group_id(name: str) -> int:
    """The number of a group.

    Raises:
        UserUnsupportedError: there is none of this name.
    """
    for fields in _rows(GROUP, 4):
        if fields[0] == name and fields[2].isascii() and fields[2].isdigit():
            return int(fields[2])
    raise UserUnsupportedError(f"there is no group {name!r} in {GROUP}", field="user")


def _checked(uid: int, given: str | int) -> int:
    # The largest number means "unchanged" to setuid: the command would run as the daemon's user.
    if uid >= 0xFFFFFFFF:
        raise UserUnsupportedError(f"{given!r} is not a uid", field="user")
    return uid


def _user(fields: list[str]) -> User | None:
    try:
        uid, gid = int(fields[2]), int(fields[3])
    except ValueError:
        return None
    if not (0 <= uid < 0xFFFFFFFF and 0 <= gid < 0xFFFFFFFF):
        return None
    groups = tuple(dict.fromkeys((gid, *_memberships(fields[0]))))
    return User(fields[0], uid, gid, groups, fields[5] or "/", fields[6])


def _memberships(name: str) -> Iterator[int]:
    for fields in _rows(GROUP, 4):
        if name in fields[3].split(",") and fields[2].isascii() and fields[2].isdigit():
            yield int(fields[2])


def _rows(path: str, width: int) -> Iterator[list[str]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return
    # A FIFO would hold up the command's start for ever, a device never end, a directory raise.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return
    with open(fd, "rb", buffering=0) as file:
        data = file.read(_MAX_BYTES) or b""
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        fields = line.split(":")
        if len(fields) == width:
            yield fields
