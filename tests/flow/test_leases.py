"""Leases over the real server: what callers ask for, renew and are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from gateway import leases
from gateway.ground import RunKey
from gateway.routes import parse
from sandman import names
from tests.fakes.cluster import BASE, TASK

if TYPE_CHECKING:
    import httpx


async def until(condition) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.02)


def left(bed, sandbox: str) -> float:
    one = bed.registry.find(sandbox)
    return bed.roster.ledger.left(one.uid, trio.current_time())


async def post(bed, path: str, body: object = None, tenant: str = "acme") -> httpx.Response:
    return await bed.client.post(path, json=body, headers=bed.as_(tenant))


async def test_a_lease_is_shown_and_calls_and_renewals_keep_it(bed):
    lease = {"ttl_s": 30, "idle_s": 20, "max_s": 600}
    made = await bed.allocate(image=BASE, lease=lease)
    assert made["lease"] == {"ttl_s": 30.0, "idle_s": 20.0, "max_s": 600.0, "run": False}
    path = f"/v1/sandboxes/{made['id']}"
    await trio.sleep(0.3)
    assert left(bed, made["id"]) < 29.8
    # To look at it is no word.
    for look in ("", "/info", "/processes", "/sessions"):
        assert (await bed.client.get(path + look, headers=bed.as_("acme"))).status_code == 200
    quiet = left(bed, made["id"])
    assert quiet < 29.8
    shown = (await bed.client.get(path, headers=bed.as_("acme"))).json()
    assert made["expires_at"] <= shown["expires_at"]
    began = trio.current_time()
    ran = await post(bed, f"{path}/exec", {"argv": ["true"]})
    assert ran.status_code == 200
    assert left(bed, made["id"]) > quiet
    await trio.sleep(0.3)
    quiet = left(bed, made["id"])
    renewed = await bed.client.post(
        f"{path}/renew", headers={"authorization": f"Bearer {made['token']}"}
    )
    assert (renewed.status_code, renewed.json()["id"]) == (200, made["id"])
    assert renewed.json()["expires_at"] > made["expires_at"]
    assert left(bed, made["id"]) > quiet
    # The daemon knows both, for whichever replica asks it.
    info = (await bed.client.get(f"{path}/info", headers=bed.as_("acme"))).json()
    assert 0.0 <= info["renewed_s"] < info["used_s"] < trio.current_time() - began
    assert [write for write in bed.cluster.writes if write[0] == "renew"] == []


async def test_renewals_by_others_or_after_the_end_are_refused(bed):
    made = await bed.allocate(image=BASE, lease={"ttl_s": 30, "max_s": 4})
    path = f"/v1/sandboxes/{made['id']}/renew"
    assert (await post(bed, path, tenant="zeta")).status_code == 404
    assert (await post(bed, path)).status_code == 200
    while (late := await post(bed, path)).status_code == 200:
        await trio.sleep(0.1)
    assert (late.status_code, late.json()["reason"]) == (410, "expired")
    assert (await post(bed, "/v1/sandboxes/no-such-00000000/renew")).status_code == 404


async def test_a_heartbeat_is_for_the_runs_of_its_tenant_that_have_sandboxes(bed):
    lease = {"run": True}
    made = await bed.allocate(image=BASE, run="r1", lease=lease)
    assert made["lease"]["ttl_s"] == parse.RUN_TTL_S
    await trio.sleep(0.3)
    before = left(bed, made["id"])
    assert before < parse.RUN_TTL_S - 0.2
    for tenant, run, count in (("acme", "r1", 1), ("zeta", "r1", 0), ("acme", "r2", 0)):
        answer = await post(bed, f"/v1/runs/{run}/heartbeat", tenant=tenant)
        assert (answer.status_code, answer.json()) == (200, {"run": run, "sandboxes": count})
    assert bed.beats == [(RunKey("acme", "r1"), parse.RUN_TTL_S)]
    assert left(bed, made["id"]) > before
    assert (await post(bed, "/v1/runs/r1/heartbeat", {"ttl_s": 60})).status_code == 200
    assert bed.beats[-1] == (RunKey("acme", "r1"), 60.0)
    token = {"authorization": f"Bearer {made['token']}"}
    refused = await bed.client.post("/v1/runs/r1/heartbeat", headers=token)
    assert refused.status_code == 403


async def test_heartbeats_are_ended_by_their_tenant_once_the_run_has_no_sandbox(bed):
    made = await bed.allocate(image=BASE, run="r1", lease={"run": True})
    path, held = "/v1/runs/r1/heartbeat", {"run": "r1", "sandboxes": 1}
    kept = await bed.client.delete(path, headers=bed.as_("acme"))
    assert (kept.status_code, kept.json(), bed.ended) == (200, held, [])
    token = {"authorization": f"Bearer {made['token']}"}
    assert (await bed.client.delete(path, headers=token)).status_code == 403
    await bed.client.delete(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
    for tenant in ("zeta", "acme"):
        ended = await bed.client.delete(path, headers=bed.as_(tenant))
        assert (ended.status_code, ended.json()["sandboxes"]) == (200, 0)
    assert bed.ended == [RunKey("zeta", "r1"), RunKey("acme", "r1")]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"lease": {"ttl_s": 1}}, "lease.ttl_s"),
        ({"lease": {"ttl_s": 1e8}}, "lease.ttl_s"),
        ({"lease": {"idle_s": 1}}, "lease.idle_s"),
        ({"lease": {"max_s": 1e8}}, "lease.max_s"),
        ({"lease": {"run": True}}, "lease.run"),
        ({"lease": {"run": 1}, "run": "r"}, "lease.run"),
        ({"lease": {"ttl": 9}}, "lease.ttl"),
        ({"lease": 5}, "lease"),
        ({"owner": {"name": "No Job"}}, "owner.name"),
        ({"owner": {}}, "owner.name"),
        ({"owner": {"kind": "Deployment", "name": "x"}}, "owner.kind"),
        ({"owner": {"name": "missing"}}, "owner.name"),
        ({"owner": {"name": "job", "namespace": "elsewhere"}}, "owner.namespace"),
        ({"owner": {"name": "job", "uid": "other"}}, "owner.uid"),
    ],
)
async def test_terms_that_cannot_be_are_refused_by_name(bed, body, field):
    bed.cluster.jobs["ns", "job"] = "j1"
    answer = await post(bed, "/v1/sandboxes", {"image": BASE, **body})
    assert (answer.status_code, answer.json()["field"]) == (400, field)


@pytest.mark.parametrize("body", [{"ttl_s": 1e8}, {"ttl_s": 0}, {"nope": 1}])
async def test_heartbeats_that_cannot_be_are_refused(bed, body):
    assert (await post(bed, "/v1/runs/r1/heartbeat", body)).status_code == 400


async def test_an_owner_goes_with_the_claim(bed):
    bed.cluster.jobs["ns", "job"] = "j1"
    seen = []
    claim = bed.cluster.claim

    async def noting(instance, assignment):
        seen.append(assignment.owner)
        return await claim(instance, assignment)

    bed.cluster.claim = noting
    await bed.allocate(image=BASE, owner={"kind": "Job", "name": "job", "uid": "j1"})
    assert [(one.namespace, one.name, one.uid) for one in seen] == [("ns", "job", "j1")]


async def test_what_has_ended_is_listed_for_its_tenant(bed):
    made = await bed.allocate(image=BASE, run="r1")
    path = f"/v1/sandboxes/{made['id']}"
    assert (await bed.client.delete(path, headers=bed.as_("acme"))).status_code == 204
    for tenant, query, count in (
        ("acme", "", 1), ("acme", "&run=r1", 1), ("acme", "&run=r2", 0), ("zeta", "", 0),
    ):  # fmt: skip
        url = f"/v1/sandboxes?state=ended{query}"
        found = (await bed.client.get(url, headers=bed.as_(tenant))).json()["sandboxes"]
        assert len(found) == count
        for one in found:
            assert (one["id"], one["state"], one["run"]) == (made["id"], "ended", "r1")
            assert one["ended"]["reason"] == "released"
    living = await bed.client.get("/v1/sandboxes?state=living", headers=bed.as_("acme"))
    assert living.json() == {"sandboxes": []}


async def test_a_busy_lease_is_written_before_half_of_it_is_left(bed):
    made = await bed.allocate(image=BASE, lease={"ttl_s": 5})
    path = f"/v1/sandboxes/{made['id']}"
    await trio.sleep(2.6)
    assert (await post(bed, f"{path}/exec", {"argv": ["true"]})).status_code == 200
    await until(lambda: bed.registry.find(made["id"]).renewed)
    assert leases.age_of(bed.registry.find(made["id"]).renewed) < 3.0


async def test_the_same_key_with_another_lease_is_a_conflict(bed):
    head = {**bed.as_("acme"), names.HEADER_IDEMPOTENCY_KEY: "k"}
    body = {"image": TASK, "lease": {"ttl_s": 60}}
    assert (await bed.client.post("/v1/sandboxes", json=body, headers=head)).status_code == 201
    body["lease"]["ttl_s"] = 61
    other = await bed.client.post("/v1/sandboxes", json=body, headers=head)
    assert (other.status_code, other.json()["reason"]) == (409, "conflict")
