# Written by scripts/unasync.py from tests/unit/client/twins_async/test_reservations.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Reservations: what travels, and what becomes of a wait."""

from __future__ import annotations

import pytest

from sandman import errors
from sandman.sync import Client
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer


def test_one_is_made_seen_and_ended(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        made = client.reserve(
            image="i:1", count=20, for_s=600, pool=None, run="r1", idempotency_key="mine",
            prepare=[{"file": {"path": "/a", "content": b"\xff"}}],
        )  # fmt: skip
        assert gateway.requests[0].json() == {
            "image": "i:1", "count": 20, "for_s": 600, "run": "r1",
            "prepare": [{"file": {"path": "/a", "content_b64": "/w=="}}],
        }  # fmt: skip
        assert gateway.requests[0].headers["idempotency-key"] == "mine"
        assert repr(made) == "<Reservation mine preparing 0/20>"
        assert [one.id for one in client.reservations()] == ["mine"]
        gateway.reservations["mine"] |= {"state": "ready", "ready": 20}
        assert (made.refresh()).ready == 20
        made.cancel()
        assert gateway.reservations == {}
        with pytest.raises(errors.NotFoundError):
            made.refresh()
        made.cancel()


def test_a_lost_answer_does_not_make_two(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan("POST /v1/reservations", answer(503))
        client.reserve(count=1, for_s=5)
        first, second = [r for r in gateway.requests if r.path == "/v1/reservations"]
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_wait_ends_when_all_is_there_or_nothing_more_comes(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        made = client.reserve(count=1, for_s=5, idempotency_key="k")
        with pytest.raises(errors.CapacityError, match="0 of 1 are ready"):
            made.wait(0.6)
        gateway.reservations["k"] |= {"state": "ready", "ready": 1}
        assert (made.wait(5)).ready == 1
        failure = {"reason": "prepare_failed", "detail": "step 0", "facts": {"exit_code": 2}}
        gateway.reservations["k"] |= {"state": "failed", "failures": [failure]}
        with pytest.raises(errors.PrepareFailedError, match="step 0") as caught:
            made.wait(5)
        assert caught.value.facts == {"exit_code": 2}
        gateway.reservations["k"]["failures"] = []
        with pytest.raises(errors.PrepareFailedError):
            made.wait(5)


def test_what_cannot_be_is_told_before_anything_is_sent(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        with pytest.raises(TypeError, match="counts"):
            client.reserve(counts=1)  # type: ignore[call-arg]
        with pytest.raises(errors.BadRequestError, match="idempotency_key"):
            client.reserve(count=1, idempotency_key="\n")
        assert gateway.requests == []
        gateway.plan("POST /v1/reservations", answer(201, b"{}"))
        with pytest.raises(errors.InternalError):
            client.reserve(count=1)
