"""`/v1/ports/{n}/…`: HTTP and WebSocket to servers that listen inside the sandbox."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from daemon.relay import Relay, passed_headers
from sandman import names
from sandman.errors import BadRequestError, MethodNotAllowedError, PortClosedError

if TYPE_CHECKING:
    from daemon import http1
    from daemon.exchange import Exchange

CONNECT_S = 10.0
"""Seconds for a server on the loopback to accept: one whose queue is full accepts late or never."""
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_PREFIX = "x-forwarded-prefix"
_NOT_IN = {"host", "authorization", "expect", _PREFIX}


class Ports:
    """The handler of `ports`.

    Args:
        own_port: the daemon's, which is never dialled: a call must not come in a second time.
    """

    def __init__(self, own_port: int) -> None:
        self._own_port = own_port

    def call(self, exchange: Exchange) -> None:
        """Pass one request on to a server, and its answer back.

        Raises:
            BadRequestError: there is no such port, or it is the daemon's own.
            PortClosedError: nothing listens there.
            OutcomeUnknownError: what listens there gave no answer that could be passed on.
        """
        head = exchange.head
        if head.method == "CONNECT":
            raise MethodNotAllowedError("CONNECT is for proxies")
        port, path = self._parse(head.path)
        upgrade = wants_websocket(head)
        with dial(port) as server:
            request = request_head(head, port, path, upgrade=upgrade)
            Relay(exchange, server, port, upgrade=upgrade).run(request)

    def _parse(self, path: str) -> tuple[int, str]:
        number, slash, rest = path.removeprefix("/v1/ports/").partition("/")
        port = names.port_number(number)
        if port is None:
            raise BadRequestError("a port is a number of 1 to 65535", field="port")
        if port == self._own_port:
            raise BadRequestError(f"port {port} is the daemon's own", field="port")
        return port, slash + rest or "/"


def wants_websocket(head: http1.Head) -> bool:
    """Whether the request asks to be one; any other upgrade is passed over, as HTTP allows."""
    options = [option.strip().lower() for option in head.headers.get("connection", "").split(",")]
    asked = head.headers.get("upgrade", "").lower() == "websocket" and "upgrade" in options
    return asked and head.method == "GET" and head.knows_chunks and not head.has_body


def request_head(head: http1.Head, port: int, path: str, *, upgrade: bool) -> bytes:
    """The request as the server gets it."""
    query = f"?{head.query}" if head.query else ""
    passed = passed_headers(head.headers.items())
    headers = [(name, value) for name, value in passed if name not in _NOT_IN]
    prefix = head.headers.get(_PREFIX, f"/v1/ports/{port}")
    headers = [("Host", f"localhost:{port}"), *headers, ("X-Forwarded-Prefix", prefix)]
    if head.length is None:
        headers.append(("Transfer-Encoding", "chunked"))
    elif head.length or head.method in {"POST", "PUT", "PATCH"}:
        headers.append(("Content-Length", str(head.length)))
    if upgrade:
        headers += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    else:
        # One connection for each call: a kept one could be closed under the next request.
        headers.append(("Connection", "close"))
    lines = [
        f"{head.method} {path}{query} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def dial(port: int) -> socket.socket:
    """A connection to whatever listens on this port of the loopback, IPv4 first.

    Raises:
        PortClosedError: nothing does, or it does not accept within CONNECT_S.
    """
    why = ""
    for family, address in _ADDRESSES:
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        try:
            server.settimeout(CONNECT_S)
            server.connect((address, port))
            if not is_itself(server):
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return server
        except OSError as error:
            why = why or str(error)
        server.close()
    raise PortClosedError(
        f"nothing accepts connections on port {port} of the sandbox: {why or 'refused'}",
        retry_after=1.0,
    )


def is_itself(sock: socket.socket) -> bool:
    """Whether a socket was connected to itself. Where nothing listens on a port that the kernel may give to
    clients, one day it gives it to this very one, and TCP lets the two ends of one socket meet."""
    return bool(sock.getsockname() == sock.getpeername())
