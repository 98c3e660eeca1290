"""Documents in answers."""

from __future__ import annotations

from sandman import notation
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def dump(document: Mapping[str, object]) -> bytes:
    """JSON as UTF-8; bytes that are none, in a path, as escaped surrogates."""
    try:
        return notation.dumps(document).encode()
    except UnicodeEncodeError:
        return notation.dumps(document, ascii_only=True).encode()
