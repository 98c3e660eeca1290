# Written by scripts/unasync.py from tests/unit/client/twins_async/test_certificates.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Certificates, and the keys that verify them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sandman import certificates, errors
from sandman.sync import Client
from tests.unit.client.fake_gateway import TOKEN, answer, problem

if TYPE_CHECKING:
    from tests.unit.client.fake_gateway import FakeGateway

SEED = b"s" * 32
PUBLIC = certificates.public_key(SEED)
SIGNED = certificates.sign(
    {
        "format": 1,
        "sandbox": "b",
        "issued_at": "2026-11-30T12:00:00.000Z",
        "verdict": "controlled",
        "reasons": [],
        "commands": [{"exec_id": "e1"}],
    },
    SEED,
)
KEYS = "GET /v1/certificate-keys"


def test_a_certificate_is_asked_for_and_verified(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        path = f"POST /v1/sandboxes/{box.id}/certificate"
        gateway.plan(path, answer(200, json.dumps(SIGNED.to_json()).encode()))
        told = box.certificate(["e1", "e2"])
        assert gateway.requests[-1].json() == {"exec_ids": ["e1", "e2"]}
        assert (told.is_controlled, told.commands[0]["exec_id"]) == (True, "e1")
        jwks = json.dumps(certificates.keys_to_json([PUBLIC])).encode()
        gateway.plan(KEYS, answer(200, jwks))
        keys = client.certificate_keys()
        assert certificates.verify(told.to_json(), keys) == told


def test_what_is_no_certificate_is_not_taken_for_one(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        path = f"POST /v1/sandboxes/{box.id}/certificate"
        for nonsense in (b"[]", b"{}"):
            gateway.plan(path, answer(200, nonsense))
            with pytest.raises(errors.InternalError):
                box.certificate()
        gateway.plan(KEYS, answer(200, b"[]"))
        with pytest.raises(errors.InternalError):
            client.certificate_keys()
        gateway.plan(path, problem(errors.OomError("killed for want of memory")))
        with pytest.raises(errors.OomError, match="want of memory"):
            box.certificate()
