"""Calls under way: which of them end with what they began with, and how."""

from __future__ import annotations

import pytest
import trio
from starlette.responses import PlainTextResponse

from gateway import calls
from gateway.calls import Calls, Ending, RevokedError
from gateway.model import Principal
from sandman.errors import UnauthenticatedError

ACME = Principal("acme", "k")


class Bed:
    """Calls, an application that does what a test says, and what it sent."""

    def __init__(self) -> None:
        self.good = True
        self.calls = Calls(lambda _principal: self.good)
        self.sent: list[dict] = []

    async def run(self, app) -> None:
        def refuse(_scope, error):
            return PlainTextResponse(str(error), 401)

        async def send(message) -> None:
            self.sent.append(message)

        await Ending(app, self.calls, refuse)({"type": "http"}, None, send)

    def revoke(self) -> None:
        self.good = False
        self.calls.review()


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_a_call_that_has_said_nothing_is_refused(bed):
    async def app(scope, receive, send) -> None:
        bed.calls.begin(scope, ACME)
        bed.revoke()
        await trio.sleep_forever()

    await bed.run(app)
    assert bed.sent[0]["status"] == 401
    assert (b"connection", b"close") in bed.sent[0]["headers"]
    assert len(bed.calls) == 0


async def test_a_call_that_has_begun_is_cut(bed):
    async def app(scope, receive, send) -> None:
        bed.calls.begin(scope, ACME)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        bed.revoke()
        await trio.sleep_forever()

    with pytest.raises(RevokedError):
        await bed.run(app)
    assert len(bed.sent) == 1
    assert len(bed.calls) == 0


async def test_who_can_tell_why_is_told_first_and_once(bed):
    told = []

    async def app(scope, receive, send) -> None:
        bed.calls.begin(scope, ACME)
        call = calls.of(scope)
        with trio.CancelScope() as own, call.during(own):
            bed.revoke()
            bed.revoke()
            await trio.sleep_forever()
        told.append((own.cancelled_caught, call.error))
        # What comes after it, on the same call, ends at once as well.
        with trio.CancelScope() as later, call.during(later):
            await trio.sleep_forever()
        told.append(later.cancelled_caught)

    await bed.run(app)
    [(caught, error), again] = told
    assert (caught, again, bed.sent) == (True, True, [])
    assert isinstance(error, UnauthenticatedError)


async def test_a_call_that_ends_by_itself_meanwhile_is_well(bed):
    async def app(scope, receive, send) -> None:
        bed.calls.begin(scope, ACME)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        bed.revoke()

    await bed.run(app)
    assert [message["status"] for message in bed.sent] == [204]


async def test_what_is_revoked_while_it_was_looked_at_never_begins(bed):
    bed.good = False
    with pytest.raises(UnauthenticatedError):
        bed.calls.begin({}, ACME)


async def test_a_call_whose_caller_is_not_known_yet_is_left_alone(bed):
    async def app(scope, receive, send) -> None:
        bed.revoke()
        await trio.lowlevel.checkpoint()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    await bed.run(app)
    assert [message["status"] for message in bed.sent] == [200]


async def test_the_clock_is_a_look_too(bed, autojump_clock):
    ended = []

    async def app(scope, receive, send) -> None:
        bed.calls.begin(scope, ACME)
        await trio.sleep_forever()

    async def run() -> None:
        await bed.run(app)
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.calls.run)
        nursery.start_soon(run)
        await trio.sleep(7)
        bed.good = False
        await trio.sleep(calls.EVERY_S)
        assert len(ended) == 1
        nursery.cancel_scope.cancel()
