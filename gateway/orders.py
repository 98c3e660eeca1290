"""What the allocation knows and says: placeholders that may be taken, and what is to be done. Values only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.fairness import Ticket
    from gateway.model import Tier


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A vetted free placeholder."""

    uid: str
    pool: str
    image: str
    node: str
    swap: bool
    """Whether its image may be changed."""
    prepared: str = ""
    """What it was prepared for: it serves tickets of the same and no others. Empty: it was not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What a ticket's owner must now do: claim `slot`, or make a pod when it is None."""

    ticket: Ticket
    tier: Tier
    slot: Slot | None


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """Counts at one moment."""

    waiting: int
    free: int
    claiming: int
    cold: int
    prepared: int = 0
    """Placeholders that are prepared for somebody and not yet given."""
