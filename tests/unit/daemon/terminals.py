"""Commands with a terminal, and who sits at it, for tests."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from sandman import handles, terminal, websocket, wire
from tests.unit.daemon.harness import (
    Daemon,
    head,
    read_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

MIB = 1024 * 1024
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    f"Sec-WebSocket-Protocol: {terminal.SUBPROTOCOL}",
)
RAW = "stty raw -echo; "
"""Bytes go through as they are."""


def call(daemon: Daemon, method: str, path: str, **options: object) -> httpx.Response:
    return daemon.client.request(method, f"/v1/processes{path}", **options)  # type: ignore[arg-type]


def begin(daemon: Daemon, **body: object) -> str:
    """The id of a command in a terminal."""
    response = call(daemon, "POST", "", json={"terminal": {}, **body})
    assert response.status_code == 200, response.text
    info = handles.ProcessInfo.from_json(response.json())
    assert info.terminal
    return info.exec_id


def ask(daemon: Daemon, exec_id: str, wait_s: float = 20) -> handles.ProcessInfo:
    response = call(daemon, "GET", f"/{exec_id}?wait_s={wait_s}")
    assert response.status_code == 200, response.text
    return handles.ProcessInfo.from_json(response.json())


def run(daemon: Daemon, shell: str, **body: object) -> wire.ExecResult:
    """The result of a script in a terminal that nobody looks at."""
    result = ask(daemon, begin(daemon, shell=shell, detached=True, **body)).result
    assert result is not None
    return result


class Screen:
    """The other end of a terminal's WebSocket."""

    def __init__(
        self, daemon: Daemon, exec_id: str, query: str = "", *headers: str, rcvbuf: int = 0
    ) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(10)
        if rcvbuf:  # before it connects, or the window is open already
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.connect(("127.0.0.1", daemon.port))
        self.sock.sendall(
            head("GET", f"/v1/processes/{exec_id}/terminal{query}", *(headers or HANDSHAKE))
        )
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.sock.recv(1)
        self.status = int(data.split()[1])
        self.head = data.decode()
        self._decoder = websocket.Decoder(is_server=False)
        self.data = b""
        self.texts: list[tuple[str, dict[str, object]]] = []
        self.closed: int | None = None
        self.pongs: list[bytes] = []

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, opcode: int, data: bytes) -> None:
        self.sock.sendall(websocket.encode(opcode, data, mask=os.urandom(4)))

    def type(self, data: bytes) -> None:
        self.send(websocket.BINARY, data)

    def tell(self, name: str, **content: object) -> None:
        self.send(websocket.TEXT, terminal.dump(name, content))

    def step(self, most: int = 65536) -> bool:
        """Take what has come; False: there will be no more."""
        data = self.sock.recv(most)
        for message in self._decoder.feed(data):
            if message.opcode == websocket.BINARY:
                self.data += message.data
            elif message.opcode == websocket.TEXT:
                self.texts.append(terminal.parse(message.data))
            elif message.opcode == websocket.PONG:
                self.pongs.append(message.data)
            else:
                self.closed = message.code
        return bool(data)

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.step(), (self.data, self.texts, self.closed)

    def expect(self, pattern: bytes) -> re.Match[bytes]:
        self.until(lambda: re.search(pattern, self.data))
        found = re.search(pattern, self.data)
        assert found is not None
        return found

    def finish(self) -> wire.ExecResult:
        """Read to the end."""
        while self.closed is None:
            assert self.step(), (self.data, self.texts)
        assert (self.closed, self.texts[-1][0]) == (1000, "exit"), self.texts
        assert read_all(self.sock) == b""
        return wire.ExecResult.from_json(self.texts[-1][1])

    def got(self, name: str) -> list[dict[str, object]]:
        return [content for one, content in self.texts if one == name]
