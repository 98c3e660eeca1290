"""Manifests as text: JSON, or YAML where PyYAML is installed."""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

_LACKING = "to read YAML install PyYAML (pip install 'sandman-sandbox[kubernetes]'), or give JSON"

# How kubectl reads YAML (go-yaml 2): of YAML 1.1 the many truths, of 1.2 numbers with an exponent and no point
# and octal ones with an o, and neither times nor sexagesimal numbers. PyYAML would write the string "1e-4"
# without quotes, and kubectl then refuse it as a number.
_TRUE = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_NULL = ("", "~", "null", "Null", "NULL")
_NUMBER = re.compile(
    r"[-+]?(?:0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?)\Z"
)
_BASES = {"0b": 2, "0x": 16, "0o": 8}


def load(text: str) -> list[dict[str, Any]]:
    """The objects in a manifest.

    Raises:
        ValueError: it cannot be read.
    """
    values = [json.loads(text)] if text.lstrip().startswith("{") else _load_yaml(text)
    for value in values:
        if not isinstance(value, dict):
            raise ValueError("a manifest holds objects, and nothing else")  # noqa: TRY004
    return values


def dump(documents: list[dict[str, Any]]) -> str:
    """A manifest with these objects."""
    try:
        _, writer = _dialect()
        import yaml  # noqa: PLC0415 - optional
    except ImportError:
        return "".join(f"{json.dumps(one, indent=2)}\n" for one in documents)
    several = len(documents) > 1
    return str(yaml.dump_all(documents, Dumper=writer, sort_keys=False, explicit_start=several))


def _load_yaml(text: str) -> list[Any]:
    try:
        reader, _ = _dialect()
        import yaml  # noqa: PLC0415 - optional
    except ImportError:
        raise ValueError(_LACKING) from None
    try:
        # on purpose: a SafeLoader with other words for the same plain values
        values = yaml.load_all(text, Loader=reader)
        return [value for value in values if value is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not YAML: {error}") from None


@functools.cache
def _dialect() -> tuple[Any, Any]:
    """PyYAML's reader and writer, for what kubectl writes and reads."""
    import yaml  # noqa: PLC0415 - optional

    class Reader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own way

    class Writer(yaml.SafeDumper):
        """Quotes what either dialect would not read as a string."""

    def plain(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
        return _plain(str(loader.construct_scalar(node)))

    words = "|".join(map(re.escape, [*_TRUE, *_FALSE, *_NULL]))
    special = re.compile(f"(?:{words})\\Z|{_NUMBER.pattern}")
    merge = re.compile(r"<<\Z")
    for one in (Reader, Writer):
        one.add_implicit_resolver("!plain", special, None)
        one.add_implicit_resolver("tag:yaml.org,2002:merge", merge, ["<"])
    Reader.add_constructor("!plain", plain)
    return Reader, Writer


def _plain(text: str) -> object:
    """What an unquoted word is that may be no string."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-").lower()
    try:
        if bare[:2] in _BASES:
            return sign * int(bare[2:], _BASES[bare[:2]])
        if bare.isdigit():
            octal = bare.startswith("0") and not set(bare) & {"8", "9"}
            return sign * int(bare, 8 if octal else 10)
        number = float(digits)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
