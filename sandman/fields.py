"""Reads JSON bodies member by member; each refusal names the field at fault.

Standard library only: the daemon ships this file.
"""

from __future__ import annotations

import binascii

from sandman import notation
from sandman.errors import BadRequestError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT = "a string without NUL and without unpaired surrogates"


def _is_text(value: object) -> bool:
    """Whether the value is a string that can be an argument, a path or a variable.

    Arbitrary bytes travel as surrogate escapes (U+DC80-U+DCFF), as in Python's own `os.fsdecode`.
    """
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def load_object(data: bytes) -> dict[str, object]:
    """The JSON object in a request body.

    Raises:
        BadRequestError: not JSON, not an object, or one with a member that occurs twice, then named.
    """
    try:
        body = notation.loads(data)
    except notation.TwiceError as error:
        raise BadRequestError(f"the body is ambiguous: {error}", field=error.name) from None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}", field="body") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object", field="body")
    return body


class Fields:
    """Takes the members of a JSON object one by one and refuses those that nobody asked for."""

    def __init__(self, body: Mapping[str, object], prefix: str = "") -> None:
        self._body = body
        self._prefix = prefix
        self._known: set[str] = set()

    def raw(self, name: str) -> object:
        """The member as it is, None when absent."""
        self._known.add(name)
        return self._body.get(name)

    def has(self, name: str) -> bool:
        """Whether the member is there, and not null."""
        return self.raw(name) is not None

    def fail(self, name: str, want: str) -> BadRequestError:
        """The error for a member that is not what is wanted; the caller raises it."""
        return BadRequestError(
            f"{self._prefix}{name} must be {want}", field=f"{self._prefix}{name}"
        )

    def text(self, name: str) -> str | None:
        """A string without NUL, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not _is_text(value):
            raise self.fail(name, _TEXT)
        return str(value)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings without NUL, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fail(name, "a list of strings")
        if not all(_is_text(item) for item in value):
            raise self.fail(name, f"a list, each item {_TEXT}")
        return tuple(value)

    def text_or_int(self, name: str) -> str | int | None:
        """A string or a whole number >= 0, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, str) and value and _is_text(value):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise self.fail(name, "a name or a whole number >= 0")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def seconds(self, name: str, *, zero: bool = False) -> float | None:
        """A number of seconds > 0, with `zero` also 0, or None."""
        value = self.raw(name)
        if value is None or (zero and value == 0 and not isinstance(value, bool)):
            return None if value is None else 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise self.fail(name, "a number of seconds greater than 0 and less than 1e9")
        return float(value)

    def inner(self, name: str) -> Fields | None:
        """An object of its own, or None; its owner finishes it."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return Fields(value, f"{self._prefix}{name}.")

    def count(self, name: str, default: int, most: int, least: int = 0) -> int:
        """A whole number between `least` and `most`."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(name, f"a whole number from {least} to {most}")
        return value

    def amount(self, name: str) -> float | None:
        """A number that was measured, 0 or more, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
            raise self.fail(name, "a number of 0 or more")
        return float(value)

    def count_or_none(self, name: str, most: int) -> int | None:
        """A whole number from 0 to `most`, or None."""
        return self.count(name, 0, most) if self.has(name) else None

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the strings; the first is the default."""
        value = self.raw(name)
        if value is None:
            return choices[0]
        if not isinstance(value, str) or value not in choices:
            raise self.fail(name, f"one of {', '.join(choices)}")
        return value

    def environment(self, name: str) -> tuple[tuple[str, str], ...]:
        """An object of strings whose names can be names of environment variables."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise self.fail(name, "an object of strings")
        for key, item in value.items():
            if not key or "=" in key or not _is_text(key):
                raise self.fail(name, f"an object of variables: {key!r} cannot be a name")
            if not _is_text(item):
                raise self.fail(f"{name}.{key}", _TEXT)
        return tuple(value.items())

    def data(self, name: str) -> bytes | None:
        """Bytes, given as text (`name`) or as base64 (`name_b64`)."""
        text, encoded = self.raw(name), self.raw(f"{name}_b64")
        if text is not None and encoded is not None:
            raise self.fail(name, f"absent when {name}_b64 is given")
        if text is not None:
            if not isinstance(text, str):
                raise self.fail(name, "a string")
            try:
                return text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise self.fail(name, f"valid text; send other bytes as {name}_b64") from None
        if encoded is None:
            return None
        try:
            return binascii.a2b_base64(str(encoded), strict_mode=True)
        except ValueError:
            raise self.fail(f"{name}_b64", "base64") from None

    def stream(self, name: str) -> bytes:
        """Bytes told as text (`name`), and exactly (`name_b64`) beside it where they are no text."""
        exact, text = self.raw(f"{name}_b64"), self.raw(name)
        try:
            if isinstance(exact, str):
                return binascii.a2b_base64(exact)
            if text is None:
                return b""
            if isinstance(text, str):
                return text.encode()
        except ValueError:
            pass
        raise self.fail(name, "text, or base64 beside it")

    def finish(self) -> None:
        """Raise for members that nobody took: a misspelt option must not be lost in silence."""
        unknown = sorted(set(self._body) - self._known)
        if unknown:
            raise BadRequestError(
                f"unknown field {self._prefix}{unknown[0]}; known: {', '.join(sorted(self._known))}",
                field=f"{self._prefix}{unknown[0]}",
            )
