"""A JSON Patch applier as strict as the API server's: what it takes, the API server takes."""

from __future__ import annotations

import copy
from typing import Any


class PatchError(Exception):
    """The patch does not fit the document."""


def apply(document: Any, operations: list[dict[str, Any]]) -> Any:
    """The document after the patch; the one given is left as it is."""
    result = copy.deepcopy(document)
    for operation in operations:
        result = _step(result, operation["op"], _parts(operation["path"]), operation)
    return result


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise PatchError(f"not a pointer: {path}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _step(document: Any, op: str, parts: list[str], operation: dict[str, Any]) -> Any:
    parent = document
    for part in parts[:-1]:
        parent = _child(parent, part)
    last = parts[-1]
    if op == "add":
        value = copy.deepcopy(operation["value"])
        if isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else _index(parent, last, len(parent)), value)
        elif isinstance(parent, dict):
            parent[last] = value
        else:
            raise PatchError(f"no object or array above {parts}")
        return document
    _child(parent, last)  # must be there
    key = int(last) if isinstance(parent, list) else last
    if op == "replace":
        parent[key] = copy.deepcopy(operation["value"])
    elif op == "remove":
        del parent[key]
    else:
        raise PatchError(f"unexpected operation {op}")
    return document


def _child(parent: Any, part: str) -> Any:
    if isinstance(parent, list):
        return parent[_index(parent, part, len(parent) - 1)]
    if isinstance(parent, dict) and part in parent:
        return parent[part]
    raise PatchError(f"no member {part}")


def _index(parent: list[Any], part: str, most: int) -> int:
    if not part.isdecimal() or int(part) > most:
        raise PatchError(f"no index {part} in an array of {len(parent)}")
    return int(part)
