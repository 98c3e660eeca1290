"""Reservations in Leases: by the real client, on an API server that keeps state."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gateway import steps
from gateway.provider.reservations import LeaseReservations
from gateway.reserving import Reservation
from sandman import names
from sandman.errors import InternalError, SandmanError, UnreachableError
from tests.fakes.api_server import ApiServer
from tests.unit.service.fake_api import Answer, status

ONE = Reservation(
    id="0123456789abcdef", tenant="acme", key_id="ci", image="i:1", pool="root", count=20,
    until=2000.0, created_at=1000.0, run="r1",
    steps=steps.parse([{"file": {"path": "/a", "content": "é"}}, {"exec": {"shell": "make"}}]),
)  # fmt: skip


async def test_what_is_kept_is_read_again_whole():
    server = ApiServer()
    async with server.client() as api:
        store = LeaseReservations(api, "sandman-system")
        assert await store.create(ONE) == ONE
        bare = dataclasses.replace(ONE, id="b", run=None, steps=steps.NO_STEPS)
        await store.create(bare)
        await store.set_used(dataclasses.replace(ONE, used=7))
        assert await store.list() == [dataclasses.replace(ONE, used=7), bare]
        lease = server.named("leases", f"sandman-reservation-{ONE.id}")
        assert lease["metadata"]["labels"][names.LABEL_TENANT] == "acme"
        assert lease["spec"]["leaseDurationSeconds"] == 1000
        await store.delete(ONE)
        await store.delete(ONE)
        await store.set_used(ONE)
        assert await store.list() == [bare]


async def test_the_same_id_again_is_the_one_that_is_there():
    server = ApiServer()
    async with server.client() as api:
        store = LeaseReservations(api, "sandman-system")
        await store.create(ONE)
        assert await store.create(dataclasses.replace(ONE, count=3)) == ONE
        # Gone in the meantime: the caller's next call tells.
        await store.delete(ONE)
        server.faults = [
            lambda seen: status(409, "AlreadyExists") if seen.method == "POST" else None
        ]
        assert await store.create(ONE) == ONE


@pytest.mark.parametrize(
    "change",
    [
        {"count": "x"},
        {"until": None},
        {"image": ...},
        {"prepare": [{"run": {}}]},
        None,
        {"count": float("inf")},
        {"until": float("nan")},
        {"until": float("inf")},
        {"until": 1e300},
    ],
)
async def test_one_that_somebody_broke_is_passed_over(change):
    server = ApiServer()
    async with server.client() as api:
        store = LeaseReservations(api, "sandman-system")
        await store.create(ONE)

        def spoil(lease) -> None:
            notes = lease["metadata"]["annotations"]
            kept = json.loads(notes[names.ANNOTATION_REQUEST]) | (change or {})
            kept = {key: value for key, value in kept.items() if value is not ...}
            notes[names.ANNOTATION_REQUEST] = json.dumps(kept) if change else "["

        server.change("leases", f"sandman-reservation-{ONE.id}", spoil)
        assert await store.list() == []


async def test_an_api_server_that_refuses_or_is_away_is_a_typed_error():
    server = ApiServer()
    async with server.client() as api:
        store = LeaseReservations(api, "sandman-system")
        for call in (store.create(ONE), store.set_used(ONE), store.delete(ONE), store.list()):
            server.faults = [lambda _seen: status(403, "Forbidden", "no right")]
            with pytest.raises(InternalError):
                await call
        server.faults = [lambda _seen: Answer(cut=True)]
        with pytest.raises(SandmanError) as caught:
            await store.create(ONE)
        assert isinstance(caught.value, UnreachableError)
