"""Calls that are handed to the allocator, and what may become of allocator and authority meanwhile."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import httpx
import pytest
import trio

from gateway.handoff import Handoff
from sandman.service import pki, tls
from tests.flow.conftest import SERVER_NAME, Leader, gateway
from tests.flow.test_gateway import follower, replica


async def test_a_key_of_any_bytes_is_handed_on_as_it_came(bed):
    headers = {**bed.as_("acme"), "idempotency-key": "schl\xfcssel".encode("latin-1")}
    async with replica(bed, follower(bed)) as client:
        made = await client.post("/v1/sandboxes", json={}, headers=headers)
    direct = await bed.client.post("/v1/sandboxes", json={}, headers=headers)
    assert (made.status_code, made.json()["id"]) == (201, direct.json()["id"])


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


async def test_a_changed_authority_is_trusted_from_then_on_and_old_connections_are_closed():
    authorities = [pki.make_ca(name, datetime.now(UTC), 1).certificate for name in "ab"]
    current = [authorities[0]]
    handoff = Handoff(Leader(), SERVER_NAME, lambda: current[0])
    first = handoff._connect()
    assert handoff._connect() is first
    current[0] = authorities[1]
    second = handoff._connect()
    assert second is not first
    assert not first.is_closed
    await handoff.aclose()
    assert first.is_closed
    assert second.is_closed
    await Handoff(Leader(), SERVER_NAME, lambda: b"").aclose()
    assert ssl.create_default_context(cadata=authorities[1].decode()).cert_store_stats()["x509"]
