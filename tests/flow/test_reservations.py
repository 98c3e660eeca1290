"""Reservations through the real gateway, prepared by the real daemon."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
import trio

from tests.flow.conftest import Leader
from tests.flow.test_gateway import replica

STEPS = [{"exec": {"shell": "echo prepared"}}]
TASK = "registry.example/task:1"


async def reserve(bed, tenant: str = "acme", status: int = 201, key: str | None = None, **body):
    headers = bed.as_(tenant) | ({} if key is None else {"idempotency-key": key})
    answer = await bed.client.post("/v1/reservations", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def shown(bed, name: str, tenant: str = "acme"):
    answer = await bed.client.get(f"/v1/reservations/{name}", headers=bed.as_(tenant))
    return answer.json()


async def until_state(bed, name: str, state: str) -> dict:
    with trio.fail_after(10):
        while (one := await shown(bed, name))["state"] != state:
            await trio.sleep(0.05)
    return one


async def test_the_whole_walk(bed, tmp_path):
    mark = tmp_path / "marks"
    steps = [{"exec": {"shell": f"echo prepared >>{mark}"}}]
    made = await reserve(bed, image=TASK, count=1, for_s=60, prepare=steps, run="r1", key="k")
    assert (made["state"], made["count"], made["used"], made["pool"]) == ("preparing", 1, 0, "root")
    one = await until_state(bed, made["id"], "ready")
    assert (one["ready"], one["preparing"], one["failures"]) == (1, 0, [])
    assert mark.read_text() == "prepared\n"

    # It is nobody's sandbox yet.
    [pod] = bed.cluster.pods.values()
    listed = await bed.client.get("/v1/sandboxes", headers=bed.as_("acme"))
    assert listed.json() == {"sandboxes": []}
    early = await bed.client.get(f"/v1/sandboxes/{pod.id}", headers=bed.as_("acme"))
    assert early.status_code == 404
    early = await bed.client.post(
        f"/v1/sandboxes/{pod.id}/exec", json={"argv": ["true"]}, headers=bed.as_("acme")
    )
    assert early.status_code == 404
    released = await bed.client.delete("/v1/runs/r1", headers=bed.as_("acme"))
    assert released.json() == {"released": 0}
    [pool] = (await bed.client.get("/v1/pools", headers=bed.as_("acme"))).json()["pools"]
    assert (pool["free"], pool["reserved"], pool["leased"]) == (0, 1, 0)

    box = await bed.allocate(image=TASK, prepare=steps, env={"A": "1"}, run="r2")
    assert (box["tier"], box["run"]) == ("warm", "r2")
    ran = await bed.client.post(
        f"/v1/sandboxes/{box['id']}/exec", json={"shell": "echo $A"}, headers=bed.as_("acme")
    )
    assert ran.json()["stdout"] == "1\n"
    assert mark.read_text() == "prepared\n"
    again = await reserve(bed, image=TASK, count=1, for_s=60, prepare=steps, run="r1", key="k")
    assert (again["id"], again["state"], again["used"]) == (made["id"], "ready", 1)


async def test_it_is_listed_and_ended(bed):
    made = await reserve(bed, count=1, until=(datetime.now(UTC) + timedelta(minutes=1)).isoformat())
    assert made["image"] == "registry.example/base:1"
    await until_state(bed, made["id"], "ready")
    listed = await bed.client.get("/v1/reservations", headers=bed.as_("acme"))
    assert [one["id"] for one in listed.json()["reservations"]] == [made["id"]]
    others = await bed.client.get("/v1/reservations", headers=bed.as_("zeta"))
    assert others.json() == {"reservations": []}
    assert (await shown(bed, made["id"], "zeta"))["status"] == 404
    for tenant in ("zeta", "acme", "acme"):
        path = f"/v1/reservations/{made['id']}"
        answer = await bed.client.delete(path, headers=bed.as_(tenant))
        assert answer.status_code == 204
    assert bed.cluster.pods == {}
    assert (await shown(bed, made["id"]))["reason"] == "not_found"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"for_s": 5}, "count"),
        ({"count": 0, "for_s": 5}, "count"),
        ({"count": 1001, "for_s": 5}, "count"),
        ({"count": 1}, "until"),
        ({"count": 1, "for_s": 5, "until": "2026-11-30T00:00:00Z"}, "until"),
        ({"count": 1, "for_s": 24 * 3600 + 1}, "for_s"),
        ({"count": 1, "until": "2001-11-30T00:00:00Z"}, "until"),
        ({"count": 1, "until": "2126-11-30T00:00:00"}, "until"),
        ({"count": 1, "until": "soon"}, "until"),
        ({"count": 1, "for_s": 5, "pool": "none"}, "pool"),
        ({"count": 1, "for_s": 5, "image": "a b"}, "image"),
        ({"count": 1, "for_s": 5, "run": "a b"}, "run"),
        ({"count": 1, "for_s": 5, "prepare": [{}]}, "prepare[0]"),
        ({"count": 1, "for_s": 5, "wait_s": 5}, "wait_s"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_with_its_field(bed, body, field):
    problem = await reserve(bed, status=400, **body)
    assert problem["field"] == field


async def test_a_sandboxs_own_token_reserves_nothing(bed):
    box = await bed.allocate()
    for method in ("GET", "POST"):
        answer = await bed.client.request(
            method, "/v1/reservations", headers={"authorization": f"Bearer {box['token']}"}
        )
        assert answer.status_code == 403


async def test_a_replica_that_is_not_the_allocator_hands_it_on(bed):
    address = bed.url.removeprefix("https://")
    door = Leader(is_leader=False, address=address)
    async with replica(bed, door) as client:
        made = await client.post(
            "/v1/reservations", json={"count": 1, "for_s": 60}, headers=bed.as_("acme")
        )
        path = f"/v1/reservations/{made.json()['id']}"
        answer = await client.get(path, headers=bed.as_("acme"))
        assert (answer.status_code, answer.json()["id"]) == (200, made.json()["id"])
        answer = await client.delete(path, headers=bed.as_("acme"))
        assert answer.status_code == 204


async def test_what_a_tenant_may_not_have_it_cannot_reserve(bed):
    key = bed.credentials.api_keys["acme"]
    bed.credentials.api_keys["acme"] = key._replace(
        share=dataclasses.replace(key.share, images=("registry.example/mine",))
    )
    denied = await reserve(bed, status=403, image=TASK, count=1, for_s=60)
    assert denied["reason"] == "image_denied"
    made = await reserve(bed, count=1, for_s=60)
    assert made["image"] == "registry.example/base:1"
    bed.cluster.pool("secret", tenants=frozenset({"zeta"}))
    await trio.sleep(0.1)
    hidden = await reserve(bed, status=400, pool="secret", count=1, for_s=60)
    assert hidden["field"] == "pool"
