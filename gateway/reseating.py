"""Who waits for a node with a new pod of his own is given a placeholder that comes free meanwhile.

On a full cluster the next free place may go to a pool's placeholder as well as to a pod that somebody waits for: the scheduler
does not know the difference. The placeholder would wait for a request, and the request for a place, each until its end.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.allocation import Allocation
    from gateway.fairness import Ticket
    from gateway.model import Ready
    from gateway.orders import Order
    from gateway.registry import Registry

AFTER_S = 2.0
"""Seconds that a new pod may wait for a node before it is given up for a placeholder: a scheduler with room takes some
hundredths, and a pod that is given up costs two writes."""


@dataclasses.dataclass(slots=True, eq=False)
class _Attempt:
    """A new pod that is waited for."""

    ticket: Ticket
    scope: trio.CancelScope
    kept: Order | None = None
    """What it is given up for, kept from all others."""


class Reseating:
    """Those who wait with a new pod.

    Args:
        allocation: has the placeholders.
        registry: knows which pods have a node.
        made: uids of pods that are not ready yet, and since when they are there, by their tickets' numbers.
    """

    def __init__(
        self, allocation: Allocation, registry: Registry, made: Mapping[int, tuple[str, float]]
    ) -> None:
        self._allocation = allocation
        self._registry = registry
        self._made = made
        self._attempts: dict[int, _Attempt] = {}

    async def attempt(
        self, order: Order, carry_out: Callable[[], Awaitable[Ready]]
    ) -> Ready | None:
        """What becomes of the order; None: it was given up, and a placeholder is kept until `leave`.

        Raises:
            SandmanError: as `carry_out`.
        """
        if order.slot is not None:
            return await carry_out()
        number = order.ticket.number
        attempt = _Attempt(order.ticket, trio.CancelScope())
        self._attempts[number] = attempt
        try:
            with attempt.scope:
                return await carry_out()
        finally:
            if not attempt.scope.cancelled_caught:
                self.leave(order.ticket)
        return None

    def look(self) -> None:
        """Give up pods that no node takes for placeholders that nobody else waits for."""
        now = trio.current_time()
        for number, attempt in self._attempts.items():
            if attempt.kept is None and self._is_placeless(number, now):
                attempt.kept = self._allocation.keep(attempt.ticket)
                if attempt.kept is not None:
                    attempt.scope.cancel()

    def leave(self, ticket: Ticket) -> None:
        """What is kept for it is free again: for it, where it is first in the queue by now."""
        attempt = self._attempts.pop(ticket.number, None)
        if attempt is not None and attempt.kept is not None:
            self._allocation.give_back(attempt.kept)

    def _is_placeless(self, number: int, now: float) -> bool:
        uid, since = self._made.get(number, ("", now))
        pod = self._registry.get(uid)
        return pod is not None and pod.node is None and now - since >= AFTER_S
