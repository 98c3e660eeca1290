"""`POST /v1/release` of a workload's daemon: its guest leaves."""

from __future__ import annotations

from daemon.documents import dump
from daemon.exchange import Response
from sandman import names
from sandman.fields import Fields, load_object
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange
    from sandman.claims import Info

_MAX_BYTES = 4096


class Farewell:
    """The handler of `release`."""

    def __init__(self, part: Callable[[str], Info]) -> None:
        self._part = part

    def release(self, exchange: Exchange) -> None:
        """End what this claim has started, and be there for the next one."""
        body = Fields(load_object(exchange.read_body(_MAX_BYTES)))
        claim_id = body.text("claim_id")
        if not claim_id:
            raise body.fail("claim_id", "a string that is not empty")
        body.finish()
        info = self._part(claim_id)
        exchange.respond(Response(200, dump(info.to_json()), names.MEDIA_JSON))
