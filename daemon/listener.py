"""The listening socket, opened before most of the daemon is loaded.

What connects meanwhile waits in the kernel's queue for some milliseconds. Here and in what this
imports nothing may import `typing`, which alone costs a fifth of the start.
"""

from __future__ import annotations

import socket

_BACKLOG = 512


def listen(port: int) -> socket.socket:
    """A socket that takes IPv4 and IPv6, or IPv4 alone where the kernel has no other."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address = "::"
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = "0.0.0.0"  # nosec B104  # noqa: S104 - the pod's address; the network policy says who may come
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(_BACKLOG)
    return sock
