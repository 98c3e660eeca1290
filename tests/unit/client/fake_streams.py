"""What the fake gateway tells of several sandboxes, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11

from sandman import names
from tests.unit.client.fake_connection import HangupError

if TYPE_CHECKING:
    from sandman import errors
    from tests.unit.client.fake_connection import Connection, Request
    from tests.unit.client.fake_gateway import Action, FakeGateway


def queued(ahead: int, trouble: errors.SandmanError | None = None) -> dict:
    """The body of a 202."""
    told = {"trouble": trouble.problem()} if trouble is not None else {}
    return told | {
        "request": "r1",
        "state": "waiting" if ahead else "starting",
        "place": ahead or None,
        "retry_after": 2.0,
    }


def lines(*items: dict | bytes, end: bool = True) -> Action:
    """Answer with these lines of JSON, or raw bytes; `end` False hangs up after them."""

    def action(gateway: FakeGateway, connection: Connection, request: Request) -> None:
        connection.head(200, {"content-type": names.MEDIA_NDJSON})
        for item in items:
            if isinstance(item, bytes):
                connection.send(h11.Data(data=item))
            else:
                connection.line(item)
        if not end:
            raise HangupError
        connection.finish()

    return action
