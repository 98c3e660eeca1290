"""The path and the options that calls about files carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from daemon import http1, identity
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.state import Sandbox
    from daemon.users import User


class Asked(NamedTuple):
    """What a call about a file says. `user`: whose rights count, None: the daemon's own."""

    path: bytes
    options: dict[str, bytes]
    user: User | None

    def acting(self) -> identity.Acting:
        """The context in which the files are worked on."""
        return identity.Acting(self.user, self.path)


def take(exchange: Exchange, sandbox: Sandbox, *options: str) -> Asked:
    """The absolute path in the query, those of the options that are given, and the user.

    Raises:
        BadRequestError: no path, or an option that nobody knows.
        UserUnsupportedError: there is no such user, or this daemon may not become it.
    """
    query = http1.parse_query(exchange.head.query)
    path = query.pop("path", b"")
    if not path or b"\0" in path:
        raise BadRequestError("path must be given, and hold no NUL", field="path")
    unknown = sorted(query.keys() - {*options, "user"})
    if unknown:
        raise BadRequestError(f"unknown option {unknown[0]}", field=unknown[0])
    wanted = query.get("user")
    user = identity.choose(None if wanted is None else text(wanted), sandbox.user)
    return Asked(sandbox.absolute(path), query, user)


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


def limit(options: dict[str, bytes]) -> int | None:
    """The option `max_bytes`."""
    value = options.get("max_bytes")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise BadRequestError("max_bytes must be a number", field="max_bytes")
    return int(value)


def flag(options: dict[str, bytes], name: str) -> bool:
    """An option that is 0 or 1; absent: 0."""
    value = options.get(name, b"0")
    if value not in {b"0", b"1"}:
        raise BadRequestError(f"{name} must be 0 or 1", field=name)
    return value == b"1"


def count(options: dict[str, bytes], name: str, most: int) -> int:
    """An option that is a number from 1, which it is when absent."""
    value = options.get(name, b"1")
    if not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= most:
        raise BadRequestError(f"{name} must be a number from 1 to {most}", field=name)
    return int(value)
