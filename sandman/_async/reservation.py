"""Sandboxes that are prepared before they are asked for."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

import anyio

from sandman import errors, names, problems
from sandman._async.transport import Call
from sandman._core import faults, prepare
from sandman._core.config import RELEASE_LIMIT_S
from sandman._core.values import ReservationInfo
from sandman.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandman._async.transport import Transport
    from sandman._core.prepare import Step

LOOK_EVERY_S = 0.5
"""Seconds between two looks of `wait`: preparing takes seconds."""


class ReservationOptions(TypedDict, total=False):
    """What is to be prepared.

    `image`, `pool`, `run` and `prepare` as of a sandbox. `count`: how many; each is handed out once. It
    ends `for_s` seconds from now, or at `until` (RFC 3339, with its zone): one of both is required.
    `idempotency_key`: calls with one key get one reservation; one is made for each call that has none.
    """

    image: str | None
    pool: str | None
    count: int
    until: str | None
    for_s: float | None
    run: str | None
    prepare: Sequence[Step]
    idempotency_key: str | None


class Reservation:
    """A reservation. It is the gateway's: to let go of this object ends nothing.

    `info` is what the gateway said last.
    """

    def __init__(self, transport: Transport, info: ReservationInfo) -> None:
        self._transport = transport
        self.info = info

    def __repr__(self) -> str:
        return f"<Reservation {self.id} {self.info.state} {self.info.ready}/{self.info.count}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    async def refresh(self) -> ReservationInfo:
        """Ask how far it is.

        Raises:
            NotFoundError: it has ended, or is not yours.
        """
        answer = await self._transport.json(Call("GET", self._path))
        self.info = parse(answer)
        return self.info

    async def wait(self, wait_s: float) -> ReservationInfo:
        """Wait until all is prepared.

        Args:
            wait_s: the most seconds.

        Raises:
            PrepareFailedError, ImageNotFoundError, …: no more tries are made; the latest failure.
            CapacityError: not within `wait_s`; it goes on being prepared.
            NotFoundError: it has ended.
        """
        deadline = anyio.current_time() + wait_s
        while (info := await self.refresh()).state == "preparing":
            if anyio.current_time() + LOOK_EVERY_S > deadline:
                told = f"{info.ready} of {info.count} are ready after wait_s={wait_s:g}"
                raise CapacityError(told, facts={"ready": info.ready, "count": info.count})
            await anyio.sleep(LOOK_EVERY_S)
        if info.state == "failed":
            raise _failure(info)
        return info

    async def cancel(self) -> None:
        """End it: what was not handed out is released. One that has ended already does not matter."""
        await self._transport.json(Call("DELETE", self._path, patience_s=RELEASE_LIMIT_S))

    @property
    def _path(self) -> str:
        return f"/v1/reservations/{self.id}"


def creation(options: ReservationOptions) -> Call:
    """The call that makes one."""
    if unknown := options.keys() - ReservationOptions.__annotations__.keys():
        raise TypeError(f"unknown option {min(unknown)!r}: see ReservationOptions")
    body: dict[str, object] = {
        name: value
        for name, value in options.items()
        if value is not None and name != "idempotency_key"
    }
    if (steps := options.get("prepare")) is not None:
        body["prepare"] = prepare.to_json(steps)
    call = Call.with_json("POST", "/v1/reservations", body)
    key = options.get("idempotency_key") or uuid.uuid4().hex
    call.headers = {**call.headers, names.HEADER_IDEMPOTENCY_KEY: key}
    return call


def parse(answer: object) -> ReservationInfo:
    """What the gateway says of one.

    Raises:
        InternalError: it is not our gateway's answer.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
        raise faults.not_understood("a reservation", answer)
    return ReservationInfo.from_json(answer)


def seconds_left(info: ReservationInfo) -> float:
    """Until its end, by this machine's clock; 0 where that is not told."""
    try:
        until = datetime.fromisoformat(info.until or "")
    except ValueError:
        return 0.0
    return max(0.0, until.timestamp() - datetime.now(UTC).timestamp())


def _failure(info: ReservationInfo) -> errors.SandmanError:
    last: Mapping[str, object] = info.failures[-1] if info.failures else {}
    kind = problems.by_reason().get(str(last.get("reason")), errors.PrepareFailedError)
    facts = last.get("facts")
    return kind(
        str(last.get("detail") or "it could not be prepared"),
        facts=facts if isinstance(facts, dict) else None,
    )
