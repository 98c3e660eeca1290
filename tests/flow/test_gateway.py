"""Calls through the real gateway to the real daemon."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import httpx
import pytest
import trio

from gateway import tokens
from gateway.model import Broken, Ending, Share
from sandman import names, wire
from tests.flow.conftest import Leader, gateway


async def test_the_whole_walk(bed):
    made = await bed.allocate(image="registry.example/task:1", run="r1", labels={"a": "b"})
    assert (made["tier"], made["state"], made["run"], made["labels"]) == (
        "swap", "ready", "r1", {"a": "b"},
    )  # fmt: skip
    path = f"/v1/sandboxes/{made['id']}"
    acme = bed.as_("acme")
    ran = await bed.client.post(
        f"{path}/exec", json={"shell": "cat; exit 3", "stdin": "in"}, headers=acme
    )
    result = wire.ExecResult.from_json(ran.json())
    assert (result.exit_code, result.stdout, result.boot_id) == (3, b"in", made["boot_id"])
    missing = await bed.client.post(
        f"{path}/exec", json={"argv": ["no-such-program"]}, headers=acme
    )
    assert (missing.status_code, missing.json()["exit_code"]) == (200, 127)

    listed = await bed.client.get("/v1/sandboxes", params={"run": "r1"}, headers=acme)
    assert [one["id"] for one in listed.json()["sandboxes"]] == [made["id"]]
    shown = await bed.client.get(path, headers=acme)
    assert shown.json()["tier"] == "swap"
    assert "token" not in shown.json()

    for _ in range(2):
        assert (await bed.client.delete(path, headers=acme)).status_code == 204
    listed = await bed.client.get("/v1/sandboxes", headers=acme)
    assert listed.json() == {"sandboxes": []}
    after = await bed.client.post(f"{path}/exec", json={"argv": ["true"]}, headers=acme)
    assert (after.status_code, after.json()["reason"]) == (410, "released")
    assert bed.cluster.pods == {}


async def test_files_go_through_byte_for_byte(bed, tmp_path):
    made = await bed.allocate()
    files = f"/v1/sandboxes/{made['id']}/files"
    data = bytes(range(256)) * 4096
    target = tmp_path / "a b\u00e9%41.bin"
    put = await bed.client.put(
        files, params={"path": str(target)}, content=data, headers=bed.as_("acme")
    )
    assert put.json()["size"] == len(data)
    assert target.read_bytes() == data
    part = await bed.client.get(
        files, params={"path": str(target)}, headers={**bed.as_("acme"), "range": "bytes=1-3"}
    )
    assert (part.status_code, part.content) == (206, data[1:4])
    assert part.headers["content-security-policy"] == "sandbox"
    none = await bed.client.get(files, params={"path": "/nope"}, headers=bed.as_("acme"))
    assert (none.status_code, none.json()["reason"]) == (404, "path_not_found")


async def frames_of(answer) -> list[wire.Frame]:
    decoder = wire.FrameDecoder()
    found = [frame async for chunk in answer.aiter_raw() for frame in decoder.feed(chunk)]
    assert decoder.is_clean
    return found


def exec_frames(bed, sandbox: str, **spec):
    return bed.client.stream(
        "POST", f"/v1/sandboxes/{sandbox}/exec", json=spec,
        headers={**bed.as_("acme"), "accept": names.MEDIA_FRAMES},
    )  # fmt: skip


async def test_output_streams_while_the_command_runs(bed):
    made = await bed.allocate()
    async with exec_frames(bed, made["id"], shell="echo one; sleep 0.3; echo two") as answer:
        frames = await frames_of(answer)
    assert [frame.type for frame in frames] == [wire.STARTED, wire.STDOUT, wire.STDOUT, wire.EXIT]
    assert json.loads(frames[-1].payload)["exit_code"] == 0


async def test_a_sandbox_that_dies_ends_a_stream_with_a_typed_error(bed):
    made = await bed.allocate()
    uid = bed.cluster.leased()[0].uid
    died = Ending("died", "its first process ended with exit code 137")
    with trio.fail_after(5):
        async with exec_frames(bed, made["id"], shell="echo one; sleep 60") as answer:
            bed.nursery.start_soon(kill_and_tell, bed, uid, died)
            frames = await frames_of(answer)
    assert frames[-1].type == wire.ERROR
    assert json.loads(frames[-1].payload)["reason"] == "died"


async def kill_and_tell(bed, uid: str, ending: Ending, after: float = 0.3) -> None:
    await trio.sleep(after)
    bed.daemon.kill()
    await trio.sleep(0.3)
    bed.cluster.end(uid, ending)


async def test_a_sandbox_that_dies_ends_a_plain_call_with_a_typed_error(bed):
    made = await bed.allocate()
    uid = bed.cluster.leased()[0].uid
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_and_tell, bed, uid, Ending("oom", "killed for want of memory"))
        answer = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/exec", json={"shell": "sleep 60"}, headers=bed.as_("acme")
        )
    assert (answer.status_code, answer.json()["reason"]) == (410, "oom")
    again = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
    assert again.json()["ended"]["reason"] == "oom"


async def test_a_daemon_that_is_gone_for_no_known_reason_is_outcome_unknown(bed):
    made = await bed.allocate()
    async with trio.open_nursery() as nursery:

        async def kill():
            await trio.sleep(0.3)
            bed.daemon.kill()

        nursery.start_soon(kill)
        answer = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/exec", json={"shell": "sleep 60"}, headers=bed.as_("acme")
        )
    assert (answer.status_code, answer.json()["reason"]) == (502, "outcome_unknown")
    # Nothing is sent now, so the next one is known not to have run.
    later = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec", json={"shell": "true"}, headers=bed.as_("acme")
    )
    assert (later.status_code, later.json()["reason"]) == (503, "unreachable")


async def test_a_deleted_pod_is_found_out_though_the_watch_is_behind(bed):
    made = await bed.allocate()
    del bed.cluster.pods[bed.cluster.leased()[0].uid]
    bed.daemon.kill()
    answer = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec", json={"shell": "true"}, headers=bed.as_("acme")
    )
    assert (answer.status_code, answer.json()["reason"]) == (410, "deleted")


async def test_a_restarted_daemon_is_not_taken_for_the_sandbox(bed):
    made = await bed.allocate()
    bed.daemon.restart()
    answer = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec", json={"shell": "true"}, headers=bed.as_("acme")
    )
    assert (answer.status_code, answer.json()["reason"]) == (410, "died")


async def test_after_its_lease_no_call_reaches_a_sandbox(bed, tmp_path):
    made = await bed.allocate(lease={"max_s": 0.5})
    await trio.sleep(0.6)
    mark = tmp_path / "mark"
    for headers in (bed.as_("acme"), {"authorization": f"Bearer {made['token']}"}):
        answer = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/exec", json={"argv": ["touch", str(mark)]}, headers=headers
        )
        assert (answer.status_code, answer.json()["reason"]) == (410, "expired")
    assert not mark.exists()
    # It is there still, and can be released.
    assert len(bed.cluster.leased()) == 1
    path = f"/v1/sandboxes/{made['id']}"
    assert (await bed.client.delete(path, headers=bed.as_("acme"))).status_code == 204
    assert bed.cluster.leased() == []


async def test_a_caller_that_goes_away_takes_its_command_along(bed, tmp_path):
    made = await bed.allocate()
    mark = tmp_path / "pid"
    with trio.move_on_after(0.7):
        await bed.client.post(
            f"/v1/sandboxes/{made['id']}/exec",
            json={"shell": f"echo $$ > {mark}; sleep 60"},
            headers=bed.as_("acme"),
        )
    pid = int(mark.read_text())
    with trio.fail_after(8):
        while await trio.Path(f"/proc/{pid}").exists():
            await trio.sleep(0.05)


# --- platform ---


async def test_health_readiness_metrics_and_pools(bed):
    await bed.allocate()
    assert (await bed.client.get("/healthz")).text == "ok"
    assert (await bed.client.get("/readyz")).text == "ok"
    text = (await bed.client.get("/metrics")).text
    assert 'sandman_allocation_seconds_count{tier="warm"} 1.0' in text
    assert 'sandman_pods{pool="root",state="leased"} 1.0' in text
    assert 'sandman_allocations_total{outcome="ok",pool="root",tier="warm"} 1.0' in text
    assert "acme" not in text
    pools = (await bed.client.get("/v1/pools", headers=bed.as_("acme"))).json()["pools"]
    assert [(one["name"], one["free"], one["leased"]) for one in pools] == [("root", 0, 1)]


async def test_a_key_gets_its_images_and_no_others_and_sees_its_pools_alone(bed):
    token = tokens.make_api_key("narrow")
    share = Share(images=("registry.example/team/**",))
    entry = tokens.api_key_entry(token, "narrow", share)
    keys, _ = tokens.parse_api_keys({"narrow": entry})
    bed.credentials.api_keys = {**bed.credentials.api_keys, **keys}
    bed.credentials.texts["narrow"] = token
    bed.cluster.pool("theirs", tenants=frozenset({"acme"}))
    bed.cluster.pool("stopped", broken=Broken("they die", 0.0, 4, "t"), stopped=True)
    body = {"image": "registry.example/other/task:1"}
    answer = await bed.client.post("/v1/sandboxes", json=body, headers=bed.as_("narrow"))
    assert answer.status_code == 403
    assert answer.json()["reason"] == "image_denied"
    assert answer.json()["field"] == "image"
    assert len(bed.cluster.leased()) == 0
    shown = {}
    for tenant in ("acme", "narrow"):
        answer = await bed.client.get("/v1/pools", headers=bed.as_(tenant))
        shown[tenant] = {one["name"]: one["broken"] for one in answer.json()["pools"]}
    assert shown["acme"] == {"root": None, "theirs": None, "stopped": "they die"}
    assert shown["narrow"] == {"root": None, "stopped": "they die"}
    text = (await bed.client.get("/metrics")).text
    assert 'sandman_pool_broken{pool="stopped"} 1.0' in text
    assert 'sandman_pool_broken{pool="root"} 0.0' in text


async def test_a_run_is_released_as_a_whole(bed):
    await bed.allocate(run="r1")
    assert (await bed.client.delete("/v1/runs/r2", headers=bed.as_("acme"))).json() == {
        "released": 0
    }
    assert (await bed.client.delete("/v1/runs/r1", headers=bed.as_("acme"))).json() == {
        "released": 1
    }
    assert bed.cluster.pods == {}


# --- many doors, one decider ---


@contextlib.asynccontextmanager
async def replica(bed, leader: Leader, *, synced: bool = True, behind: bool = False):
    """A client at another replica, whose cluster shows it nothing, or what was there at first."""
    cluster = type(bed.cluster)(bed.daemon)
    if behind:
        cluster.placeholder(address="127.0.0.1", key_id="k1")
        cluster.read = bed.cluster.read
    if synced:
        cluster.synced()
    async with (
        gateway(cluster, bed.credentials, bed.settings, leader, bed.ca) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=bed.trust, timeout=20) as client,
    ):
        client.cluster = cluster
        yield client


async def test_a_replica_whose_watch_shows_a_placeholder_still_asks_for_the_sandbox(bed):
    """It was claimed through another replica a moment ago."""
    made = await bed.allocate()
    async with replica(bed, follower(bed), behind=True) as client:
        path, acme = f"/v1/sandboxes/{made['id']}", bed.as_("acme")
        ran = await client.post(f"{path}/exec", json={"argv": ["true"]}, headers=acme)
        assert (ran.status_code, ran.json().get("exit_code")) == (200, 0), ran.text
        assert (await client.get(path, headers=bed.as_("zeta"))).status_code == 404
        assert (await client.delete(path, headers=acme)).status_code == 204


async def test_a_replica_whose_watch_shows_a_pod_without_an_address_asks_for_it(bed):
    """It was made for this caller a moment ago, and started since: its first command need not wait."""
    made = await bed.allocate()
    [pod] = bed.cluster.leased()
    async with replica(bed, follower(bed), behind=True) as client:
        client.cluster._put(dataclasses.replace(pod, address=None))
        await trio.testing.wait_all_tasks_blocked(0.02)
        path, acme = f"/v1/sandboxes/{made['id']}", bed.as_("acme")
        ran = await client.post(f"{path}/exec", json={"argv": ["true"]}, headers=acme)
        assert (ran.status_code, ran.json().get("exit_code")) == (200, 0), ran.text
        bed.cluster.pods.clear()
        shown = await client.get(path, headers=acme)
        assert shown.status_code == 200, "what the watch shows is there until it says otherwise"


def follower(bed) -> Leader:
    return Leader(is_leader=False, address=bed.url.removeprefix("https://"))


async def test_a_replica_that_does_not_decide_hands_the_call_on(bed):
    headers = {**bed.as_("acme"), "idempotency-key": "k"}
    async with replica(bed, follower(bed), behind=True) as client:
        made = await client.post("/v1/sandboxes", json={}, headers=headers)
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"/v1/sandboxes/{made.json()['id']}"
        again = await client.post("/v1/sandboxes", json={}, headers=headers)
        assert again.json()["id"] == made.json()["id"]
        for _ in range(2):
            path = f"{made.headers['location']}/exec"
            ran = await client.post(path, json={"argv": ["true"]}, headers=bed.as_("acme"))
            assert ran.status_code == 200
        # Of a sandbox that was asked for here, though another replica made it.
        text = (await client.get("/metrics")).text
        assert "sandman_allocation_first_command_seconds_count" in text
        counted = [line for line in text.splitlines() if "first_command_seconds_count" in line]
        assert [line.rpartition(" ")[2] for line in counted] == ["1.0"]
        bad = await client.post("/v1/sandboxes", json={"nope": 1}, headers=bed.as_("acme"))
        assert (bad.status_code, bad.json()["field"]) == (400, "nope")


@pytest.mark.parametrize("address", [None, "127.0.0.1:1"])
async def test_without_an_allocator_the_call_is_refused_as_worth_repeating(bed, address):
    async with replica(bed, Leader(is_leader=False, address=address)) as client:
        answer = await client.post("/v1/sandboxes", json={}, headers=bed.as_("acme"))
    assert (answer.status_code, answer.json()["reason"]) == (503, "unreachable")
    assert answer.json()["retryable"] is True
    assert answer.headers["retry-after"] == "1"


async def test_a_call_is_handed_on_once_only(bed):
    async with replica(bed, follower(bed)) as client:
        headers = {**bed.as_("acme"), names.HEADER_HOP: "1"}
        answer = await client.post("/v1/sandboxes", json={}, headers=headers)
    assert answer.status_code == 503


async def test_a_replica_that_is_only_starting_says_so(bed):
    async with replica(bed, Leader(), synced=False) as client:
        answer = await client.post("/v1/sandboxes", json={}, headers=bed.as_("acme"))
        assert (answer.status_code, answer.json()["reason"]) == (503, "unreachable")
        assert (await client.get("/readyz")).status_code == 503
