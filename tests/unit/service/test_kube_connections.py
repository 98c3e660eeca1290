"""The client's connections: bounded, kept, replaced; its tokens and its TLS."""

from __future__ import annotations

import contextlib
import gc
import json
import ssl
from collections import Counter
from functools import partial

import pytest
import trio
import trustme

from sandman.service import https, kube, tls
from sandman.service.kube import transport
from tests.unit.service.fake_api import Answer, pod, serving, status

# --- connections ---------------------------------------------------------------------------------


async def test_requests_are_bounded_and_connections_are_kept():
    async with serving(max_requests=3) as (api, client):
        api.delay_s = 0.02
        high = 0

        async def call() -> None:
            nonlocal high
            await client.get(kube.PODS, "a", namespace="x")

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(call)
            await trio.sleep(0.05)
            high = api.open
            assert client.statistics()["in_flight"] == 3
            assert client.statistics()["waiting"] > 0
        assert high <= 3
        assert api.connections <= 3


async def test_cancelled_calls_leave_nothing_behind():
    """No slot, no socket, no half-read connection that another call would get."""
    async with serving(max_requests=2) as (api, client):
        for _ in range(20):
            api.delay_s = 0.05

            async def call() -> None:
                await client.get(kube.PODS, "a", namespace="x")

            with trio.move_on_after(0.02):
                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(call)
        api.delay_s = 0
        with trio.fail_after(10):
            await client.get(kube.PODS, "a", namespace="x")
        assert client.statistics() == {"in_flight": 0, "waiting": 0, "idle": 1}


async def test_a_connection_that_the_server_closed_is_not_used_again():
    async with serving() as (api, client):
        api.answer_with(Answer(body=pod("a"), headers={"Connection": "close"}))
        for _ in range(3):
            await client.patch_merge(kube.PODS, "a", {}, namespace="x")
        assert Counter(seen.method for seen in api.seen) == {"PATCH": 3}
        assert api.connections == 3


async def test_a_connection_that_died_while_idle_is_not_used_again():
    async with serving() as (api, client):
        api.answer_with(Answer(body=pod("a"), then_close=True))
        for _ in range(3):
            await client.patch_merge(kube.PODS, "a", {}, namespace="x")
            with trio.fail_after(10):
                while api.open:
                    await trio.sleep(0.01)
        assert api.connections == 3


async def test_a_connection_that_was_idle_for_long_is_closed(monkeypatch):
    monkeypatch.setattr(transport, "KEEPALIVE_EXPIRY_S", 0.05)
    async with serving() as (api, client):
        for _ in range(2):
            await client.get(kube.PODS, "a", namespace="x")
        assert api.connections == 1
        await trio.sleep(0.1)
        await client.get(kube.PODS, "a", namespace="x")
        assert api.connections == 2
        assert client.statistics()["idle"] == 1


# --- tokens --------------------------------------------------------------------------------------


async def test_the_token_is_sent_and_read_again_when_refused():
    tokens = iter(["old", "new", "newer"])
    async with serving(target={"read_token": lambda: next(tokens)}) as (api, client):
        await client.get(kube.PODS, "a", namespace="x")
        api.answer_with(status(401, "Unauthorized"), Answer(body=pod("a")))
        with pytest.raises(kube.UnauthorizedError):
            await client.get(kube.PODS, "a", namespace="x")
        await client.get(kube.PODS, "a", namespace="x")
        assert [seen.headers["authorization"] for seen in api.seen] == [
            "Bearer old", "Bearer old", "Bearer new",
        ]  # fmt: skip
        api.answer_with(status(401, "Unauthorized"))
        with pytest.raises(kube.UnauthorizedError):
            async with client.open_watch(kube.PODS, kube.Selection(), {}):
                pass
        api.answer_with(Answer(body=pod("a")))
        await client.get(kube.PODS, "a", namespace="x")
        assert api.seen[-1].headers["authorization"] == "Bearer newer"


# --- TLS -----------------------------------------------------------------------------------------


async def test_over_tls_with_a_name_of_its_own():
    """Requests and watches verify the server, by the name that the kubeconfig gives."""
    authority = trustme.CA()
    leaf = authority.issue_cert("kubernetes.example")
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    certificate = tls.Certificate(chain, leaf.private_key_pem.bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def app(scope, receive, send):
        body = json.dumps(pod("a")).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        serve = partial(
            https.serve, app, bind=["127.0.0.1:0"], stop=stop, tls=certificate.current,
            settings=https.Settings(grace_s=1),
        )  # fmt: skip
        [bound] = await nursery.start(serve)
        url = f"https://127.0.0.1:{bound.port}"
        named = kube.Target(url, trusting, server_name="kubernetes.example")
        async with kube.Kube(named) as client_:
            assert (await client_.get(kube.PODS, "a", namespace="x")).metadata.name == "a"
            async with client_.open_watch(kube.PODS, kube.Selection(), {}) as stream:
                assert json.loads(await stream.receive())["metadata"]["name"] == "a"
        async with kube.Kube(kube.Target(url, trusting), luck=lambda: 0.0) as wrong:
            with pytest.raises(kube.UnavailableError, match="certificate") as caught:
                await wrong.patch_merge(kube.PODS, "a", {}, namespace="x")
            assert not caught.value.maybe_applied
            with pytest.raises(kube.UnavailableError, match="TLS failed"):
                async with wrong.open_watch(kube.PODS, kube.Selection(), {}):
                    pass
        stop.set()


async def test_a_handshake_can_be_cancelled():
    """And leaves no socket behind: httpcore forgets it then, and the warning would fail this test."""
    silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"https://127.0.0.1:{silent[0].socket.getsockname()[1]}"
    async with kube.Kube(kube.Target(url, ssl.create_default_context())) as client_:
        with trio.move_on_after(0.1) as waiting:
            async with client_.open_watch(kube.PODS, kube.Selection(), {}):
                pass
        assert waiting.cancelled_caught
        with trio.move_on_after(0.1) as waiting:
            await client_.get(kube.PODS, "a", namespace="x")
        assert waiting.cancelled_caught
    gc.collect()
    await silent[0].aclose()


async def test_informational_answers_are_passed_over():
    """A proxy between may say 103 or 102 first."""

    async def talk(stream):
        await stream.receive_some(65536)
        await stream.send_all(
            b"HTTP/1.1 102 Processing\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        )
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        [listener] = await nursery.start(partial(trio.serve_tcp, talk, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        client_ = await stack.enter_async_context(kube.Kube(kube.Target(url)))
        async with client_.open_watch(kube.PODS, kube.Selection(), {}) as stream:
            assert await stream.receive() == b"ok"
            assert await stream.receive() == b""
        nursery.cancel_scope.cancel()
