"""What a hostile caller, sandbox or neighbour sends through the real gateway."""

from __future__ import annotations

import json

import pytest
import trio

from gateway.model import Ending
from sandman import names, wire
from sandman.errors import UnreachableError
from tests.fakes.daemons import BOOT_HEADER, answer, claims, says
from tests.flow.test_bodies import read_until
from tests.flow.test_gateway import frames_of

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
FRAMES = b"Content-Type: " + names.MEDIA_FRAMES.encode()
STDOUT = wire.encode_frame(wire.STDOUT, b"out")


# --- callers ---


@pytest.mark.parametrize(
    "path",
    ["files/../claim", "files/%2e%2e/claim", "files%2f..%2fclaim", "claim", "files/", "files//",
     "exec/../../../v1/claim", "\\claim", "files;/claim", "processes/..", "processes/../exec",
     "processes/../output", "processes/%2e%2e/output", "processes/a%2foutput", "processes/a/outpu%74",
     "processes/a/claim", "processes/a/output/x", "processes/a b/output", "processes/a%20b/output",
     "processes//output", "processes/", "processes/a/", "processes/.../output",
     "processes/" + "a" * 65, "processes/%C3%A9/output", "process%65s", "processes/a/..", "processes/a%00"],
)  # fmt: skip
async def test_no_path_leads_past_the_list_of_what_may_be_reached(odd_bed, path):
    made = await odd_bed.allocate()
    calls = len(odd_bed.daemon.calls)
    async with odd_bed.raw() as stream:
        await stream.send_all(odd_bed.head("GET", f"/v1/sandboxes/{made['id']}/{path}"))
        said = await read_until(stream, b"\r\n\r\n")
    assert said.split()[1] in {b"400", b"404", b"307"}
    assert len(odd_bed.daemon.calls) == calls


@pytest.mark.parametrize("host", [b"[", b"x/v1/claim?", b"a b", b"\xc3\xa9", b"x:99999", b""])
async def test_an_odd_host_header_changes_nothing(odd_bed, host):
    made = await odd_bed.allocate()
    for path, status in ((f"/v1/sandboxes/{made['id']}/info", b"200"), ("/v1/nope", b"404")):
        async with odd_bed.raw() as stream:
            head = odd_bed.head("GET", path).replace(b"Host: x", b"Host: " + host)
            await stream.send_all(head)
            said = await read_until(stream, b"\r\n\r\n")
        assert said.split()[1] in {status, b"400"}
        assert b"500" not in said
    assert odd_bed.daemon.calls[-1].line.split()[1] == b"/v1/info"


@pytest.mark.parametrize(
    "sandbox",
    ["..-00000000", ".-00000000", "é-00000000", "%F0%9F%98%80-00000000", "a%20b-00000000", "x",
     "-00000000", "A-00000000", "p-0000000g", "p" * 300 + "-00000000", "p%00-00000000",
     "%2e%2e%2fnodes-00000000", "p-00000000?x"],
)  # fmt: skip
async def test_an_id_that_cannot_be_is_unknown_and_nobody_is_asked(odd_bed, sandbox):
    asked, read = [], odd_bed.cluster.read

    async def counting(namespace, name):
        asked.append(name)
        return await read(namespace, name)

    odd_bed.cluster.read = counting
    got = await odd_bed.client.get(f"/v1/sandboxes/{sandbox}", headers=odd_bed.as_("acme"))
    assert got.status_code == 404
    assert asked in ([], ["p"])
    gone = await odd_bed.client.delete(f"/v1/sandboxes/{sandbox}", headers=odd_bed.as_("acme"))
    assert gone.status_code in {204, 404}


async def test_a_sandbox_that_this_replica_has_not_heard_of_yet_is_looked_up(odd_bed):
    made = await odd_bed.allocate()
    pod = odd_bed.cluster.leased()[0]
    del odd_bed.cluster.pods[pod.uid]
    odd_bed.cluster.remove = None
    registry = odd_bed.registry
    registry._unindex(pod.uid)
    odd_bed.cluster.pods[pod.uid] = pod
    got = await odd_bed.client.get(f"/v1/sandboxes/{made['id']}", headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["id"]) == (200, made["id"])
    theirs = await odd_bed.client.get(f"/v1/sandboxes/{made['id']}", headers=odd_bed.as_("zeta"))
    assert theirs.status_code == 404


async def test_headers_of_any_bytes_go_through_and_others_stay_out(odd_bed):
    made = await odd_bed.allocate()
    async with odd_bed.raw() as stream:
        lines = (b"Content-Type: te\xe9xt", b"Cookie: a=b", b"X-Forwarded-For: 1.2.3.4",
                 BOOT_HEADER + b": forged", b"Connection: keep-alive, x-secret", b"X-Secret: 1",
                 b"Content-Length: 2")  # fmt: skip
        path = f'/v1/sandboxes/{made["id"]}/files?path=/a%00"<>'
        await stream.send_all(odd_bed.head("PUT", path, *lines) + b"hi")
        assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 200")
    seen = odd_bed.daemon.calls[-1]
    assert seen.headers[b"content-type"] == b"te\xe9xt"
    assert seen.headers[BOOT_HEADER] == b"b1"
    assert set(seen.headers) == {
        b"host", b"content-type", b"content-length", BOOT_HEADER, b"authorization",
    }  # fmt: skip
    assert seen.line.split()[1] == b'/v1/files?path=/a%00"<>'


async def test_texts_with_half_a_character_are_kept_and_told_again(odd_bed):
    body = b'{"labels": {"a": "\\ud83d", "\\udc00": "\\u0000"}, "run": "r"}'
    made = await odd_bed.client.post("/v1/sandboxes", content=body, headers=odd_bed.as_("acme"))
    assert made.status_code == 201, made.text
    shown = await odd_bed.client.get("/v1/sandboxes", headers=odd_bed.as_("acme"))
    assert shown.json()["sandboxes"][0]["labels"] == {"a": "\ud83d", "\udc00": "\0"}
    bad = await odd_bed.client.post(
        "/v1/sandboxes", content=b'{"\\ud83d": 1}', headers=odd_bed.as_("acme")
    )
    assert (bad.status_code, bad.json()["field"]) == (400, "\ud83d")


async def test_a_key_of_any_bytes_is_the_same_key_again(odd_bed):
    headers = {**odd_bed.as_("acme"), "idempotency-key": "schl\xfcssel".encode("latin-1")}
    one, two = [
        (await odd_bed.client.post("/v1/sandboxes", json={}, headers=headers)).json()["id"]
        for _ in range(2)
    ]
    assert one == two


# --- sandboxes and their neighbours ---


def exec_of(odd_bed, made):
    return odd_bed.client.stream(
        "POST", f"/v1/sandboxes/{made['id']}/exec", json={"shell": "x"},
        headers={**odd_bed.as_("acme"), "accept": names.MEDIA_FRAMES},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "whole"),
    [(STDOUT + b"\xff" * 20, [b"out"]), (STDOUT + STDOUT[:6], [b"out"]),
     (b"\x02\xff\xff\xff\xff", []), (STDOUT[:2], [])],
    ids=["garbage", "half a frame", "too long", "half a head"],
)  # fmt: skip
async def test_frames_that_make_no_sense_end_in_an_error_frame(odd_bed, body, whole):
    made = await odd_bed.allocate()
    for length in (b"Content-Length: 10000", b"Transfer-Encoding: chunked"):
        said = b"HTTP/1.1 200 OK\r\n" + FRAMES + b"\r\n" + length + b"\r\n\r\n"
        said += body if b"Content" in length else b"%x\r\n%s\r\n" % (len(body), body)
        odd_bed.daemon.script = claims(says(said, stay=False))
        async with exec_of(odd_bed, made) as got:
            frames = await frames_of(got)
        assert [frame.payload for frame in frames[:-1]] == whole or b"\xff" in body
        assert frames[-1].type == wire.ERROR
        assert json.loads(frames[-1].payload)["reason"] == "outcome_unknown"


async def test_a_pod_that_ends_in_the_middle_of_a_frame_corrupts_nothing(odd_bed):
    made = await odd_bed.allocate()
    pod = odd_bed.cluster.leased()[0]

    async def half(call) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + FRAMES + b"\r\n\r\n"
        cut = wire.encode_frame(wire.STDOUT, b"x" * 1000)[:500]
        await call.send(head + b"%x\r\n%s\r\n" % (len(STDOUT + cut), STDOUT + cut))
        await trio.sleep(0.1)
        odd_bed.cluster.end(pod.uid, Ending("oom", "killed for want of memory"))
        await trio.sleep_forever()

    odd_bed.daemon.script = claims(half)
    async with exec_of(odd_bed, made) as got:
        frames = await frames_of(got)
    assert [frame.type for frame in frames] == [wire.STDOUT, wire.ERROR]
    assert frames[0].payload == b"out"
    assert json.loads(frames[1].payload)["reason"] == "oom"


async def test_another_pods_daemon_at_the_address_is_not_the_callers_bad_token(odd_bed):
    made = await odd_bed.allocate()
    odd_bed.daemon.script = says(answer(b"{}", status=b"401 Unauthorized"))
    path = f"/v1/sandboxes/{made['id']}/exec"
    got = await odd_bed.client.post(path, json={}, headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["reason"]) == (503, "unreachable")
    # And once it is known that the pod is gone, that is said.
    odd_bed.cluster.pods.clear()
    got = await odd_bed.client.post(path, json={}, headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["reason"]) == (410, "deleted")


async def test_headers_of_a_sandbox_are_bytes_and_few(odd_bed):
    made = await odd_bed.allocate()
    lines = (b"Content-Type: te\xe2\x82\xacxt", b"Set-Cookie: a=b", b"Location: https://evil",
             b"Content-Security-Policy: none", b"Sandman-Mode: 0644", b"Refresh: 0")  # fmt: skip
    odd_bed.daemon.script = claims(says(answer(b"hi", *lines)))
    got = await odd_bed.client.get(
        f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
    )
    raw = {name.lower(): value for name, value in got.headers.raw}
    assert raw[b"content-type"] == b"te\xe2\x82\xacxt"
    assert raw[b"content-security-policy"] == b"sandbox"
    assert raw[b"sandman-mode"] == b"0644"
    assert not {b"set-cookie", b"location", b"refresh"} & set(raw)


async def test_a_switch_of_protocols_is_refused(odd_bed):
    made = await odd_bed.allocate()
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    odd_bed.daemon.script = claims(says(switch, stay=False))
    got = await odd_bed.client.get(
        f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
    )
    assert (got.status_code, got.json()["reason"]) == (503, "unreachable")


# --- who looks for what is not there ---


async def test_a_sandboxes_token_asks_nobody_for_other_ids(odd_bed):
    """What runs in a sandbox may have its token: it must not make calls to the API server, nor tell
    by the time that an answer takes which sandboxes there are."""
    made = await odd_bed.allocate()
    asked = counted(odd_bed.cluster)
    scoped = {"authorization": f"Bearer {made['token']}"}
    for path in ("", "/info", "/files?path=/x"):
        got = await odd_bed.client.get(f"/v1/sandboxes/pod-7-abcdef01{path}", headers=scoped)
        assert got.status_code == 404
    never = await odd_bed.client.get("/v1/sandboxes/pod-7-abcdef01", headers=odd_bed.as_("acme"))
    assert never.json() == got.json()
    assert asked == ["pod-7"]


async def test_an_id_that_is_not_there_is_asked_for_once_in_a_while(odd_bed):
    asked = counted(odd_bed.cluster)
    for _ in range(3):
        for tenant in ("acme", "zeta"):
            got = await odd_bed.client.get(
                "/v1/sandboxes/pod-7-abcdef01", headers=odd_bed.as_(tenant)
            )
            assert got.status_code == 404
    assert asked == ["pod-7"]


def counted(cluster) -> list[str]:
    """The names that the cluster is asked for from now on."""
    asked, read = [], cluster.read

    async def counting(namespace, name):
        asked.append(name)
        return await read(namespace, name)

    cluster.read = counting
    return asked


# --- after a restart of the gateway: the pins are lost ---


async def test_a_replica_that_does_not_know_the_boot_asks_the_daemon_once(odd_bed):
    made = await odd_bed.allocate()
    odd_bed.proxy._boots.clear()
    claim = odd_bed.cluster.leased()[0].claim_id.encode()
    odd_bed.daemon.script = info_of(b'{"boot_id":"b1","claim_id":"%s"}' % claim)
    calls = len(odd_bed.daemon.calls)
    for _ in range(2):
        got = await odd_bed.client.get(
            f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
        )
        assert got.status_code == 200
    assert [call.line.split()[1] for call in odd_bed.daemon.calls[calls:]] == [
        b"/v1/info", b"/v1/files?path=/x", b"/v1/files?path=/x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b'{"boot_id":"b1","claim_id":"another"}', "died"), (b"nonsense", "died"),
     (None, "unreachable")],
)  # fmt: skip
async def test_a_replica_that_finds_another_daemon_says_what_it_found(odd_bed, body, reason):
    made = await odd_bed.allocate()
    odd_bed.proxy._boots.clear()
    odd_bed.daemon.script = info_of(body) if body else says(b"", stay=False)
    got = await odd_bed.client.get(
        f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
    )
    assert got.json()["reason"] == reason


def info_of(body: bytes):
    async def script(call) -> bool:
        await call.send(answer(body if b"/v1/info" in call.line else b"hello"))
        return True

    return script


async def test_pins_of_pods_that_are_gone_are_dropped(odd_bed):
    await odd_bed.allocate()
    pod = odd_bed.cluster.leased()[0]
    odd_bed.proxy.forget_ended()
    assert list(odd_bed.proxy._boots) == [pod.uid]
    odd_bed.registry.remove(pod.uid, Ending("released", "x"))
    odd_bed.proxy.forget_ended()
    assert odd_bed.proxy._boots == {}


# --- faults of our own ---


async def test_a_fault_of_the_gateway_is_500_and_the_next_call_is_served(odd_bed):
    made = await odd_bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"

    async def fails(_instance) -> None:
        raise odd_bed.failure

    odd_bed.cluster.delete = fails
    for failure, status, reason in [
        (ZeroDivisionError("x"), 500, "internal"),
        (ExceptionGroup("", [ExceptionGroup("", [UnreachableError("y")])]), 503, "unreachable"),
        (ExceptionGroup("", [ZeroDivisionError("z")]), 500, "internal"),
    ]:
        odd_bed.failure = failure
        got = await odd_bed.client.delete(path, headers=odd_bed.as_("acme"))
        assert (got.status_code, got.json()["reason"]) == (status, reason)
        assert got.headers["content-type"] == names.MEDIA_PROBLEM
        assert (await odd_bed.client.get("/healthz")).status_code == 200
    text = (await odd_bed.client.get("/metrics")).text
    assert 'sandman_errors_total{reason="internal"} 2.0' in text


async def test_a_run_is_released_as_far_as_it_goes_when_one_release_fails(odd_bed):
    for _ in range(2):
        odd_bed.cluster.placeholder(address="127.0.0.1", key_id="k1")
    await odd_bed.vetted(3)
    for _ in range(3):
        await odd_bed.allocate(run="r1")
    delete, failures = odd_bed.cluster.delete, [UnreachableError("busy")]

    async def fails_once(instance) -> None:
        if failures:
            raise failures.pop()
        await delete(instance)

    odd_bed.cluster.delete = fails_once
    got = await odd_bed.client.delete("/v1/runs/r1", headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["reason"]) == (503, "unreachable")
    assert len(odd_bed.cluster.leased()) == 1
    again = await odd_bed.client.delete("/v1/runs/r1", headers=odd_bed.as_("acme"))
    assert again.json() == {"released": 1}


async def test_a_sandbox_that_has_ended_takes_no_calls_and_says_why(odd_bed):
    made = await odd_bed.allocate()
    calls = len(odd_bed.daemon.calls)
    odd_bed.cluster.end(odd_bed.cluster.leased()[0].uid, Ending("evicted", "disk"))
    path = f"/v1/sandboxes/{made['id']}"
    while (await odd_bed.client.get(path, headers=odd_bed.as_("acme"))).json()["state"] != "ended":
        await trio.sleep(0.01)
    got = await odd_bed.client.post(f"{path}/exec", json={}, headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["reason"], got.json()["cause"]) == (
        410, "evicted", "infrastructure",
    )  # fmt: skip
    assert len(odd_bed.daemon.calls) == calls


async def test_a_release_that_cannot_be_looked_up_is_not_taken_for_done(odd_bed):
    async def away(_namespace, _name):
        raise UnreachableError("the API server is away")

    odd_bed.cluster.read = away
    got = await odd_bed.client.delete("/v1/sandboxes/p-00000000", headers=odd_bed.as_("acme"))
    assert (got.status_code, got.json()["retryable"]) == (503, True)
