"""Fenced blocks of Markdown."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_INLINE = re.compile(r"(?:\.venv(?:-load)?/bin/)?(?:sandman|kubectl|make|python3?) ")
_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One of them; `line` is where its text begins."""

    file: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """To find it by."""
        return f"{self.file}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What a person types; of a console what follows the prompt."""
        if self.language == "sh":
            return [self.text]
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


def collect() -> list[Block]:
    """All that a reader may try, in the order of files and lines."""
    return [block for path in files() for block in of(path)]


def files() -> list[Path]:
    """README.md and docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def of(path: Path) -> list[Block]:
    """Those of one file."""
    whole = path.read_text()
    return [
        Block(
            str(path.relative_to(ROOT)),
            whole.count("\n", 0, match.start(3)) + 1,
            match[2],
            textwrap.dedent(match[3]),
        )
        for match in _FENCE.finditer(whole)
    ]


def inline(path: Path) -> list[str]:
    """Commands in the running text of one file, between backticks."""
    text = _FENCE.sub("", path.read_text())
    spans = (" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text))
    return [span for span in spans if _INLINE.match(span)]
