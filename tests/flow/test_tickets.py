"""A page's WebSockets: it cannot set a header, so it brings a ticket, once. Through the real gateway, to a real daemon."""

from __future__ import annotations

import contextlib
import json
import time

import httpx
import pytest

from gateway import tickets
from gateway.tickets import Ticket
from tests.fakes.sockets import Refused, connected
from tests.flow.conftest import KEYS, Leader, gateway
from tests.flow.test_gateway import follower

SUBPROTOCOL = "sandman.v1.terminal"


@pytest.fixture
async def made(bed) -> dict:
    """A sandbox with a command that has a terminal."""
    one = await bed.allocate()
    body = {"shell": "read line; echo got $line; sleep 9", "exec_id": "e1", "terminal": {}}
    path = f"/v1/sandboxes/{one['id']}"
    answer = await bed.client.post(f"{path}/processes", json=body, headers=bed.as_("acme"))
    assert answer.status_code == 200, answer.text
    return one


async def ticket(bed, made: dict, client: httpx.AsyncClient | None = None, exec_id="e1") -> str:
    answer = await (client or bed.client).post(
        f"/v1/sandboxes/{made['id']}/tickets", json={"exec_id": exec_id}, headers=bed.as_("acme")
    )
    assert answer.status_code == 201, answer.text
    assert (answer.json()["sandbox"], answer.json()["exec_id"]) == (made["id"], exec_id)
    return answer.json()["ticket"]


def forged(made: dict, **changed) -> str:
    """As the gateway would have signed it, but never made it."""
    now = time.time()
    one = Ticket("guessed", "acme", made["id"], "e1", None, "acme", now + 30, now + 3600)
    return tickets.make(one._replace(**changed), KEYS, "k1")


@contextlib.asynccontextmanager
async def socket(bed, made: dict, query: str, *, tail="processes/e1/terminal", **headers):
    """What a browser sends."""
    target = f"/v1/sandboxes/{made['id']}/{tail}?{query}"
    given = {"origin": "https://x", **headers}
    async with bed.raw() as stream, connected(stream, target, given, SUBPROTOCOL) as peer:
        yield peer


async def refused(bed, made: dict, query: str, **options) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        async with socket(bed, made, query, **options):
            pass
    problem = json.loads(caught.value.body)
    return caught.value.status, problem["detail"]


async def test_a_ticket_opens_its_terminal_once(bed, made):
    one = await ticket(bed, made)
    async with socket(bed, made, f"exclusive=1&ticket={one}&stdout=0") as peer:
        assert peer.subprotocol == SUBPROTOCOL
        assert "started" in await peer.receive()
        await peer.send(b"well\n")
        shown = b""
        while b"got well" not in shown:
            message = await peer.receive()
            shown += message if isinstance(message, bytes) else b""
        assert await refused(bed, made, f"ticket={one}") == (
            401, "the ticket was used before, or is lost: ask for another",
        )  # fmt: skip


async def test_no_other_page_opens_it_and_nobody_loses_by_the_attempt(bed, made):
    one = await ticket(bed, made)
    for origin in ("https://evil.example", "http://x", "null"):
        status, detail = await refused(bed, made, f"ticket={one}", origin=origin)
        assert (status, "Origin" in detail) == (403, True)
    async with socket(bed, made, f"ticket={one}") as peer:
        assert "started" in await peer.receive()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "used before, or is lost"),
        ({"expires_at": 1.0}, "has expired"),
        ({"exec_id": "e2"}, "for another terminal"),
        ({"sandbox": "other"}, "for another terminal"),
        ({"tenant": "zeta"}, "used before, or is lost"),
    ],
)
async def test_what_was_not_made_for_this_is_refused(bed, made, changed, why):
    status, detail = await refused(bed, made, f"ticket={forged(made, **changed)}")
    assert status == 401
    assert why in detail


async def test_what_cannot_be_a_ticket_is_refused(bed, made):
    for text in ("", "x", "smk_acme_x", "%00", bed.credentials.texts["acme"], made["token"]):
        status, detail = await refused(bed, made, f"ticket={text}")
        assert (status, detail) == (401, "the ticket is not valid: ask for another")
    one = await ticket(bed, made)
    # Of two nobody can say which is meant; to other paths than a terminal they do not lead at all.
    for query, tail in (
        (f"ticket={one}&ticket={one}", "processes/e1/terminal"),
        (f"ticket={one}", "ports/80/"),
    ):
        status, detail = await refused(bed, made, query, tail=tail)
        assert (status, detail) == (401, "send Authorization: Bearer <token>")
    async with socket(bed, made, f"ticket={one}") as peer:
        assert "started" in await peer.receive()


async def test_many_guesses_are_told_to_wait(bed, made):
    found = {(await refused(bed, made, f"ticket=x{number}"))[0] for number in range(60)}
    assert found == {401, 429}


async def test_guesses_at_a_replica_are_counted_there_and_hold_nobody_up_at_the_allocator(
    bed, made
):
    headers = {"authorization": "Bearer wst_k1_guessed"}
    async with other(bed, follower(bed)) as there:
        answers = [await there.client.post("/v1/tickets/use", headers=headers) for _ in range(60)]
        assert {one.status_code for one in answers} == {401, 429}
        used = await ticket(bed, made)
        for status in [204, *[401] * 30]:
            answer = await bed.client.post(
                "/v1/tickets/use", headers={"authorization": f"Bearer {used}"}
            )
            # One that was used is no guess, however often it is shown.
            assert answer.status_code == status
    answer = await bed.client.post("/v1/tickets/use", headers=headers)
    assert answer.status_code == 401


async def test_tickets_are_made_for_what_a_token_may(bed, made):
    path = f"/v1/sandboxes/{made['id']}/tickets"
    body = {"exec_id": "e1"}
    for may, status in ((["files"], 403), (["exec"], 201)):
        narrow = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/tokens", json={"may": may}, headers=bed.as_("acme")
        )
        headers = {"authorization": f"Bearer {narrow.json()['token']}"}
        answer = await bed.client.post(path, json=body, headers=headers)
        assert answer.status_code == status
    async with socket(bed, made, f"ticket={answer.json()['ticket']}") as peer:
        assert "started" in await peer.receive()
    assert (await bed.client.post(path, json=body, headers=bed.as_("zeta"))).status_code == 404
    assert (await bed.client.post(path, json=body)).status_code == 401
    for fault in ({}, {"exec_id": "a/b"}, {"exec_id": 1}, {"exec_id": "e1", "more": 1}):
        answer = await bed.client.post(path, json=fault, headers=bed.as_("acme"))
        assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")


async def test_a_key_that_is_revoked_takes_its_tickets_along(bed, made):
    one = await ticket(bed, made)
    keys = bed.credentials.api_keys
    bed.credentials.api_keys = {"zeta": keys["zeta"]}
    status, detail = await refused(bed, made, f"ticket={one}")
    assert (status, "revoked" in detail) == (401, True)


async def test_any_replica_makes_and_takes_them_and_the_allocator_remembers(bed, made):
    async with other(bed, follower(bed)) as there:
        for maker, taker, again in ((there, bed, there), (bed, there, bed), (there, there, bed)):
            one = await ticket(bed, made, maker.client)
            async with socket(taker, made, f"ticket={one}") as peer:
                assert "started" in await peer.receive()
            assert (await refused(again, made, f"ticket={one}"))[0] == 401
        one = await ticket(bed, made)
    async with other(bed, Leader(is_leader=False, address="127.0.0.1:1")) as lost:
        assert (await refused(lost, made, f"ticket={one}"))[0] == 503
    answer = await bed.client.post("/v1/tickets/use", headers={"authorization": f"Bearer {one}"})
    assert (answer.status_code, (await refused(bed, made, f"ticket={one}"))[0]) == (204, 401)
    answer = await bed.client.post("/v1/tickets/use", headers=bed.as_("acme"))
    assert answer.status_code == 401


@contextlib.asynccontextmanager
async def other(bed, leader: Leader):
    """Another replica, with a watch that shows it what the first one's does."""
    cluster = type(bed.cluster)(bed.daemon)
    cluster.read = bed.cluster.read
    cluster.synced()
    async with (
        gateway(cluster, bed.credentials, bed.settings, leader, bed.ca) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=bed.trust, timeout=20) as client,
    ):
        yield type(bed)(**{**vars(bed), "client": client, "url": f"https://{address}"})
