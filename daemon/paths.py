"""The path and the options that calls about files carry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import http1, users
from sandman.errors import BadRequestError, UserUnsupportedError

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.state import Sandbox


def take(exchange: Exchange, sandbox: Sandbox, *options: str) -> tuple[bytes, dict[str, bytes]]:
    """The absolute path in the query, and those of the options that are given.

    Raises:
        BadRequestError: no path, or an option that nobody knows.
    """
    query = http1.parse_query(exchange.head.query)
    path = query.pop("path", b"")
    if not path or b"\0" in path:
        raise BadRequestError("path must be given, and hold no NUL", field="path")
    unknown = sorted(query.keys() - set(options))
    if unknown:
        raise BadRequestError(f"unknown option {unknown[0]}", field=unknown[0])
    return sandbox.absolute(path), query


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


def owner(value: bytes | None) -> users.User | None:
    """The user who is to own what is written, by name or uid.

    Raises:
        UserUnsupportedError: there is no such user, or this daemon may not give files away.
    """
    if value is None:
        return None
    user = users.find(text(value))
    if os.geteuid() not in {0, user.uid}:
        raise UserUnsupportedError(
            f"the daemon runs as uid {os.geteuid()} and cannot give files to {user.name!r}",
            field="user",
        )
    return user
