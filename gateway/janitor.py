"""Drops what pods that are gone left behind in this process: idle connections, pins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from gateway.proxy import Proxy
    from gateway.registry import Registry
    from gateway.upstream import Upstream

EVERY_S = 30.0
"""Seconds between two rounds: as long as an idle connection is kept anyway."""


async def run(registry: Registry, upstream: Upstream, proxy: Proxy) -> None:
    """Clean up until cancelled."""
    while True:
        await trio.sleep(EVERY_S)
        proxy.forget_ended()
        await upstream.close_unused(lambda uid: registry.get(uid) is not None)
