"""JSON by the C parts of the standard library's `json`, without the rest of it.

`json`, `base64` and `re` compile regular expressions as they are imported. The daemon pays for that at each
pod's start, and keeps it: a fifteenth of its memory, to pass over blanks. Bodies are UTF-8, as RFC 8259
wants them. Standard library only: the daemon ships this file.
"""

from __future__ import annotations

try:
    from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # pragma: no cover - another Python than CPython
    _has_parts = False
else:
    _has_parts = True

_BLANKS = " \t\n\r"


class TwiceError(ValueError):
    """A member of an object is there twice: two readers could take it for different ones."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} occurs twice")
        self.name = name


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise TwiceError(name)
            names.add(name)
    return found


class _Rules:
    """What the scanner asks for: what `json.loads` does by default, but for objects."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float, parse_int, parse_constant = float, int, float


if _has_parts:
    _scan = make_scanner(_Rules())  # type: ignore[arg-type, possibly-undefined]


def loads(data: bytes) -> object:
    """The value that these bytes tell.

    Raises:
        ValueError: they are not JSON.
        TwiceError: a member of an object occurs twice.
        RecursionError: it is nested too deep.
    """
    text = data.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    if _has_parts:
        try:
            value, end = _scan(text, len(text) - len(text.lstrip(_BLANKS)))
        except (StopIteration, SystemError):
            pass  # no value; or no `json` is there to tell by its own error what is wrong
        else:
            if not text[end:].strip(_BLANKS):
                return value
    import json  # noqa: PLC0415 - it says best what is wrong

    return json.loads(text, object_pairs_hook=_object)


def dumps(value: object, *, ascii_only: bool = False) -> str:
    """The value as JSON; `ascii_only`: all other characters are escaped."""
    if _has_parts:
        quote = encode_basestring_ascii if ascii_only else encode_basestring
        encode = make_encoder({}, _refuse, quote, None, ": ", ", ", False, False, True)
        return "".join(encode(value, 0))
    import json  # noqa: PLC0415 - see above

    return json.dumps(value, ensure_ascii=ascii_only)


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no form in JSON")
