"""Gangs: requests that are served all together or not at all. Pure.

A member that has got something waits for the others, and two gangs that do so may wait for each other
for ever. So one gang at a time *gathers*, over all pools, since they share the nodes: it keeps what its
members are given until there is one for each of them, and only then is any of it claimed. Where
pods can be made, nothing is waited for: what is missing is made, and the gang goes on gathering until
its last member is served. Requests for one sandbox never wait while they hold something.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.fairness import Ticket

Held = TypeVar("Held")
"""What a member is given: an order of the allocation."""


@dataclasses.dataclass(slots=True)
class _Gathering(Generic[Held]):
    """The gang whose turn it is."""

    name: str
    kept: dict[int, Held] = dataclasses.field(default_factory=dict)
    """By ticket: given, and not yet told to anybody."""
    is_under_way: bool = False
    """What it has is claimed, what it lacks will be had: it waits for nothing any more."""


class Gangs(Generic[Held]):
    """Who may be given something, and what is kept back until a gang is whole."""

    def __init__(self) -> None:
        self._members: dict[str, set[int]] = defaultdict(set)
        self._now: _Gathering[Held] | None = None

    def __repr__(self) -> str:
        return f"<Gangs waiting={len(self._members)} gathering={self._now}>"

    def __len__(self) -> int:
        """How many orders are kept back."""
        return len(self._now.kept) if self._now is not None else 0

    def __contains__(self, number: int) -> bool:
        """Whether an order for this ticket is kept back."""
        return self._now is not None and number in self._now.kept

    def arrive(self, ticket: Ticket) -> None:
        """A member begins to wait, or does so again."""
        if ticket.gang:
            self._members[ticket.gang].add(ticket.number)

    def leave(self, ticket: Ticket) -> Held | None:
        """A member is served or gives up; answers what was kept for it. With the last one the next gang
        may gather."""
        if not ticket.gang:
            return None
        kept = self.drop(ticket.number)
        members = self._members[ticket.gang]
        members.discard(ticket.number)
        if not members:
            del self._members[ticket.gang]
            if self._now is not None and self._now.name == ticket.gang:
                self._now = None
        return kept

    def is_barred(self, ticket: Ticket) -> bool:
        """Whether it must wait, since another gang gathers."""
        return bool(ticket.gang) and self._now is not None and self._now.name != ticket.gang

    def keep(self, ticket: Ticket, held: Held) -> bool:
        """A ticket is given something: whether it is kept back for now. The first one of a gang begins
        its gathering."""
        if not ticket.gang:
            return False
        now = self._gather(ticket)
        if now.is_under_way:
            return False
        now.kept[ticket.number] = held
        return True

    def go_on_without(self, ticket: Ticket) -> None:
        """What this ticket lacks can be made: its gang need not wait until it is whole."""
        if ticket.gang:
            self._gather(ticket).is_under_way = True

    def take(self, most: int, may: Callable[[Held], bool]) -> Iterator[Held]:
        """Orders that need be kept no longer, so many at most, and those alone that `may` begin now: it is
        asked after the one before was begun."""
        now = self._now
        if now is None or not now.kept:
            return
        if len(now.kept) == len(self._members[now.name]):
            now.is_under_way = True
        for number in list(now.kept) if now.is_under_way else ():
            if most > 0 and may(now.kept[number]):
                most -= 1
                yield now.kept.pop(number)

    def drop(self, number: int) -> Held | None:
        """What is kept for a ticket is lost or no longer wanted; the others' is kept on."""
        if self._now is None or number not in self._now.kept:
            return None
        return self._now.kept.pop(number)

    def kept(self) -> list[Held]:
        """All that is kept back."""
        return list(self._now.kept.values()) if self._now is not None else []

    def _gather(self, ticket: Ticket) -> _Gathering[Held]:
        if self._now is None:
            self._now = _Gathering(ticket.gang)
        return self._now
