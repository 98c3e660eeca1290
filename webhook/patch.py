"""JSON Patch (RFC 6902), the part that only adds: parents are made, foreign items keep their place.

No operation here moves or replaces an item of an array that is not ours, so that a patch of ours
composes with those of other webhooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a patch; `value` means nothing for `remove`."""

    op: str
    path: str
    value: Any = None

    def to_json(self) -> dict[str, object]:
        """The operation as RFC 6902 writes it."""
        if self.op == "remove":
            return {"op": self.op, "path": self.path}
        return {"op": self.op, "path": self.path, "value": self.value}


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901): label keys hold a slash, which must be escaped."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def put(value: object, *path: str | int) -> Operation:
    """Set a member of an object, there or not. Its parent must exist."""
    return Operation("add", pointer(*path), value)


def put_item(value: object, *path: str | int) -> Operation:
    """Replace an item of an array: `add` would push it back by one."""
    return Operation("replace", pointer(*path), value)


def remove(*path: str | int) -> Operation:
    """Take away what is known to be there."""
    return Operation("remove", pointer(*path))


def append(
    present: Sequence[object] | None, new: Sequence[object], *path: str | int
) -> list[Operation]:
    """Add items behind those that are there; the array itself when there is none."""
    if not new:
        return []
    if present is None:
        return [put(list(new), *path)]
    return [put(item, *path, "-") for item in new]


def prepend(present: Sequence[object] | None, item: object, *path: str | int) -> list[Operation]:
    """Add an item before those that are there; the array itself when there is none."""
    return [put([item], *path) if present is None else put(item, *path, 0)]


def merge(
    present: Mapping[str, object] | None, wanted: Mapping[str, object], *path: str | int
) -> list[Operation]:
    """Give an object these members; the object itself when there is none, nothing when it has them."""
    if present is None:
        return [put(dict(wanted), *path)] if wanted else []
    return [
        put(value, *path, key)
        for key, value in wanted.items()
        if key not in present or present[key] != value
    ]
