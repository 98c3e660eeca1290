"""The path and the options that calls about files carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from daemon import identity
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.state import Sandbox
    from daemon.users import User


class Asked(NamedTuple):
    """What a call about a file says. `user`: whose rights count, None: the daemon's own."""

    path: bytes
    user: User | None

    def acting(self) -> identity.Acting:
        """The context in which the files are worked on."""
        return identity.Acting(self.user, self.path)


def take(exchange: Exchange, sandbox: Sandbox) -> Asked:
    """The absolute path in the query, and the user.

    Raises:
        BadRequestError: no path.
        UserUnsupportedError: there is no such user, or this daemon may not become it.
    """
    path = exchange.query.get("path", b"")
    if not path or b"\0" in path:
        raise BadRequestError("path must be given, and hold no NUL", field="path")
    wanted = exchange.query.get("user")
    user = identity.choose(None if wanted is None else text(wanted), sandbox.user)
    return Asked(sandbox.absolute(path), user)


def text(path: bytes) -> str:
    """The path as text of the wire: bytes that are no UTF-8 are surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


def mode(value: bytes | None) -> int | None:
    """Permission bits in octal."""
    if value is None:
        return None
    if not value or len(value) > 5 or value.translate(None, b"01234567") or int(value, 8) > 0o7777:
        raise BadRequestError("mode must be octal, as in 0644", field="mode")
    return int(value, 8)
