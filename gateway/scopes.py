"""What a token of one sandbox may be narrowed to, and what a call needs of it. Pure.

exec        commands, processes, sessions, terminals
files       files and whole trees, reading and writing
files:read  reading alone
ports       servers in the sandbox, on any port; `ports:8080` on that one alone
look        the sandbox's state, as the gateway and its daemon show it
renew       word of its caller without a call
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Collection

EXEC = "exec"
FILES = "files"
FILES_READ = "files:read"
PORTS = "ports"
LOOK = "look"
RENEW = "renew"
PLAIN = (EXEC, FILES, FILES_READ, PORTS, LOOK, RENEW)
SCOPES_MAX = 16
"""Scopes of one token: each single port is one, and a token must fit a header."""
MANAGE = "manage"
"""What only its tenant's own keys may: releasing, among others. No token can be made for it."""

_READING = {"GET", "HEAD"}


def check(wanted: object) -> tuple[str, ...]:
    """Scopes as a caller gave them; in one order, each once.

    Raises:
        ValueError: one of them is none; the text names it.
    """
    if not isinstance(wanted, list) or not 1 <= len(wanted) <= SCOPES_MAX:
        raise ValueError(f"a list of 1 to {SCOPES_MAX} scopes")
    for one in wanted:
        if not isinstance(one, str) or not (one in PLAIN or _port(one) is not None):
            raise ValueError(f"of {', '.join(PLAIN)} or ports:<number>; {str(one)[:40]!r} is none")
    return tuple(sorted(set(wanted)))


def of_port(number: int) -> str:
    """The scope for one port."""
    return f"{PORTS}:{number}"


def of_call(path: str, method: str) -> str:
    """What a call that goes on to the daemon needs.

    Args:
        path: below the sandbox's, with the names of its parameters in braces.
        method: of the call.
    """
    if path == "info":
        return LOOK
    if path == "archive" or path.split("/", maxsplit=1)[0] == "files":
        return FILES_READ if method in _READING else FILES
    return EXEC


def covers(may: Collection[str], need: str) -> bool:
    """Whether a token for these scopes is good for what needs that one."""
    if need in may:
        return True
    if need == FILES_READ:
        return FILES in may
    return PORTS in may and _port(need) is not None


def _port(scope: str) -> int | None:
    head, colon, number = scope.partition(":")
    return names.port_number(number) if head == PORTS and colon else None
