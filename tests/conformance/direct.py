"""The real client, sync and async, at a daemon without a gateway: only the paths of its calls are others."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from sandman._async import sandbox as async_sandbox
from sandman._async import transport as async_transport
from sandman._core.config import Limits, Settings
from sandman._core.values import SandboxInfo
from sandman._sync import sandbox as sync_sandbox
from sandman._sync import transport as sync_transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_INFO = SandboxInfo(id="direct", state="ready")
_GATEWAY = re.compile(r"^/v1/sandboxes/direct(?=/)")


def daemon_path(path: str) -> str:
    """The daemon's path of what the gateway has below a sandbox."""
    return _GATEWAY.sub("/v1", path)


class _Transport(sync_transport.Transport):
    def _persist(self, call, *, read):
        call.path = daemon_path(call.path)
        return super()._persist(call, read=read)


class _AsyncTransport(async_transport.Transport):
    async def _persist(self, call, *, read):
        call.path = daemon_path(call.path)
        return await super()._persist(call, read=read)


@contextmanager
def sandbox(url: str, token: str, limits: Limits | None = None) -> Iterator[sync_sandbox.Sandbox]:
    """The sandbox that this daemon is."""
    transport = _Transport(Settings.load(url, token, limits=limits, environ={}))
    try:
        yield sync_sandbox.Sandbox(transport, _INFO)
    finally:
        transport.close()


@asynccontextmanager
async def open_sandbox(
    url: str, token: str, limits: Limits | None = None
) -> AsyncIterator[async_sandbox.Sandbox]:
    """The same by the async client."""
    transport = _AsyncTransport(Settings.load(url, token, limits=limits, environ={}))
    try:
        yield async_sandbox.Sandbox(transport, _INFO)
    finally:
        await transport.aclose()
