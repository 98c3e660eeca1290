"""Whose turn it is among requests that wait for the same thing. Pure.

    tenants, by weight ──▶ eval before train ──▶ runs, in equal shares ──▶ first come, first served

Tenants and runs take turns by fair queuing (Demers, Keshav, Shenker 1989): who was served has used up
1/weight; next is who has used least. One that begins to wait is set level with the virtual time, which
is what everybody would have used by now if all had been served at once: to have asked for nothing
earns no credit, to leave and come back clears no debt, and newcomers without end starve nobody.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from gateway.model import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


PLACE_MAX = 1000
"""Places that are counted. Who is told a place waits on, and thousands may ask in the same moment."""
DEBTS_MAX = 1024
"""Accounts of absent parties kept before those that owe nothing are dropped."""


class Turns:
    """Accounts of those who take turns."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._now = 0.0

    def join(self, who: str) -> None:
        """Begins to wait."""
        self._used[who] = max(self._used.get(who, 0.0), self._now)

    def merge(self, lines: Mapping[str, Iterator[Ticket]], *, weighted: bool) -> Iterator[Ticket]:
        """All tickets of the parties' lines, as they would be served; the accounts stay as they are."""
        heap = [(self._used[who], at, line) for at, (who, line) in enumerate(lines.items())]
        heapq.heapify(heap)
        while heap:
            used, at, line = heap[0]
            ticket = next(line, None)
            if ticket is None:
                heapq.heappop(heap)
                continue
            yield ticket
            # Of equals the first: `at` differs, so that lines are never compared.
            heapq.heapreplace(heap, (used + 1.0 / (ticket.weight if weighted else 1.0), at, line))

    def serve(self, who: str, weight: float) -> None:
        """Was served once."""
        self._used[who] += 1.0 / weight

    def pass_time(self, weights: float) -> None:
        """Somebody was served while parties of so much weight together waited."""
        self._now += 1.0 / weights

    def forget_settled(self, waiting: Iterable[str]) -> None:
        """Drop accounts of those who do not wait and owe nothing, once there are many."""
        if len(self._used) > DEBTS_MAX:
            kept = set(waiting)
            self._used = {
                who: used for who, used in self._used.items() if who in kept or used > self._now
            }


@dataclasses.dataclass(frozen=True, slots=True)
class Ticket:
    """A request that waits for a sandbox.

    `weight` is its tenant's share against other tenants'; greater than 0. Tickets of one `gang` are
    served all together or not at all; empty: by itself.
    """

    number: int
    pool: str
    image: str
    tenant: str = ""
    run: str = ""
    purpose: Purpose = Purpose.TRAIN
    weight: float = 1.0
    prepared: str = ""
    """The prepared placeholders that serve it (`steps.prepared_hash`); empty: none does."""
    is_fresh: bool = False
    """Whether only a new pod will do: placeholders were tried."""
    gang: str = ""
    avoid: frozenset[str] = frozenset()
    """Nodes that it must not be on."""


Line = OrderedDict[int, Ticket]


class _Runs:
    """The runs of one tenant and purpose."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.lines: dict[str, Line] = {}

    def in_order(self) -> Iterator[Ticket]:
        lines = {run: iter(line.values()) for run, line in self.lines.items()}
        return self.turns.merge(lines, weighted=False)


class _Tenant:
    """One tenant's requests."""

    def __init__(self) -> None:
        self.purposes = {purpose: _Runs() for purpose in Purpose}
        self.weight = 1.0

    def in_order(self) -> Iterator[Ticket]:
        for runs in self.purposes.values():
            yield from runs.in_order()


class FairQueue:
    """Requests that wait for sandboxes of one pool."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._tenants: dict[str, _Tenant] = {}
        self._tickets: dict[int, Ticket] = {}
        self._images: Counter[str] = Counter()
        # They had their turn already, and lost what they got through no fault of theirs.
        self._returned: Line = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def __repr__(self) -> str:
        return f"<FairQueue waiting={len(self)} tenants={sorted(self._tenants)}>"

    def __contains__(self, number: int) -> bool:
        return number in self._tickets

    def add(self, ticket: Ticket) -> None:
        """A request begins to wait."""
        self._enter(ticket)
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            tenant = self._tenants[ticket.tenant] = _Tenant()
            self._turns.join(ticket.tenant)
        tenant.weight = ticket.weight
        runs = tenant.purposes[ticket.purpose]
        if ticket.run not in runs.lines:
            runs.lines[ticket.run] = OrderedDict()
            runs.turns.join(ticket.run)
        runs.lines[ticket.run][ticket.number] = ticket

    def put_back(self, ticket: Ticket) -> None:
        """One that was served and lost it waits again: before all others, and at no charge."""
        self._enter(ticket)
        self._returned[ticket.number] = ticket

    def remove(self, number: int) -> Ticket | None:
        """One waits no more; None when it did not."""
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return None
        self._images -= Counter([ticket.image, ticket.prepared])
        if self._returned.pop(number, None) is None:
            self._leave(ticket)
        return ticket

    def take(self, number: int) -> None:
        """One that waits is served: it leaves, and its tenant and run are charged for it."""
        ticket = self._tickets[number]
        if number not in self._returned:
            self._turns.serve(ticket.tenant, ticket.weight)
            self._turns.pass_time(sum(one.weight for one in self._tenants.values()))
            runs = self._tenants[ticket.tenant].purposes[ticket.purpose]
            runs.turns.serve(ticket.run, 1.0)
            runs.turns.pass_time(len(runs.lines))
        self.remove(number)

    def in_order(self) -> Iterator[Ticket]:
        """All that wait, as they would be served. The queue must not change meanwhile."""
        yield from self._returned.values()
        lines = {name: tenant.in_order() for name, tenant in self._tenants.items()}
        yield from self._turns.merge(lines, weighted=True)

    def wants(self, image: str) -> bool:
        """Whether somebody waits for this image, or for what is prepared so."""
        return self._images[image] > 0

    def count(self, image: str) -> int:
        """How many wait for this image."""
        return self._images[image]

    def place(self, number: int) -> int | None:
        """Place in the queue, first is 1; None when it does not wait, or is further back than PLACE_MAX."""
        if number not in self._tickets:
            return None
        ahead = enumerate(itertools.islice(self.in_order(), PLACE_MAX), 1)
        return next((at for at, ticket in ahead if ticket.number == number), None)

    def _enter(self, ticket: Ticket) -> None:
        self._tickets[ticket.number] = ticket
        self._images.update((ticket.image, ticket.prepared))

    def _leave(self, ticket: Ticket) -> None:
        tenant = self._tenants[ticket.tenant]
        runs = tenant.purposes[ticket.purpose]
        del runs.lines[ticket.run][ticket.number]
        if not runs.lines[ticket.run]:
            del runs.lines[ticket.run]
            runs.turns.forget_settled(runs.lines)
        if not any(one.lines for one in tenant.purposes.values()):
            del self._tenants[ticket.tenant]
            self._turns.forget_settled(self._tenants)
