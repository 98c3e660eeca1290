"""Who may call, through the real HTTPS application and a real daemon: narrow tokens, revocation under way, floods."""

from __future__ import annotations

import contextlib
import json
import time

import httpx
import pytest
import trio

from gateway import calls, tokens
from gateway.failures import BURST, EVERY_S
from gateway.routes.forward import FORWARDED
from sandman import names, wire
from tests.fakes.sockets import connected, echo
from tests.flow.conftest import RealDaemonCluster, made_bed
from tests.flow.test_gateway import exec_frames, follower, frames_of, replica
from tests.flow.test_hostile import counted
from tests.flow.test_sockets import accepts

NOWHERE = "pod-7-abcdef01"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def narrow(bed, sandbox: str, tenant: str = "acme", **body):
    return await bed.client.post(
        f"/v1/sandboxes/{sandbox}/tokens", json=body, headers=bed.as_(tenant)
    )


# --- narrow tokens ---


async def test_a_narrow_token_does_what_it_says_on_its_sandbox_and_nothing_else(bed):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"
    got = await narrow(bed, made["id"], may=["files:read", "ports:8080"], ttl_s=60)
    assert got.status_code == 201, got.text
    said = got.json()
    assert (said["sandbox"], said["may"]) == (made["id"], ["files:read", "ports:8080"])
    own = bearer(said["token"])
    client = bed.client
    assert (await client.get(f"{path}/files?path=/etc/hostname", headers=own)).status_code == 200
    # Nobody listens there, which it may hear.
    port = await client.get(f"{path}/ports/8080/", headers=own)
    assert port.json()["reason"] == "port_closed"
    refused = [
        await client.put(f"{path}/files?path=/tmp/x", content=b"x", headers=own),
        await client.post(f"{path}/exec", json={"argv": ["true"]}, headers=own),
        await client.get(f"{path}/processes", headers=own),
        await client.get(f"{path}/ports/8081/", headers=own),
        await client.get(f"{path}/info", headers=own),
        await client.get(path, headers=own),
        await client.post(f"{path}/renew", headers=own),
        await client.delete(path, headers=own),
        await client.post(f"{path}/tokens", json={}, headers=own),
        await client.get("/v1/sandboxes", headers=own),
        await client.get("/v1/pools", headers=own),
        await client.post("/v1/sandboxes", json={}, headers=own),
        await client.delete("/v1/runs/r", headers=own),
        await client.post("/v1/runs/r/heartbeat", headers=own),
        await client.get("/v1/reservations", headers=own),
    ]
    assert [one.status_code for one in refused] == [403] * len(refused)
    elsewhere = await client.get(f"/v1/sandboxes/{NOWHERE}/files?path=/x", headers=own)
    assert elsewhere.status_code == 404


async def test_every_forwarded_call_is_refused_to_a_token_for_something_else(bed):
    made = await bed.allocate()
    renew = bearer((await narrow(bed, made["id"], may=["renew"])).json()["token"])
    for tail, methods in FORWARDED.items():
        path = tail.replace("{exec_id}", "x").replace("{name}", "x")
        for method in methods:
            url = f"/v1/sandboxes/{made['id']}/{path}"
            got = await bed.client.request(method, url, headers=renew)
            assert got.status_code == 403, (method, path)
    renewed = await bed.client.post(f"/v1/sandboxes/{made['id']}/renew", headers=renew)
    assert renewed.status_code == 200


async def test_a_token_for_all_is_the_same_as_the_answers_own(bed):
    made = await bed.allocate()
    whole = (await narrow(bed, made["id"])).json()
    assert whole["may"] is None
    for token in (whole["token"], made["token"]):
        got = await bed.client.get(f"/v1/sandboxes/{made['id']}/info", headers=bearer(token))
        assert got.status_code == 200


async def test_a_token_is_over_when_it_says_and_at_the_latest_with_its_sandbox(bed):
    made = await bed.allocate(lease={"max_s": 600})
    long = (await narrow(bed, made["id"], ttl_s=1e6)).json()
    short = (await narrow(bed, made["id"], ttl_s=0.2)).json()
    await trio.sleep(0.3)
    path = f"/v1/sandboxes/{made['id']}/info"
    over = await bed.client.get(path, headers=bearer(short["token"]))
    assert (over.status_code, over.json()["reason"]) == (401, "unauthenticated")
    claims_of = tokens.check_sandbox_token(long["token"], bed.credentials.sandbox_keys, 0.0)
    # Its longest life, and a minute in which its end is told.
    assert claims_of.expires_at - time.time() == pytest.approx(660, abs=20)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"may": ["manage"]}, "may"),
        ({"may": []}, "may"),
        ({"may": "exec"}, "may"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"ttl_s": "1h"}, "ttl_s"),
        ({"scope": ["exec"]}, "scope"),
    ],
)
async def test_a_token_for_what_is_not_is_refused(bed, body, field):
    made = await bed.allocate()
    got = await narrow(bed, made["id"], **body)
    assert (got.status_code, got.json()["field"]) == (400, field)


async def test_nobody_makes_a_token_of_anothers_sandbox(bed):
    made = await bed.allocate()
    theirs, nobodys = [await narrow(bed, one, "zeta") for one in (made["id"], NOWHERE)]
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(made["id"], NOWHERE) == nobodys.text


async def test_a_narrow_token_opens_no_terminal_and_its_own_port_alone(odd_bed):
    odd_bed.daemon.script = accepts(echo)
    made = await odd_bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"
    token = (await narrow(odd_bed, made["id"], may=["ports:8000"])).json()["token"]
    async with (
        odd_bed.raw() as stream,
        connected(stream, f"{path}/ports/8000/", bearer(token)) as one,
    ):
        await one.send("x")
        assert await one.receive() == "x"
        await one.close(1000, "")
    for tail in ("ports/8001/", "processes/x/terminal"):
        with pytest.raises(Exception, match="403"):
            async with (
                odd_bed.raw() as stream,
                connected(stream, f"{path}/{tail}", bearer(token)),
            ):
                pass


# --- what is revoked under way ---


def revoke(bed, tenant: str = "acme") -> None:
    """As the watch does when the entry goes."""
    bed.credentials.api_keys = {
        key: one for key, one in bed.credentials.api_keys.items() if one.tenant != tenant
    }
    bed.calls.review()


async def later(bed) -> None:
    """Revoke the key in a moment."""
    await trio.sleep(0.3)
    revoke(bed)


async def ended(bed) -> None:
    """No call is under way any more."""
    with trio.fail_after(5):
        while len(bed.calls):
            await trio.sleep(0.01)


@pytest.mark.parametrize("own_token", [False, True])
async def test_a_commands_stream_ends_with_its_key_and_says_why(bed, own_token):
    made = await bed.allocate()
    headers = bearer(made["token"]) if own_token else bed.as_("acme")
    answer = bed.client.stream(
        "POST", f"/v1/sandboxes/{made['id']}/exec", json={"shell": "echo begun; sleep 60"},
        headers={**headers, "accept": names.MEDIA_FRAMES},
    )  # fmt: skip
    async with answer as begun, trio.open_nursery() as nursery:
        nursery.start_soon(later, bed)
        with trio.fail_after(10):
            frames = await frames_of(begun)
    assert [frame for frame in frames if frame[0] == wire.EXIT] == []
    assert frames[-1][0] == wire.ERROR
    assert json.loads(frames[-1][1])["reason"] == "unauthenticated"
    again = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=headers)
    assert again.status_code == 401


async def test_anothers_stream_goes_on(bed):
    made = await bed.allocate()
    async with exec_frames(bed, made["id"], shell="echo begun; sleep 0.5; echo done") as answer_:
        revoke(bed, "zeta")
        frames = await frames_of(answer_)
    assert frames[-1][0] == wire.EXIT
    await ended(bed)


async def test_a_call_that_has_not_been_answered_hears_401(bed):
    made = await bed.allocate()
    async with trio.open_nursery() as nursery:
        got = []

        async def ask() -> None:
            path = f"/v1/sandboxes/{made['id']}/exec"
            body = {"argv": ["sleep", "60"]}
            got.append(await bed.client.post(path, json=body, headers=bed.as_("acme")))

        nursery.start_soon(ask)
        await trio.sleep(0.3)
        revoke(bed)
    assert (got[0].status_code, got[0].json()["reason"]) == (401, "unauthenticated")


async def test_who_waits_for_a_sandbox_waits_no_longer(daemon):
    async with made_bed(RealDaemonCluster(daemon), daemon, cold_max=0) as bed:
        await bed.allocate()
        got = []

        async def ask(count: int | None) -> None:
            body = {"wait_s": 60} | ({"count": count} if count else {})
            with contextlib.suppress(httpx.RemoteProtocolError):
                one = await bed.client.post("/v1/sandboxes", json=body, headers=bed.as_("acme"))
                got.append(one.status_code)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, None)
                nursery.start_soon(ask, 3)
                await trio.sleep(0.3)
                revoke(bed)
        # The stream of several had begun: it is cut.
        assert got == [401]
        await ended(bed)


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_a_file_is_cut_and_never_taken_for_whole(bed, tmp_path):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(300_000_000)
    got = bed.client.stream("GET", f"{path}/files?path={big}", headers=bed.as_("acme"))
    taken = 0
    with contextlib.suppress(httpx.RemoteProtocolError):
        async with got as answer:
            assert answer.status_code == 200
            async for chunk in answer.aiter_raw():
                taken += len(chunk)
                revoke(bed)
    assert taken < 300_000_000
    await ended(bed)


async def test_a_websocket_is_told_why(odd_bed):
    odd_bed.daemon.script = accepts(echo)
    made = await odd_bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/ports/8000/"
    async with odd_bed.raw() as stream, connected(stream, path, odd_bed.as_("acme")) as peer:
        await peer.send("x")
        assert await peer.receive() == "x"
        revoke(odd_bed)
        with trio.fail_after(5):
            code, why = await peer.receive()
    assert code == 1008
    assert "unauthenticated" in why


async def test_what_has_an_end_is_looked_at_now_and_then(bed, monkeypatch):
    monkeypatch.setattr(calls, "EVERY_S", 0.05)
    bed.nursery.start_soon(bed.calls.run)
    made = await bed.allocate()
    short = (await narrow(bed, made["id"], may=["exec"], ttl_s=0.5)).json()["token"]
    path = f"/v1/sandboxes/{made['id']}/exec"
    with trio.fail_after(10):
        got = await bed.client.post(path, json={"argv": ["sleep", "60"]}, headers=bearer(short))
    assert got.status_code == 401


# --- floods ---


async def test_a_flood_of_wrong_tokens_hears_429_and_an_honest_client_nothing_of_it(bed):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"
    flood, begun = [], trio.current_time()
    # One may pass each two seconds: on a slow machine a few do.
    while not flood or flood[-1].status_code == 401 or len(flood) < BURST + 10:
        token = f"smk_acme_wrong{len(flood)}"
        flood.append(await bed.client.get(path, headers=bearer(token)))
    codes = [one.status_code for one in flood]
    assert codes[:BURST] == [401] * BURST
    assert set(codes) == {401, 429}
    assert codes.count(401) <= BURST + (trio.current_time() - begun) / EVERY_S + 1
    last = flood[-1]
    assert (last.json()["reason"], last.json()["retryable"]) == ("throttled", True)
    assert int(last.headers["retry-after"]) == last.json()["retry_after"] >= 1
    for headers in (bed.as_("acme"), bearer(made["token"])):
        assert (await bed.client.get(path, headers=headers)).status_code == 200
    await trio.sleep(int(last.headers["retry-after"]))
    assert (await bed.client.get(path, headers=bearer("smk_acme_x"))).status_code == 401


# --- another tenant's is not there ---


async def test_anothers_sandbox_takes_the_way_of_one_that_never_was(bed):
    made = await bed.allocate()
    asked = counted(bed.cluster)
    answers = {}
    for sandbox in (made["id"], NOWHERE):
        asked.clear()
        path = f"/v1/sandboxes/{sandbox}"
        got = []
        for _ in range(3):
            for method, tail in (
                ("GET", ""), ("GET", "/info"), ("POST", "/exec"), ("POST", "/renew"),
                ("DELETE", ""), ("POST", "/tokens"), ("GET", "/ports/80/"),
            ):  # fmt: skip
                one = await bed.client.request(method, path + tail, headers=bed.as_("zeta"))
                told = sorted(name for name in one.headers if name != "date")
                got.append((one.status_code, one.text.replace(sandbox, "ID"), told))
        answers[sandbox] = (got, len(asked))
    theirs, nobodys = answers.values()
    assert theirs == nobodys
    assert theirs[1] == 1  # the API server is asked once in a while, for either
    assert {status for status, *_ in theirs[0]} == {404, 204}


async def test_anothers_sandbox_that_has_ended_is_one_that_never_was(bed):
    made = await bed.allocate()
    gone = await bed.client.delete(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
    assert gone.status_code == 204
    with trio.fail_after(5):
        while True:
            own = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
            if own.status_code == 410:
                break
            await trio.sleep(0.05)
    asked = counted(bed.cluster)
    theirs = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_("zeta"))
    assert theirs.status_code == 404
    assert len(asked) == 1


async def test_a_replica_that_is_behind_hides_anothers_sandbox_as_well(bed):
    made = await bed.allocate()
    async with replica(bed, follower(bed), behind=True) as client:
        for tenant, status in (("zeta", 404), ("acme", 200), ("zeta", 404)):
            got = await client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_(tenant))
            assert got.status_code == status
