"""The body of a reservation → a frozen value. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from gateway import choice, steps
from gateway.reserving import COUNT_MAX, LENGTH_MAX_S, Reservation
from gateway.routes import parse
from sandman import wire
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import PoolSpec, Principal


def reservation_request(
    body: Mapping[str, object], principal: Principal, pools: Mapping[str, PoolSpec], now: float
) -> Reservation:
    """The body of `POST /v1/reservations`; the id is given later.

    Args:
        body: as it came.
        principal: whose it will be.
        pools: by name; where the body names none it is the one that a request like this would get.
        now: seconds since the epoch.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    image = parse.image(reader.text("image"))
    spec = _pool(reader.text("pool"), image, pools)
    made = Reservation(
        id="",
        tenant=principal.tenant,
        key_id=principal.key_id,
        image=image or spec.image,
        pool=spec.name,
        count=_count(reader),
        until=_until(reader, now),
        created_at=now,
        steps=steps.parse(reader.raw("prepare")),
        run=parse.run_name(reader.text("run")),
    )
    reader.finish()
    return made


def _pool(name: str | None, image: str | None, pools: Mapping[str, PoolSpec]) -> PoolSpec:
    if name is None:
        return choice.choose(choice.Asked(image), pools)
    if name not in pools:
        text = f"no pool {name!r}; there are: {', '.join(sorted(pools)) or 'none'}"
        raise BadRequestError(text, field="pool")
    return pools[name]


def _count(reader: wire.Fields) -> int:
    if not reader.has("count"):
        raise reader.fail("count", "given: how many sandboxes")
    return reader.count("count", 1, COUNT_MAX, 1)


def _until(reader: wire.Fields, now: float) -> float:
    text, for_s = reader.text("until"), reader.seconds("for_s")
    if (text is None) == (for_s is None):
        raise BadRequestError("give exactly one of until and for_s", field="until")
    until = now + for_s if for_s is not None else _moment(text or "")
    name = "for_s" if for_s is not None else "until"
    if not now < until <= now + LENGTH_MAX_S:
        raise reader.fail(name, f"in the future, by {LENGTH_MAX_S:.0f} s at most")
    return until


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequestError("until must be a time as in RFC 3339, with its zone", field="until")
    return moment.timestamp()
