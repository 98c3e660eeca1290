"""Ports for servers that a test starts as processes of their own."""

from __future__ import annotations

import os
import random
import socket

FIRST = 12_000
"""Below those that the kernel gives to connections (32768 and above) and those of the test cluster's nodes (30000): one
that the kernel had given would be free until the server takes it, and others connect meanwhile."""
EACH = 4_000
"""Ports of one of pytest's workers: none is another's, so that nobody takes one between its being found and used."""


def free_port() -> int:
    """A port of this worker's on which nothing listens."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw3").removeprefix("gw")
    first = FIRST + EACH * (int(worker) % 4)
    while True:
        port = random.randrange(first, first + EACH)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
