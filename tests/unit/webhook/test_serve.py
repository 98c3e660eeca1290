"""The whole webhook in one process, over real sockets and TLS, with the API server in memory."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from datetime import timedelta

import httpx
import pytest
import trio

from sandman import names
from tests.unit.webhook.fakekube import FakeKube
from tests.unit.webhook.test_review import body
from webhook import certificates, rotation, serve
from webhook.config import Config
from webhook.serve import Webhook

CONFIG = Config(
    daemon_image="registry.example/daemon:1",
    host="127.0.0.1",
    port=0,
    addresses=("127.0.0.1",),
    drain_s=0.0,
)


def client(kube: FakeKube, port: int) -> httpx.AsyncClient:
    """Trusts what the configuration publishes, as the API server does."""
    context = ssl.create_default_context(cadata=kube.bundle().decode())
    return httpx.AsyncClient(verify=context, base_url=f"https://127.0.0.1:{port}", timeout=20)


async def until_ready(webhook: Webhook) -> None:
    with trio.fail_after(5):
        while webhook.why_not_ready():
            await trio.sleep(0.01)


async def test_it_serves_with_the_certificate_that_it_published_and_drains():
    kube, stop = FakeKube(), trio.Event()
    webhook = Webhook(CONFIG, kube, stop)
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(webhook.run)
        await until_ready(webhook)
        async with client(kube, bound.port) as http:
            assert (await http.get("/readyz")).text == "ok"
            answer = await http.post("/mutate", content=body())
            assert answer.json()["response"]["patchType"] == "JSONPatch"
            metrics = (await http.get("/metrics")).text
            assert "not_after_seconds 0.0" not in metrics
        answer = await announce(bound.port, serve.MAX_BODY_BYTES + 1)
        assert answer.startswith(b"HTTP/1.1 413")
        stop.set()
        assert webhook.why_not_ready() == "stopping"


async def test_a_new_leaf_is_served_without_a_restart(monkeypatch):
    monkeypatch.setattr(certificates, "INTERVAL_S", 0.05)
    # A look that is under way when the objects go may have read the old bundle already: it then rightly
    # keeps the old authority, and the new leaf waits until the change has settled.
    monkeypatch.setattr(rotation, "SETTLE", timedelta(0))
    kube, stop = FakeKube(), trio.Event()
    webhook = Webhook(CONFIG, kube, stop)
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(webhook.run)
        await until_ready(webhook)
        first = await served_leaf(bound.port)
        # Neither Secret nor bundle is left: the next look makes and publishes another identity.
        kube.put_secret(names.WEBHOOK_TLS_SECRET, {})
        kube.put_bundle(b"")
        with trio.fail_after(5):
            while webhook.why_not_ready() or await served_leaf(bound.port) == first:
                await trio.sleep(0.02)
        stop.set()


async def connect(port: int) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
    await stream.do_handshake()
    return stream


async def announce(port: int, size: int) -> bytes:
    """The answer to a body of that size, of which nothing was sent yet."""
    stream = await connect(port)
    await stream.send_all(
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    )
    answer = await stream.receive_some(1000)
    await trio.aclose_forcefully(stream)
    return answer


async def served_leaf(port: int) -> bytes:
    stream = await connect(port)
    leaf = stream.getpeercert(binary_form=True)
    await trio.aclose_forcefully(stream)
    return leaf


async def test_told_to_stop_before_there_is_a_certificate_it_ends(autojump_clock):
    kube, stop = FakeKube(), trio.Event()
    kube.is_down = True
    webhook = Webhook(CONFIG, kube, stop)
    assert webhook._not_after() == 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(webhook.run)
        await trio.sleep(60)
        stop.set()
        with trio.fail_after(1):
            await trio.sleep(0.5)
    assert webhook.certificates.not_after() is None


@pytest.mark.timeout(60)
def test_the_program_names_the_setting_that_is_missing():
    environment = {name: value for name, value in os.environ.items() if "SANDMAN" not in name}
    command = [sys.executable, "-m", "webhook"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "SANDMAN_WEBHOOK_DAEMON_IMAGE must name the image" in ended.stderr
