"""An API server in memory as a process: `python -m tests.flood.api_server`, with what is in the cluster as JSON on its
standard input. Says its address on its standard output, and serves until it is ended."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from tests.fakes.api_server import ApiServer

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEN_MAX = 100
"""Requests that are remembered; tests of one call look at all of them."""


async def serve(objects: Mapping[str, list[dict[str, Any]]]) -> None:
    """Serve these, by plural."""
    server = ApiServer()
    server.seen = deque(maxlen=SEEN_MAX)  # type: ignore[assignment]
    for plural, documents in objects.items():
        for document in documents:
            server.put(plural, document)
    async with server.links(1) as [link]:
        print(link.target.base_url, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(serve, json.load(sys.stdin))
