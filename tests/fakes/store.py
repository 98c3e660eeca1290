"""Reservations, kept in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from gateway.reserving import Reservation


class FakeStore:
    """Reservations that outlive a gateway. `faults` are raised by the next calls, one each."""

    def __init__(self) -> None:
        self.kept: dict[str, Reservation] = {}
        self.faults: list[Exception] = []

    async def _call(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.faults:
            raise self.faults.pop(0)

    async def create(self, reservation: Reservation) -> Reservation:
        await self._call()
        return self.kept.setdefault(reservation.id, reservation)

    async def list(self) -> list[Reservation]:
        await self._call()
        return list(self.kept.values())

    async def set_used(self, reservation: Reservation) -> None:
        await self._call()
        if reservation.id in self.kept:
            self.kept[reservation.id] = reservation

    async def delete(self, reservation: Reservation) -> None:
        await self._call()
        self.kept.pop(reservation.id, None)
