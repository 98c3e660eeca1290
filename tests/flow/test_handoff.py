"""Calls that are handed to the allocator, and what may become of allocator and authority meanwhile."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime

import httpx
import pytest
import trio

from gateway import handoff
from gateway.handoff import CONNECTING_AT_ONCE, Handoff
from sandman.errors import UnreachableError
from sandman.service import pki, tls
from tests.flow.conftest import SERVER_NAME, Leader, gateway
from tests.flow.test_gateway import follower, replica

CA = pki.make_ca("a", datetime.now(UTC), 1)


async def test_a_key_of_any_bytes_is_handed_on_as_it_came(bed):
    headers = {**bed.as_("acme"), "idempotency-key": "schl\xfcssel".encode("latin-1")}
    async with replica(bed, follower(bed)) as client:
        made = await client.post("/v1/sandboxes", json={}, headers=headers)
    direct = await bed.client.post("/v1/sandboxes", json={}, headers=headers)
    assert (made.status_code, made.json()["id"]) == (201, direct.json()["id"])


@pytest.mark.parametrize(
    "path",
    ["requests/a%3Fwait_s=1", "requests/a%23b", "requests/a%2525", "requests/a%20b", "requests/%C3%A9?wait_s=0",
     "reservations/a%3Fb", "reservations/a%23b", "reservations/.", "reservations/..", "requests/%2e%2e", "requests/a;b"],
)  # fmt: skip
async def test_a_path_is_handed_on_as_it_came(bed, path):
    """Decoded and read again it would be another one: with a query that was none, or nearer to the root."""
    async with replica(bed, follower(bed)) as client:
        for method in ("GET", "DELETE"):
            target = {"target": f"/v1/{path}".encode()}
            handed, direct = [
                await one.request(method, "/", headers=bed.as_("acme"), extensions=target)
                for one in (client, bed.client)
            ]
            assert (handed.status_code, handed.content) == (direct.status_code, direct.content)


@pytest.mark.parametrize("address", ["", "a b:1", "[::", "127.0.0.1:99999", "[::1]:1"])
async def test_an_address_that_cannot_be_dialled_is_an_allocator_that_is_lost(bed, address):
    async with replica(bed, Leader(is_leader=False, address=address)) as client:
        refused = await client.post("/v1/sandboxes", json={}, headers=bed.as_("acme"))
    assert (refused.status_code, refused.json()["reason"]) == (503, "unreachable")


async def test_what_the_allocator_refuses_is_told_with_its_headers(bed):
    """The two may see a revoked key at different moments."""
    async with replica(bed, follower(bed)) as client:
        upload = bytes(8 * 1024 * 1024)
        large = await client.post("/v1/sandboxes", content=upload, headers=bed.as_("acme"))
        assert (large.status_code, large.json()["reason"]) == (413, "too_large")


class Answering:
    """An allocator that says what a test wants, over TLS."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.ca = pki.make_ca("other", datetime.now(UTC), 1)
        self.calls = 0
        self.address = ""

    async def serve(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        leaf = pki.issue(self.ca, [SERVER_NAME], [], datetime.now(UTC), 1)
        context = tls.server_context(leaf.certificate, leaf.key)
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
        port = listeners[0].transport_listener.socket.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        await trio.serve_listeners(self._answer, listeners, task_status=task_status)

    async def _answer(self, stream: trio.SSLStream) -> None:
        data = b""
        try:
            while not data.endswith(b"0\r\n\r\n"):
                data += await stream.receive_some(65536)
            self.calls += 1
            await stream.send_all(self.said)
        except trio.BrokenResourceError:
            return
        finally:
            await trio.aclose_forcefully(stream)


class Slow(Answering):
    """One that has time for one handshake after the other only, as a busy machine."""

    def __init__(self, said: bytes) -> None:
        super().__init__(said)
        self._one_at_a_time = trio.Lock()
        self.connecting = self.most = 0

    async def serve(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        leaf = pki.issue(self.ca, [SERVER_NAME], [], datetime.now(UTC), 1)
        context = tls.server_context(leaf.certificate, leaf.key)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"

        async def answer(plain: trio.SocketStream) -> None:
            self.connecting += 1
            self.most = max(self.most, self.connecting)
            stream = trio.SSLStream(plain, context, server_side=True)
            async with self._one_at_a_time:
                await trio.sleep(0.002)
                await stream.do_handshake()
            self.connecting -= 1
            await self._answer(stream)

        await trio.serve_listeners(answer, [listener], task_status=task_status)


async def test_a_burst_that_is_handed_on_connects_a_few_at_a_time(bed, monkeypatch):
    """All at once each would be too late, and all would come again."""
    monkeypatch.setattr(handoff, "TIMEOUT", httpx.Timeout(None))
    monkeypatch.setattr(handoff, "CONNECTING_AT_ONCE", 4)
    monkeypatch.setattr(handoff, "TURN_S", 60.0)  # a busy machine is not what this is about
    allocator = Slow(b"HTTP/1.1 429 Too Many\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    await bed.nursery.start(allocator.serve)
    leader = Leader(is_leader=False, address=allocator.address)
    cluster = type(bed.cluster)(bed.daemon)
    cluster.synced()
    answers: list[int] = []
    async with (
        gateway(
            cluster, bed.credentials, bed.settings, leader, bed.ca, authority=allocator.ca
        ) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=bed.trust, timeout=20) as client,
        trio.open_nursery() as nursery,
    ):

        async def one() -> None:
            made = await client.post("/v1/sandboxes", json={}, headers=bed.as_("acme"))
            answers.append(made.status_code)

        for _ in range(40):
            nursery.start_soon(one)
    assert answers == [429] * 40
    assert allocator.calls == 40
    # One that has its connection may not be known of at the other end yet.
    assert allocator.most <= 8


async def test_a_call_that_has_no_turn_to_connect_is_told_so_in_time(autojump_clock):
    one = Handoff(Leader(is_leader=False), SERVER_NAME, lambda: b"")
    async with contextlib.AsyncExitStack() as stack:
        turns = [await stack.enter_async_context(one._turn()) for _ in range(CONNECTING_AT_ONCE)]
        with pytest.raises(UnreachableError, match="more calls") as caught:
            await stack.enter_async_context(one._turn())
        assert caught.value.retry_after == 1.0
        turns[0]()
        await stack.enter_async_context(one._turn())


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
async def test_an_answer_cut_in_the_middle_is_never_taken_for_whole(bed):
    allocator = Answering(b'HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{"id": "x"')
    await bed.nursery.start(allocator.serve)
    leader = Leader(is_leader=False, address=allocator.address)
    cluster = type(bed.cluster)(bed.daemon)
    cluster.synced()
    async with (
        gateway(
            cluster, bed.credentials, bed.settings, leader, bed.ca, authority=allocator.ca
        ) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=bed.trust, timeout=20) as client,
    ):  # fmt: skip
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/sandboxes", json={}, headers=bed.as_("acme"))
        # No fault of this replica's, for which somebody would be called.
        assert 'reason="internal"' not in (await client.get("/metrics")).text
    assert allocator.calls == 1


async def marked(one: Handoff) -> tuple[httpx.AsyncHTTPTransport, ssl.SSLContext]:
    """A transport that tells whether it was closed: httpx's own does not."""
    transport, trust = await one._take()
    close = transport.aclose

    async def closed() -> None:
        transport.was_closed = True
        await close()

    transport.aclose = closed
    return transport, trust


def is_closed(transport: httpx.AsyncHTTPTransport) -> bool:
    return getattr(transport, "was_closed", False)


async def test_a_changed_authority_is_trusted_from_then_on_and_old_connections_are_closed():
    authorities = [pki.make_ca(name, datetime.now(UTC), 1).certificate for name in "ab"]
    current = [authorities[0]]
    one = Handoff(Leader(), SERVER_NAME, lambda: current[0])
    first, trust = await marked(one)
    await one._give_back(first, trust)
    assert (await one._take())[0] is first
    second, _ = await marked(one)
    assert second is not first  # one that is in use is nobody else's
    await one._give_back(second, trust)
    current[0] = authorities[1]
    third, changed = await marked(one)
    assert third is not second
    assert changed is not trust
    assert is_closed(second)
    assert not is_closed(first)  # in use
    await one._give_back(first, trust)  # too old to be kept
    assert one._idle == []
    assert is_closed(first)
    await one._give_back(third, changed)
    assert one._idle == [third]
    await one.aclose()
    assert one._idle == []
    assert is_closed(third)
    await Handoff(Leader(), SERVER_NAME, lambda: b"").aclose()
    assert ssl.create_default_context(cadata=authorities[1].decode()).cert_store_stats()["x509"]


async def test_calls_one_after_the_other_have_one_connection(bed, monkeypatch):
    """What was read to its end is given back, whether anybody wanted it or not."""
    made: list[httpx.AsyncHTTPTransport] = []

    class Counted(httpx.AsyncHTTPTransport):
        def __init__(self, **options) -> None:
            super().__init__(**options)
            made.append(self)

    async with replica(bed, follower(bed)) as client:
        monkeypatch.setattr(handoff.httpx, "AsyncHTTPTransport", Counted)
        for _ in range(3):
            answer = await client.get("/v1/overview", headers=bed.as_("acme"))
            assert answer.status_code == 200
        # A caller may have the answer, and ask again, a moment before its connection is given back.
        assert len(made) < 3
        for _ in range(3):
            one = Handoff(follower(bed), SERVER_NAME, lambda: bed.ca.certificate)
            before = len(made)
            statuses = [await one.ask("/v1/tickets/use", "wst_k1_x") for _ in range(3)]
            assert set(statuses) <= {401, 429}
            assert len(made) == before + 1
            await one.aclose()


async def test_of_a_burst_so_many_transports_are_kept_and_no_more():
    one = Handoff(Leader(), SERVER_NAME, lambda: CA.certificate)
    taken = [await one._take() for _ in range(handoff.IDLE_MAX + 3)]
    for transport, trust in taken:
        await one._give_back(transport, trust)
    assert len(one._idle) == handoff.IDLE_MAX
    await one.aclose()
