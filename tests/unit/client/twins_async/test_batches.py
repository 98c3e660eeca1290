"""Requests that wait, and several sandboxes by one call."""

from __future__ import annotations

import logging

import pytest

from sandman import errors
from sandman.client import Client, Retry
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import (
    TOKEN,
    FakeGateway,
    answer,
    drop,
    drop_after,
    problem,
)
from tests.unit.client.fake_streams import lines, queued

CREATE = "POST /v1/sandboxes"
GIVE_UP = "DELETE /v1/requests"


def made(index: int) -> dict:
    return {"index": index, "sandbox": {"id": f"box-{index}", "token": "sbt_x"}}


def summary(ready: int, failed: int = 0, waiting: int = 0) -> dict:
    return {"summary": {"ready": ready, "failed": failed, "waiting": waiting}}


@on_backends
async def test_a_request_that_waits_is_asked_for_until_it_is_served(
    gateway: FakeGateway, caplog
) -> None:
    gateway.queue = 3
    told: list[Retry] = []
    async with Client(gateway.url, TOKEN, on_retry=told.append) as client:
        with caplog.at_level(logging.INFO, "sandman"):
            async with client.sandbox() as box:
                assert box.id in gateway.sandboxes
    assert [str(retry.error).partition("(it is ")[2] for retry in told] == [
        "number 2 in the queue)", "number 1 in the queue)", "starting)",
    ]  # fmt: skip
    assert "number 2 in the queue" in caplog.text
    keys = {request.headers.get("idempotency-key") for request in gateway.requests[:4]}
    assert len(keys) == 1
    assert gateway.released


@on_backends
async def test_when_its_time_is_up_the_place_is_told_and_given_up(gateway: FakeGateway) -> None:
    gateway.queue = 1000
    async with Client(gateway.url, TOKEN) as client:
        with pytest.raises(errors.CapacityError, match="number 999 in the queue") as caught:
            await client.create(wait_s=0.1)
        assert caught.value.facts == {"place": 999, "state": "waiting", "request": "r1"}
        assert caught.value.retry_after == 2.0
        assert gateway.calls(GIVE_UP) == [GIVE_UP]
        with pytest.raises(errors.CapacityError):
            await client.create(wait_s=0.1, idempotency_key="mine")
        # Under the caller's own key it keeps its place: the caller may come back.
        assert gateway.calls(GIVE_UP) == [GIVE_UP]


@on_backends
async def test_when_its_time_is_up_while_a_failed_image_is_tried_again_that_is_told(
    gateway: FakeGateway,
) -> None:
    gateway.queue = 1000
    gateway.trouble = errors.ImagePullError("429 Too Many Requests", facts={"pull": "throttled"})
    async with Client(gateway.url, TOKEN) as client:
        with pytest.raises(errors.ImagePullError, match=r"429 Too Many.*wait_s=0\.1") as caught:
            await client.create(wait_s=0.1)
        assert caught.value.facts == {"pull": "throttled", "request": "r1"}
        assert caught.value.retry_after == 2.0
        assert gateway.calls(GIVE_UP) == [GIVE_UP]


@on_backends
async def test_several_come_as_they_become_ready_and_are_released(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandboxes(3, gang=True, image="i") as batch:
            ids = [box.id async for box in batch]
            assert set(ids) == set(gateway.sandboxes)
            assert (await client.attach(ids[1]).exec(["true"])).ok
            assert batch.progress == {"count": 3, "ready": 3, "failed": 0, "waiting": 0}
            assert repr(batch) == "<Batch 3 of 3 told, 0 failed>"
            body = gateway.requests[0].json()
            # Heartbeats keep them all, from before the first is made.
            assert list(client._heart._runs) == [body.pop("run")]
            assert body == {
                "image": "i", "count": 3, "gang": True, "wait_s": 60.0,
                "lease": {"ttl_s": 300.0, "run": True},
            }  # fmt: skip
        assert gateway.released
        assert gateway.calls("DELETE") == [GIVE_UP]


@on_backends
async def test_left_early_or_never_begun_nothing_stays(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandboxes(5) as batch:
            async for _ in batch:
                break
        assert gateway.released
        async with client.sandboxes(5):
            pass
        assert gateway.calls(GIVE_UP) == [GIVE_UP]


@on_backends
async def test_a_broken_stream_is_gone_on_with_and_nothing_is_told_twice(
    gateway: FakeGateway,
) -> None:
    told: list[Retry] = []
    progress = {"progress": {"ready": 1, "failed": 0, "waiting": 1}}
    whole = [made(0), made(1), summary(2)]
    async with Client(gateway.url, TOKEN, on_retry=told.append) as client:
        for broken in (
            [drop],
            [lines(made(0), progress, b'{"ind', end=False)],
            [lines(made(0), progress)],
            [lines(made(0), end=False), answer(503)],
        ):
            gateway.plan(CREATE, *broken, lines(*whole))
            told.clear()
            async with client.sandboxes(2) as batch:
                assert [box.id async for box in batch] == ["box-0", "box-1"]
            assert [retry.call for retry in told] == [CREATE] * len(broken)


@on_backends
async def test_a_lost_answer_costs_no_second_ones(gateway: FakeGateway) -> None:
    gateway.plan(CREATE, drop_after)
    async with Client(gateway.url, TOKEN) as client, client.sandboxes(2) as batch:
        assert len({box.id async for box in batch}) == 2
        assert gateway.created == 2


@on_backends
async def test_those_that_cannot_be_had_are_told_when_all_others_have_come(
    gateway: FakeGateway,
) -> None:
    failed = {"index": 1, "error": errors.ImageNotFoundError("no such image").problem()}
    waits = {"index": 2, "waiting": queued(7)}
    gateway.plan(CREATE, lines(failed, waits, made(0), summary(1, 1, 1)))
    async with Client(gateway.url, TOKEN) as client, client.sandboxes(3) as batch:
        assert (await anext(batch)).id == "box-0"
        with pytest.raises(errors.ImageNotFoundError, match="no such image"):
            await anext(batch)
        assert [error.facts["index"] for error in batch.errors] == [1, 2]
        assert isinstance(batch.errors[1], errors.CapacityError)
        assert await anext(batch, None) is None


@on_backends
async def test_what_can_never_be_is_not_tried_again(gateway: FakeGateway) -> None:
    never = errors.QuotaError("no gang of 9", facts={"limit": 8})
    never.retryable = False
    gateway.plan(CREATE, problem(never))
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandboxes(9, gang=True) as batch:
            with pytest.raises(errors.QuotaError, match="no gang of 9") as caught:
                await anext(batch)
        assert not caught.value.retryable
        assert gateway.calls(CREATE) == [CREATE]


@on_backends
async def test_a_stream_that_stays_broken_ends_with_its_error(gateway: FakeGateway) -> None:
    gateway.plan(CREATE, *[lines(made(0), end=False)] * 9)
    async with Client(gateway.url, TOKEN) as client, client.sandboxes(2, wait_s=0.3) as batch:
        assert (await anext(batch)).id == "box-0"
        with pytest.raises(errors.UnreachableError):
            await anext(batch)


@on_backends
async def test_lines_that_make_no_sense_are_named(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:
        for line in (b"[1]\n", b"nonsense\n", b'{"index": 0, "sandbox": {}}\n'):
            gateway.plan(CREATE, lines(line))
            async with client.sandboxes(2) as batch:
                with pytest.raises(errors.InternalError):
                    await anext(batch)


@on_backends
async def test_a_release_that_fails_is_logged_and_not_raised(gateway: FakeGateway, caplog) -> None:
    gateway.plan(GIVE_UP, problem(errors.InternalError("a slip")))
    async with Client(gateway.url, TOKEN) as client, client.sandboxes(1) as batch:
        assert await anext(batch)
    assert "left to its lease" in caplog.text
