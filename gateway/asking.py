"""One small call of the gateway's own to a daemon: a connection for it alone, the answer held whole, within a limit.

Own code over h11, because each placeholder is met and each claim is handed over by one: httpx takes three to five times the
processor for it, and keeps a connection, a thread of the daemon's with it, that nobody uses for minutes. What
answers may be hostile: the size of its head is limited by h11, that of its body here, and its time by the caller.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import h11
import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

READ_BYTES = 16 * 1024
"""Asked of the socket at once; most answers have some hundred bytes."""
BROKEN = (OSError, h11.ProtocolError)
Header = tuple[bytes, bytes]


class TooLargeError(Exception):
    """The answer has no end."""


async def ask(
    address: tuple[str, int],
    method: str,
    path: str,
    headers: Sequence[Header],
    content: bytes,
    most: int,
) -> tuple[int, bytes]:
    """Status and body of the answer.

    Args:
        address: host and port; the host is an IP address, so that nothing is resolved.
        method: GET or POST.
        path: of the call.
        headers: of the call, without Host, Content-Length and Connection.
        content: the body; b"" for none.
        most: bytes of the answer's body.

    Raises:
        OSError: no connection, or it broke.
        h11.ProtocolError: what answers does not speak HTTP, or ends in the middle.
        TooLargeError: the answer is longer than `most`.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with trio.socket.socket(family, socket.SOCK_STREAM) as sock:
        await sock.connect(address)
        link = h11.Connection(h11.CLIENT)
        await _send(sock, _words(link, address, method, path, headers, content))
        return await _answer(sock, link, most)


def _words(
    link: h11.Connection,
    address: tuple[str, int],
    method: str,
    path: str,
    headers: Sequence[Header],
    content: bytes,
) -> bytes:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    own: list[Header] = [(b"host", f"{host}:{address[1]}".encode()), (b"connection", b"close")]
    if content:
        own.append((b"content-length", str(len(content)).encode()))
    data = link.send(h11.Request(method=method, target=path, headers=[*own, *headers])) or b""
    if content:
        data += link.send(h11.Data(data=content)) or b""
    return data + (link.send(h11.EndOfMessage()) or b"")


async def _send(sock: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await sock.send(data) :]


async def _answer(
    sock: trio.socket.SocketType, link: h11.Connection, most: int
) -> tuple[int, bytes]:
    status, body = 0, b""
    while True:
        event = link.next_event()
        if event is h11.NEED_DATA:
            link.receive_data(await sock.recv(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > most:
                raise TooLargeError
        elif isinstance(event, h11.EndOfMessage):
            return status, body
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("it closed the connection without an answer")
