"""What is fuzzed in this process, by name. Each check takes bytes and raises for a finding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz import archives, bodies, frames, requests

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS: dict[str, Callable[[bytes], None]] = {
    "requests": requests.check,
    "frames": frames.check,
    "bodies": bodies.check,
    "archives": archives.check,
}
CORPUS = Path(__file__).parent / "corpus"
