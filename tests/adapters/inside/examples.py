"""The examples of docs/adapters.md, which are run as they stand there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT = Path(__file__).parents[3] / "docs" / "adapters.md"
IMAGE = "registry.example/task:1"


def block(heading: str, language: str, image: str, *, named: bool = True) -> str:
    """The first block of that language below that heading, with an image that there is; `named`: it names one."""
    _, found, rest = DOCUMENT.read_text("utf-8").partition(f"\n## {heading}\n")
    assert found, heading
    part = rest.partition("\n## ")[0]
    _, found, rest = part.partition(f"```{language}\n")
    assert found, f"{heading}: no {language}"
    text = rest.partition("```")[0]
    assert (IMAGE in text) is named
    return text.replace(IMAGE, image)


def namespace(heading: str, image: str) -> dict:
    """What the example in Python defines."""
    names: dict = {"__name__": "example"}
    exec(compile(block(heading, "python", image), str(DOCUMENT), "exec"), names)
    return names


def soon(found: Callable[[], list]) -> list:
    """What is found still when nothing more was expected: another replica of a gateway hears of a release within moments."""
    until = time.monotonic() + 10
    while (left := found()) and time.monotonic() < until:
        time.sleep(0.1)
    return left
