"""WebSockets through the real gateway, to a scripted daemon: for what the real one never does."""

from __future__ import annotations

import contextlib
import errno
import json
import socket as socket_
import struct

import pytest
import trio
import trio.testing
from wsproto.events import Ping
from wsproto.utilities import ProtocolError

from gateway import reach, tunnel, upstream, websocket
from gateway.model import Ending
from sandman import names
from tests.fakes.daemons import BOOT_HEADER, answer, claims, says
from tests.fakes.sockets import Peer, Refused, connected, echo, upgraded

MARK = b"Sandman-Port: 8000"


@contextlib.asynccontextmanager
async def socket(bed, tail: str, *subprotocols: str, tenant: str = "acme", **headers: str):
    """A caller's WebSocket to this path of a fresh sandbox."""
    if not hasattr(bed, "made"):
        bed.made = await bed.allocate()
    path = f"/v1/sandboxes/{bed.made['id']}/{tail}"
    async with (
        bed.raw() as stream,
        connected(stream, path, {**bed.as_(tenant), **headers}, *subprotocols) as peer,
    ):
        yield peer


def accepts(talk, *lines: bytes):
    """A daemon that accepts a WebSocket and then talks."""

    async def script(call) -> None:
        await talk(await upgraded(call, *lines))

    return claims(script)


def calls_of(bed) -> list:
    return [call for call in bed.daemon.calls if b"upgrade" in call.headers]


async def test_messages_pass_both_ways_with_subprotocol_query_and_headers(odd_bed):
    odd_bed.daemon.script = accepts(echo, b"Sec-WebSocket-Protocol: b", MARK, b"Set-Cookie: a=b")
    headers = {"x-own": "1", "cookie": "c=d", "sandman-boot-id": "forged", "origin": "https://o"}
    async with socket(odd_bed, "ports/8000/a%20b?q=%2F", "a", "b", **headers) as peer:
        assert (peer.subprotocol, peer.headers["sandman-port"]) == ("b", "8000")
        assert "set-cookie" not in peer.headers
        for message in ("t\u00e4xt", b"\x00\xff", "", b"", "x" * 300_000, b"y" * 300_000):
            await peer.send(message)
            assert await peer.receive() == message
        await peer.say(Ping(b"p"))
        await peer.close(4321, "why")
        while not isinstance(ended := await peer.receive(), tuple):
            assert ended is not None
        assert ended[0] == 4321
    [call] = calls_of(odd_bed)
    assert call.line == b"GET /v1/ports/8000/a%20b?q=%2F HTTP/1.1"
    assert call.headers[b"sec-websocket-protocol"] == b"a, b"
    assert call.headers[b"x-own"] == b"1"
    assert call.headers[BOOT_HEADER] == b"b1"
    assert call.headers[b"authorization"] != odd_bed.as_("acme")["authorization"].encode()
    assert b"cookie" not in call.headers
    made = odd_bed.made["id"].encode()
    assert call.headers[b"x-forwarded-prefix"] == b"/v1/sandboxes/" + made + b"/ports/8000"


async def test_a_terminal_gets_no_header_of_the_caller(odd_bed):
    odd_bed.daemon.script = accepts(echo, b"Sec-WebSocket-Protocol: sandman.v1.terminal")
    async with socket(
        odd_bed, "processes/e1/terminal?rows=2", "sandman.v1.terminal", **{"x-own": "1"}
    ) as peer:
        assert peer.subprotocol == "sandman.v1.terminal"
        await peer.send(b"ls")
        assert await peer.receive() == b"ls"
    [call] = calls_of(odd_bed)
    assert call.line == b"GET /v1/processes/e1/terminal?rows=2 HTTP/1.1"
    assert b"x-own" not in call.headers
    assert b"x-forwarded-prefix" not in call.headers


@pytest.mark.parametrize("code", [1000, 1001, 1008, 3000, 4999])
async def test_the_daemons_goodbye_reaches_the_caller(odd_bed, code):
    said: list = []

    async def talk(peer: Peer) -> None:
        await peer.send("last")
        await peer.close(code, "so long")
        said.append(await peer.receive())

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "last"
        assert await peer.receive() == (code, "so long")
        assert await peer.receive() is None
    assert said == [(code, "")]


@pytest.mark.parametrize(("given", "told"), [(1000, 1000), (4001, 4001), (None, 1001)])
async def test_the_callers_goodbye_reaches_the_daemon(odd_bed, given, told):
    heard = trio.Event()
    said: list = []

    async def talk(peer: Peer) -> None:
        await peer.send("hello")
        said.append(await peer.receive())
        heard.set()

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "hello"
        if given is not None:
            await peer.close(given)
            assert await peer.receive() == (given, "")
    with trio.fail_after(10):
        await heard.wait()
    assert said == [(told, "")]


async def test_a_sandbox_that_dies_says_why(odd_bed):
    async def talk(peer: Peer) -> None:
        await peer.send("hello")
        await trio.sleep_forever()

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "hello"
        [instance] = odd_bed.registry.of_tenant("acme")
        odd_bed.registry.remove(instance.uid, Ending("oom", "killed for want of memory"))
        assert await peer.receive() == (1011, "oom: killed for want of memory")


async def test_what_breaks_off_in_a_sandbox_that_lives_is_told_at_once(odd_bed):
    async def talk(peer: Peer) -> None:
        await peer.send("hello")

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "hello"
        code, reason = await peer.receive()
        assert code == 1011
        assert reason.startswith("outcome_unknown: in the sandbox: ")


async def test_what_breaks_off_and_is_not_there_any_more_is_unreachable(odd_bed):
    async def talk(peer: Peer) -> None:
        await peer.send("hello")
        odd_bed.daemon.script = says(b"nonsense\r\n\r\n", stay=False)

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "hello"
        code, reason = await peer.receive()
        assert (code, reason.partition(":")[0]) == (1011, "unreachable")


async def test_what_was_silent_and_looked_for_says_so_by_its_code(odd_bed, monkeypatch):
    """The kernel's error is another one here, for no test waits 16 s: the code that asks for it is told."""

    async def talk(peer: Peer) -> None:
        await peer.send("hello")
        odd_bed.daemon.script = says(b"nonsense\r\n\r\n", stay=False)
        monkeypatch.setattr(reach, "SILENT", {errno.ECONNRESET})
        peer.stream.setsockopt(socket_.SOL_SOCKET, socket_.SO_LINGER, struct.pack("ii", 1, 0))

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == "hello"
        code, reason = await peer.receive()
        assert (code, reason.partition(":")[0]) == (names.CLOSE_OUT_OF_REACH, "unreachable")


@pytest.mark.parametrize("bad", [b"\xff\xff", b"\x81\x02\xff\xff", b"\x83\x00", b"\x88\x01x"])
async def test_what_makes_no_sense_is_the_sandboxs_fault(odd_bed, bad):
    async def talk(peer: Peer) -> None:
        await peer.stream.send_all(bad)
        await peer.receive()

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        code, reason = await peer.receive()
        assert code == 1011
        assert reason.startswith("outcome_unknown: in the sandbox: its WebSocket makes no sense")


async def test_too_big_a_message_from_the_sandbox_ends_it(odd_bed, monkeypatch):
    monkeypatch.setattr(websocket, "MESSAGE_MAX_BYTES", 1000)
    heard = trio.Event()
    said: list = []

    async def talk(peer: Peer) -> None:
        await peer.send(b"x" * 1000)
        await peer.send(b"x" * 1001)
        said.append(await peer.receive())
        heard.set()

    odd_bed.daemon.script = accepts(talk)
    async with socket(odd_bed, "ports/8000/") as peer:
        assert await peer.receive() == b"x" * 1000
        code, reason = await peer.receive()
        assert (code, reason.partition(":")[0]) == (1009, "too_large")
    with trio.fail_after(10):
        await heard.wait()
    assert said == [(1009, "")]


async def test_who_is_silent_in_the_handshake_or_takes_nothing_is_given_up(odd_bed, monkeypatch):
    monkeypatch.setattr(upstream, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(websocket, "STALL_S", 0.3)

    async def silent(_call) -> None:
        await trio.sleep_forever()

    odd_bed.daemon.script = claims(silent)
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/"):
            pass
    told = json.loads(refused.value.body)
    assert (told["status"], told["reason"], told["cause"]) == (502, "outcome_unknown", "sandbox")

    async def deaf(_peer) -> None:
        await trio.sleep_forever()

    odd_bed.daemon.script = accepts(deaf)
    async with socket(odd_bed, "ports/8000/") as peer, trio.open_nursery() as nursery:

        async def flood() -> None:
            with contextlib.suppress(trio.BrokenResourceError, ProtocolError):
                while True:
                    await peer.send(b"x" * 1_000_000)

        nursery.start_soon(flood)
        code, reason = await peer.receive()
        assert (code, reason) == (1011, "outcome_unknown: in the sandbox: it takes no data")
        nursery.cancel_scope.cancel()


async def test_who_leaves_before_the_accept_holds_no_place(odd_bed, caplog):
    asked, left = trio.Event(), trio.Event()

    async def silent(call) -> None:
        asked.set()
        assert not await call.stream.receive_some()
        left.set()

    odd_bed.made = await odd_bed.allocate()
    odd_bed.daemon.script = claims(silent)
    path = f"/v1/sandboxes/{odd_bed.made['id']}/ports/8000/"
    lines = [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"]
    with trio.fail_after(10):  # a daemon has 30 s to answer
        async with odd_bed.raw() as stream:
            head = odd_bed.head("GET", path, *lines, b"Sec-WebSocket-Key: " + b"A" * 22 + b"==")
            await stream.send_all(head)
            await asked.wait()
        await left.wait()
        while "sandman_websockets 0.0" not in (await odd_bed.client.get("/metrics")).text:
            await trio.sleep(0.01)
    assert [text for text in caplog.messages if "'event': 'audit'" not in text] == []


async def test_what_is_said_before_the_accept_is_kept():
    said = [{"type": "websocket.receive", "text": text} for text in ("early", "late")]

    async def receive():
        return said.pop(0)

    async def opening() -> str:
        await trio.testing.wait_all_tasks_blocked()
        return "open"

    caller = tunnel._Caller(receive, None)
    assert await caller.while_here(opening()) == "open"
    assert [await caller.receive(), await caller.receive()] == ["early", "late"]


async def test_an_answer_that_is_no_upgrade_is_passed_on(odd_bed):
    body = b'{"reason": "not_found"}'
    headers = (b"Content-Type: application/problem+json", b"Set-Cookie: a=b")
    odd_bed.daemon.script = claims(says(answer(body, *headers, status=b"404 Not Found")))
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "processes/e1/terminal"):
            pass
    got = refused.value
    assert (got.status, got.body) == (404, body)
    assert got.headers["content-type"] == "application/problem+json"
    assert got.headers["content-security-policy"] == "sandbox"
    assert "set-cookie" not in got.headers
    own = (MARK, b"X-Own: 1", b"WWW-Authenticate: Basic")
    odd_bed.daemon.script = claims(says(answer(b"who?", *own, status=b"401 Unauthorized")))
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/"):
            pass
    got = refused.value
    assert (got.status, got.body) == (401, b"who?")
    assert (got.headers["x-own"], got.headers["sandman-port"]) == ("1", "8000")
    assert "www-authenticate" not in got.headers


async def test_another_daemon_there_is_no_refusal_of_the_caller(odd_bed):
    odd_bed.daemon.script = claims(says(answer(b"", status=b"401 Unauthorized")))
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/"):
            pass
    assert refused.value.status == 503


@pytest.mark.parametrize(
    ("tail", "status", "reason"),
    [
        ("exec", 404, "not_found"),
        ("ports/0/", 400, "bad_request"),
        ("ports/65536/", 400, "bad_request"),
        ("ports/08000/", 400, "bad_request"),
        ("ports/%38000/", 400, "bad_request"),
        ("processes/../terminal", 404, "not_found"),
        ("processes/%65/terminal", 404, "not_found"),
    ],
)
async def test_paths_that_lead_nowhere(odd_bed, tail, status, reason):
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, tail):
            pass
    got = refused.value
    assert (got.status, json.loads(got.body)["reason"]) == (status, reason)
    assert got.headers["content-type"] == "application/problem+json"
    assert calls_of(odd_bed) == []


async def test_strangers_are_told_the_same_as_by_any_call(odd_bed):
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/", tenant="zeta"):
            pass
    assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/", authorization="Bearer nonsense"):
            pass
    assert refused.value.status == 401
    assert refused.value.headers["www-authenticate"] == "Bearer"
    await odd_bed.client.delete(f"/v1/sandboxes/{odd_bed.made['id']}", headers=odd_bed.as_("acme"))
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/"):
            pass
    assert (refused.value.status, json.loads(refused.value.body)["reason"]) == (410, "released")


async def test_no_more_than_a_replica_can_carry(odd_bed, monkeypatch):
    monkeypatch.setattr(tunnel, "SOCKETS_MAX", 1)
    odd_bed.daemon.script = accepts(echo)
    async with socket(odd_bed, "ports/8000/"):
        with pytest.raises(Refused) as refused:
            async with socket(odd_bed, "ports/8000/"):
                pass
        assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "5")
        assert "sandman_websockets 1.0" in (await odd_bed.client.get("/metrics")).text


async def test_no_more_than_one_sandbox_may_have(odd_bed, monkeypatch):
    monkeypatch.setattr(tunnel, "SOCKETS_PER_SANDBOX_MAX", 2)
    odd_bed.cluster.placeholder(address="127.0.0.1", key_id="k1")
    await odd_bed.vetted(2)
    odd_bed.made, other = await odd_bed.allocate(), await odd_bed.allocate()
    odd_bed.daemon.script = accepts(echo)
    async with socket(odd_bed, "ports/8000/"), socket(odd_bed, "ports/8000/"):
        with pytest.raises(Refused) as refused:
            async with socket(odd_bed, "ports/8000/"):
                pass
        got, told = refused.value, json.loads(refused.value.body)
        assert (got.status, got.headers["retry-after"]) == (429, "5")
        assert (told["reason"], told["retryable"]) == ("quota", True)
        assert told["sandbox"] == odd_bed.made["id"]
        mine, odd_bed.made = odd_bed.made, other
        async with socket(odd_bed, "ports/8000/") as peer:
            await peer.send("other")
            assert await peer.receive() == "other"
        odd_bed.made = mine
    with trio.fail_after(10):
        while "sandman_websockets 0.0" not in (await odd_bed.client.get("/metrics")).text:
            await trio.sleep(0.01)
    async with socket(odd_bed, "ports/8000/") as peer:
        await peer.send("again")
        assert await peer.receive() == "again"


async def test_a_fault_of_ours_is_500_and_says_so(odd_bed, monkeypatch):
    async def fault(*_args) -> None:
        raise RuntimeError("fault")

    await odd_bed.allocate()
    monkeypatch.setattr(tunnel.Tunnels, "run", fault)
    odd_bed.made = {"id": odd_bed.registry.of_tenant("acme")[0].id}
    with pytest.raises(Refused) as refused:
        async with socket(odd_bed, "ports/8000/"):
            pass
    assert (refused.value.status, json.loads(refused.value.body)["reason"]) == (500, "internal")
