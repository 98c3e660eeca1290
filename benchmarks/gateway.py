"""A gateway with its real routes, server, TLS and proxy, and a real daemon behind it, as a process.

Prints one line of JSON when a sandbox is there: `url`, `token`, `sandbox`, `ca` (a file). Ends with its
standard input.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile

import trio
import trio.testing

from sandman import grants
from tests.flow.conftest import KEYS, LocalDaemon, RealDaemonCluster, made_bed


async def serve() -> None:
    """One sandbox, until nobody wants it any more."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    daemon = LocalDaemon(
        port, grants.token_digest(grants.daemon_token(KEYS["k1"], "ns", "nonce-1"))
    )
    daemon.port = port  # type: ignore[attr-defined]
    try:
        async with made_bed(RealDaemonCluster(daemon), daemon) as bed:
            made = await bed.allocate()
            with tempfile.NamedTemporaryFile() as ca:
                ca.write(bed.ca.certificate)  # type: ignore[attr-defined]
                ca.flush()
                told = {
                    "url": bed.url,
                    "token": made["token"],
                    "sandbox": made["id"],
                    "ca": ca.name,
                }
                print(json.dumps(told), flush=True)
                await trio.to_thread.run_sync(sys.stdin.read)
    finally:
        daemon.stop()


if __name__ == "__main__":
    trio.run(serve)
