"""One who waits in the queue, and the order that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from gateway.fairness import Ticket
    from gateway.orders import Order
    from gateway.wants import Want
    from sandman.errors import SandmanError


class Waiter:
    """One who waits and the order it was given."""

    def __init__(self, ticket: Ticket, want: Want) -> None:
        self.ticket = ticket
        self.want = want
        self.order: Order | None = None
        self.place: int | None = None
        """Place in the queue when the time was up; None when it had been given something, or is far back."""
        self.is_waiting = False
        self.trouble: SandmanError | None = None
        """Why it is tried once more: should the time be up before that ends, it is what is known."""
        self._error: SandmanError | None = None
        self._given = trio.Event()

    def give(self, order: Order) -> None:
        self.order = order
        self._given.set()

    def refuse(self, error: SandmanError) -> None:
        """It will get nothing, and why."""
        self._error = error
        self._given.set()

    async def wait_order(self) -> Order:
        """The order that the allocation gives.

        Raises:
            SandmanError: see `refuse`.
        """
        while self.order is None:
            if self._error is not None:
                raise self._error
            self._given = trio.Event()
            await self._given.wait()
        return self.order
