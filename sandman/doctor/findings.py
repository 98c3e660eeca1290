"""What a check says."""

from __future__ import annotations

import dataclasses
import enum


class Level(enum.StrEnum):
    """How it is, worst last."""

    OK = "ok"
    SKIPPED = "skipped"
    """It could not be asked, or need not be."""
    WARNING = "warning"
    FAILURE = "failure"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One result. `advice` says what to do, empty where nothing is to be done."""

    hop: str
    level: Level
    text: str
    advice: str = ""


def ok(hop: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(hop, Level.OK, text)


def skipped(hop: str, text: str, advice: str = "") -> Finding:
    """Not asked."""
    return Finding(hop, Level.SKIPPED, text, advice)


def warning(hop: str, text: str, advice: str) -> Finding:
    """It works, and will not for long, or not everywhere."""
    return Finding(hop, Level.WARNING, text, advice)


def failure(hop: str, text: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(hop, Level.FAILURE, text, advice)
