"""Values of a query's parameters, each refusal with the parameter's name.

Which parameters a call takes stands in `application`; `routes` refuses all others.
"""

from __future__ import annotations

from sandman.errors import BadRequestError

Query = dict[str, bytes]
"""Names, and values as decoded."""
_NUMBER = b"0123456789.eE+-"
_MOST_DIGITS = 18
"""Of a number of bytes: more than any file or stream has."""


def flag(query: Query, name: str) -> bool:
    """A parameter that is 0 or 1; absent: 0.

    Raises:
        BadRequestError: it is something else.
    """
    value = query.get(name, b"0")
    if value not in {b"0", b"1"}:
        raise BadRequestError(f"{name} must be 0 or 1", field=name)
    return value == b"1"


def size(query: Query, name: str) -> int | None:
    """A number of bytes; None when absent.

    Raises:
        BadRequestError: it is none.
    """
    value = query.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise BadRequestError(f"{name} must be a number of bytes", field=name)
    return int(value)


def count(query: Query, name: str, most: int) -> int:
    """A number from 1, which it is when absent, to `most`.

    Raises:
        BadRequestError: it is something else.
    """
    value = query.get(name, b"1")
    if not value.isdigit() or len(value) > _MOST_DIGITS or not 1 <= int(value) <= most:
        raise BadRequestError(f"{name} must be a number from 1 to {most}", field=name)
    return int(value)


def seconds(query: Query, name: str, most: float) -> float | None:
    """A number of seconds, as JSON has numbers, from 0 to `most`; None when absent.

    Raises:
        BadRequestError: it is none.
    """
    value = query.get(name)
    if value is None:
        return None
    try:
        # `float` would also take 1_0, inf and blanks.
        found = -1.0 if value.translate(None, _NUMBER) else float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise BadRequestError(f"{name} must be 0 to {most:.0f} seconds", field=name)
    return found
