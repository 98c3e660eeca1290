"""An issuer's web server: real sockets, real TLS, and answers as a test says."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from sandman.service import https, pki, tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "localhost"


class Site:
    """Serves one document at every path.

    `document` is what it says (bytes, or a value as JSON), `status` and `headers` how, `delay_s` when, and `asked`
    which paths were asked for.
    """

    def __init__(self) -> None:
        self.document: Any = {"keys": []}
        self.status = 200
        self.headers: list[tuple[bytes, bytes]] = []
        self.delay_s = 0.0
        self.asked: list[str] = []
        self.url = ""
        self.ca = ""

    async def __call__(self, scope, receive, send) -> None:
        self.asked.append(scope["path"])
        await trio.sleep(self.delay_s)
        document = self.document
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    """One, listening."""
    site = Site()
    ca = pki.make_ca("issuer", datetime.now(UTC), 1)
    leaf = pki.issue(ca, [NAME], ["127.0.0.1"], datetime.now(UTC), 1)
    certificate = tls.Certificate(leaf.certificate, leaf.key)
    site.ca = ca.certificate.decode()
    stop = trio.Event()

    async def run(*, task_status) -> None:
        await https.serve(
            site, bind=["127.0.0.1:0"], stop=stop, tls=certificate.current,
            settings=https.Settings(grace_s=0.1, lame_duck_s=0.0), task_status=task_status,
        )  # fmt: skip

    async with trio.open_nursery() as nursery:
        [bound] = await nursery.start(run)
        site.url = f"https://{NAME}:{bound.port}/keys"
        yield site
        nursery.cancel_scope.cancel()
