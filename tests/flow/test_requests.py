"""Requests that are not done at once, and calls for several sandboxes, over HTTP and through a replica that
does not decide."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from tests.fakes.daemons import answer, claims, says, scripted
from tests.flow.conftest import Leader, ScriptedCluster, made_bed
from tests.flow.test_gateway import follower, replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx


def with_key(bed, key: str) -> dict[str, str]:
    return {**bed.as_("acme"), "idempotency-key": key}


def more(bed, count: int = 1) -> None:
    for _ in range(count):
        bed.cluster.placeholder(address="127.0.0.1", key_id="k1")


@contextlib.asynccontextmanager
async def door(bed, through: str) -> AsyncIterator[httpx.AsyncClient]:
    """The allocator's own door, or that of a replica that hands on to it."""
    if through == "allocator":
        yield bed.client
    else:
        async with replica(bed, follower(bed)) as client:
            yield client


DOORS = pytest.mark.parametrize("through", ["allocator", "replica"])


@pytest.fixture
async def full_bed():
    """Its one placeholder is taken, and none can be made."""
    async with scripted() as daemon:
        daemon.script = claims(says(answer()))
        cluster = ScriptedCluster()
        cluster.wanted = 3
        async with made_bed(cluster, daemon, cold_max=0) as one:
            await one.allocate()
            yield one


@DOORS
async def test_a_tenant_sees_how_he_stands_and_nothing_of_another(full_bed, through):
    bed = full_bed
    async with door(bed, through) as client:
        for run in ("r1", "r2"):
            body = {"wait_s": 0, "run": run}
            await client.post("/v1/sandboxes", json=body, headers=bed.as_("acme"))
        own = await client.get("/v1/overview", headers=bed.as_("acme"))
        told, tenant = own.json(), own.json()["tenant"]
        assert (tenant["name"], tenant["sandboxes"], tenant["waiting"]) == ("acme", 1, 2)
        assert [one["run"] for one in told["requests"]] == ["r1", "r2"]
        assert tenant["oldest_s"] == told["requests"][0]["waited_s"] >= 0
        theirs = await client.get("/v1/overview", headers=bed.as_("zeta"))
        other = theirs.json()
        assert (other["requests"], other["tenant"]["waiting"], other["queue"]["waiting"]) == (
            [],
            0,
            2,
        )
        assert "acme" not in theirs.text


@DOORS
async def test_who_waits_in_vain_is_told_how_to_ask_again(full_bed, through):
    bed = full_bed
    async with door(bed, through) as client:
        queued = await client.post("/v1/sandboxes", json={"wait_s": 0}, headers=bed.as_("acme"))
        told = queued.json()
        assert (queued.status_code, told["state"], told["place"]) == (202, "waiting", 1)
        assert int(queued.headers["retry-after"]) == told["retry_after"] == 1
        where = queued.headers["location"]
        assert where == f"/v1/requests/{told['request']}"
        again = await client.get(where, headers=bed.as_("acme"))
        assert (again.status_code, again.json()) == (202, told)
        more(bed)
        made = await client.get(where, params={"wait_s": 5}, headers=bed.as_("acme"))
        assert (made.status_code, made.json()["tier"]) == (201, "warm")
        assert made.json()["token"].startswith("sbt_")
        gone = await client.get(where, headers=bed.as_("acme"))
        assert (gone.status_code, gone.json()["reason"]) == (404, "not_found")


@DOORS
async def test_a_request_is_given_up_by_id_or_key_and_what_it_got_is_released(full_bed, through):
    bed = full_bed
    async with door(bed, through) as client:
        for by_id in (True, False):
            headers = with_key(bed, "k")
            queued = await client.post("/v1/sandboxes", json={"wait_s": 0}, headers=headers)
            where = queued.headers["location"] if by_id else "/v1/requests"
            for _ in range(2):
                dropped = await client.delete(where, headers=headers)
                assert (dropped.status_code, dropped.content) == (204, b"")
            assert repr(bed.desk) == "<Desk cases=0>"
        more(bed)
        made = await client.post("/v1/sandboxes", json={}, headers=with_key(bed, "k"))
        assert made.status_code == 201
        await client.delete("/v1/requests", headers=with_key(bed, "k"))
        after = await bed.client.get(f"/v1/sandboxes/{made.json()['id']}", headers=bed.as_("acme"))
        assert (after.status_code, after.json()["reason"]) == (410, "released")


async def test_who_gave_up_at_a_replica_is_not_shown_there_what_was_released(bed):
    """That replica has handed the call on, and its watch has not told of the end yet."""
    headers = with_key(bed, "k")
    async with replica(bed, follower(bed), behind=True) as client:
        made = await client.post("/v1/sandboxes", json={}, headers=headers)
        assert made.status_code == 201
        [pod] = bed.cluster.leased()
        client.cluster._put(pod)
        await trio.testing.wait_all_tasks_blocked(0.02)
        listed = await client.get("/v1/sandboxes", headers=headers)
        assert [one["id"] for one in listed.json()["sandboxes"]] == [made.json()["id"]]
        assert (await client.delete("/v1/requests", headers=headers)).status_code == 204
        listed = await client.get("/v1/sandboxes", headers=headers)
        assert listed.json() == {"sandboxes": []}
        gone = await client.get(made.headers["location"], headers=headers)
        assert (gone.status_code, gone.json()["reason"]) == (410, "released")


async def test_a_call_that_comes_after_its_own_end_keeps_no_place(full_bed):
    """Its caller went away in the middle of its body, and has said so on another connection."""
    bed, body = full_bed, b'{"wait_s": 60}'

    async def cases(count: int) -> None:
        with trio.fail_after(10):
            while repr(bed.desk) != f"<Desk cases={count}>":
                await trio.sleep(0.02)

    lines = (b"Idempotency-Key: k", b"Content-Type: application/json", b"Content-Length: 14")
    async with bed.raw() as stream:
        await stream.send_all(bed.head("POST", "/v1/sandboxes", *lines) + body[:5])
        dropped = await bed.client.delete("/v1/requests", headers=with_key(bed, "k"))
        assert dropped.status_code == 204
        await stream.send_all(body[5:])
        await cases(1)
    await cases(0)


@pytest.mark.parametrize(
    "query", ["wait_s=soon", "wait_s=-1", "wait_s=nan", "wait_s=1e9", "wait=1"]
)
async def test_a_question_that_makes_no_sense_is_refused(odd_bed, query):
    refused = await odd_bed.client.get(f"/v1/requests/x?{query}", headers=odd_bed.as_("acme"))
    assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")


async def test_without_a_key_there_is_nothing_to_give_up(odd_bed):
    refused = await odd_bed.client.delete("/v1/requests", headers=odd_bed.as_("acme"))
    assert (refused.status_code, refused.json()["field"]) == (400, names.HEADER_IDEMPOTENCY_KEY)


async def test_another_tenants_request_is_like_one_that_never_was(full_bed):
    bed = full_bed
    queued = await bed.client.post("/v1/sandboxes", json={"wait_s": 0}, headers=bed.as_("acme"))
    where = queued.headers["location"]
    other = await bed.client.get(where, headers=bed.as_("zeta"))
    assert other.status_code == 404
    assert (await bed.client.delete(where, headers=bed.as_("zeta"))).status_code == 204
    assert (await bed.client.get(where, headers=bed.as_("acme"))).status_code == 202


async def lines_of(answer: httpx.Response) -> list[dict]:
    return [json.loads(line) async for line in answer.aiter_lines()]


@DOORS
async def test_several_come_as_lines_each_when_it_is_ready(full_bed, through):
    bed = full_bed
    more(bed, 2)
    async with (
        door(bed, through) as client,
        client.stream(
            "POST", "/v1/sandboxes", json={"count": 3, "run": "r"}, headers=bed.as_("acme")
        ) as answer,
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (200, names.MEDIA_NDJSON)
        lines = answer.aiter_lines()
        first = [json.loads(await anext(lines)) for _ in range(2)]
        assert all(line["sandbox"]["token"] for line in first)
        more(bed)
        rest = [json.loads(line) async for line in lines]
    summary = {"count": 3, "ready": 3, "failed": 0, "waiting": 0}
    assert rest[-1] == {"summary": summary}
    assert sorted(line["index"] for line in [*first, *rest[:-1]]) == [0, 1, 2]


@DOORS
async def test_the_same_call_again_goes_on_where_it_stood(full_bed, through):
    bed = full_bed
    more(bed)
    async with door(bed, through) as client:
        call = {"json": {"count": 2, "wait_s": 1}, "headers": with_key(bed, "k")}
        async with client.stream("POST", "/v1/sandboxes", **call) as answer:
            [made, queued, end] = await lines_of(answer)
        assert end == {"summary": {"count": 2, "ready": 1, "failed": 0, "waiting": 1}}
        assert (queued["waiting"]["place"], queued["waiting"]["state"]) == (1, "waiting")
        more(bed)
        async with client.stream("POST", "/v1/sandboxes", **call) as answer:
            *members, end = await lines_of(answer)
        assert end["summary"]["ready"] == 2
        by_index = {line["index"]: line["sandbox"]["id"] for line in members}
        assert by_index[made["index"]] == made["sandbox"]["id"]
        assert len(bed.cluster.leased()) == 3
        await client.delete("/v1/requests", headers=with_key(bed, "k"))
        assert len(bed.cluster.leased()) == 1


async def test_what_fails_is_a_line_with_the_reason(full_bed):
    bed = full_bed
    more(bed, 2)
    bed.cluster.fail_claims = [RuntimeError("a slip")]
    async with bed.client.stream(
        "POST", "/v1/sandboxes", json={"count": 2, "gang": True}, headers=bed.as_("acme")
    ) as answer:
        *members, end = await lines_of(answer)
    assert [line["error"]["reason"] for line in members] == ["internal", "internal"]
    assert end["summary"]["failed"] == 2


async def test_a_count_of_one_is_a_stream_of_one(full_bed):
    more(full_bed)
    async with full_bed.client.stream(
        "POST", "/v1/sandboxes", json={"count": 1}, headers=full_bed.as_("acme")
    ) as answer:
        [made, end] = await lines_of(answer)
    assert (made["index"], made["sandbox"]["tier"]) == (0, "warm")
    assert end["summary"] == {"count": 1, "ready": 1, "failed": 0, "waiting": 0}


@pytest.mark.parametrize("count", [0, 1001, 2.5, "3", True])
async def test_a_count_that_cannot_be_is_refused(odd_bed, count):
    refused = await odd_bed.client.post(
        "/v1/sandboxes", json={"count": count}, headers=odd_bed.as_("acme")
    )
    assert (refused.status_code, refused.json()["field"]) == (400, "count")


@DOORS
async def test_a_caller_that_hangs_up_leaves_no_place_behind_unless_it_has_a_key(full_bed, through):
    bed = full_bed
    async with door(bed, through) as client:
        for body, headers in (
            ({}, bed.as_("acme")),
            ({"count": 2}, bed.as_("acme")),
            ({}, with_key(bed, "k")),
        ):
            async with trio.open_nursery() as nursery:

                async def call(body=body, headers=headers) -> None:
                    await client.post("/v1/sandboxes", json=body, headers=headers)

                nursery.start_soon(call)
                await until(lambda: bed.desk._cases)
                nursery.cancel_scope.cancel()
            [case, *_] = bed.desk._cases.values()
            await until(lambda case=case: not case.askers)
            if "idempotency-key" not in headers:
                await until(lambda: not bed.desk._cases)
        await trio.sleep(0.1)
        assert repr(bed.desk) == "<Desk cases=1>"


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not holds():
            await trio.sleep(0.01)


async def test_without_an_allocator_requests_are_worth_repeating(odd_bed):
    async with replica(odd_bed, Leader(is_leader=False)) as client:
        for method in ("GET", "DELETE"):
            refused = await client.request(method, "/v1/requests/x", headers=odd_bed.as_("acme"))
            assert (refused.status_code, refused.json()["reason"]) == (503, "unreachable")
