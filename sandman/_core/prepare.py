"""Steps that prepare a sandbox, as their caller writes them → as they travel."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Step: TypeAlias = "Mapping[str, Mapping[str, object]]"
"""One of `{"exec": {…}}`, `{"file": {"path", "content", "mode", "user"}}` and
`{"archive": {"path", "tar", "user"}}`: the options of a command, a file (text or bytes), a tree (a tar, gzipped
or not, as bytes)."""


def to_json(steps: Iterable[Step]) -> list[dict[str, object]]:
    """The same with bytes as base64."""
    return [{kind: _plain(body) for kind, body in step.items()} for step in steps]


def _plain(body: Mapping[str, object]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in body.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            plain[f"{name}_b64"] = base64.b64encode(value).decode()
        else:
            plain[name] = value
    return plain
