"""A server of `service.https` and who talks to it, for tests."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import trio
import trio.testing
import trustme

from sandman.service import asgi, https, tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOCAL = "127.0.0.1:0"


class Pki:
    """A certificate authority of the test, and a server certificate of it."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.client = ssl.create_default_context()
        self.authority.configure_trust(self.client)

    def issue(self, *names: str) -> tuple[bytes, bytes]:
        leaf = self.authority.issue_cert(*names)
        return b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes()


@pytest.fixture(scope="session")
def pki() -> Pki:
    return Pki()


class Server:
    """A running server and the ways to talk to it."""

    def __init__(self, port: int, stop: trio.Event, client: ssl.SSLContext | None) -> None:
        self.port = port
        self.stop = stop
        self.ended = trio.Event()
        self._client = client

    @property
    def url(self) -> str:
        return f"{'https' if self._client else 'http'}://127.0.0.1:{self.port}"

    async def connect(self) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        if self._client is None:
            return stream
        secure = trio.SSLStream(
            stream, self._client, server_hostname="127.0.0.1", https_compatible=True
        )
        await secure.do_handshake()
        return secure

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=self._client or False, trust_env=False)


@contextlib.asynccontextmanager
async def serving(
    app: asgi.App, pki: Pki | None = None, settings: https.Settings | None = None
) -> AsyncIterator[Server]:
    certificate = tls.Certificate(*pki.issue("127.0.0.1")) if pki else None
    stop = trio.Event()

    async def run(*, task_status) -> None:
        await https.serve(
            app,
            bind=[LOCAL],
            stop=stop,
            tls=certificate.current if certificate else None,
            settings=settings or https.Settings(grace_s=1, cut_after_s=0.2),
            task_status=task_status,
        )
        server.ended.set()

    async with trio.open_nursery() as nursery:
        [bound] = await nursery.start(run)
        server = Server(bound.port, stop, pki.client if pki else None)
        server.certificate = certificate
        yield server
        stop.set()
        with trio.fail_after(10):
            await server.ended.wait()


async def respond(send, body: bytes = b"ok", *, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def hello(scope, receive, send) -> None:
    await respond(send, b"hello")


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def read_answer(stream: trio.abc.Stream) -> bytes:
    data = b""
    while not data.endswith(b"hello"):
        chunk = await stream.receive_some()
        if not chunk:
            break
        data += bytes(chunk)
    return data


# --- the caller goes away ------------------------------------------------------------------------


class Handler:
    """An app that waits for ever and tells how it ended."""

    def __init__(self, *, stream: bool = False) -> None:
        self.started = trio.Event()
        self.ended = trio.Event()
        self.how = ""
        self._stream = stream

    async def __call__(self, scope, receive, send) -> None:
        self.started.set()
        try:
            if self._stream:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    message = {"type": "http.response.body", "body": b"x" * 65536}
                    await send({**message, "more_body": True})
            await trio.sleep_forever()
        except trio.Cancelled:
            self.how = "cancelled"
            raise
        finally:
            self.ended.set()
