"""One connection of the fake gateway: requests in, answers out, by h11."""

from __future__ import annotations

import dataclasses
import json
import selectors
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import h11

from sandman import errors, names, wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


@dataclasses.dataclass
class Request:
    """A request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        pairs = parse_qs(
            urlsplit(self.target).query, keep_blank_values=True, errors="surrogateescape"
        )
        return {name: values[0] for name, values in pairs.items()}

    def json(self) -> dict:
        return json.loads(self.body)


class HangupError(Exception):
    """The connection is over."""


class Connection:
    """One caller's connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.h11 = h11.Connection(h11.SERVER)

    def receive(self) -> Request | None:
        event = self._event()
        if not isinstance(event, h11.Request):
            return None
        headers = {name.decode(): value.decode() for name, value in event.headers}
        request = Request(event.method.decode(), event.target.decode(), headers)
        body = bytearray()
        while not isinstance(event := self._event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise HangupError
            body += event.data
        request.body = bytes(body)
        return request

    def _event(self):
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            try:
                self.h11.receive_data(self.sock.recv(262144))
            except OSError:
                raise HangupError from None
        return event

    def send(self, event: h11.Event) -> None:
        try:
            self.sock.sendall(self.h11.send(event) or b"")
        except OSError:
            raise HangupError from None

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send(h11.Response(status_code=status, headers=list(headers.items())))

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        length = {} if status == 204 else {"content-length": str(len(body))}
        self.head(status, {**length, **(headers or {})})
        self.finish(body)

    def json(self, status: int, document: object, headers: Mapping[str, str] | None = None) -> None:
        kind = {"content-type": "application/json"}
        self.answer(status, json.dumps(document).encode(), {**kind, **(headers or {})})

    def problem(self, error: errors.SandmanError) -> None:
        headers = {"content-type": names.MEDIA_PROBLEM}
        if error.retry_after is not None:
            headers["retry-after"] = str(int(error.retry_after))
        body = json.dumps(error.problem()).encode()
        self.head(error.status, {"content-length": str(len(body)), **headers})
        self.finish(body)

    def finish(self, body: bytes = b"") -> None:
        is_head = self.h11.their_state is not None and self._is_head
        if body and not is_head:
            self.send(h11.Data(data=body))
        self.send(h11.EndOfMessage())

    _is_head = False

    def frame(self, kind: int, payload: bytes | dict = b"") -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send(h11.Data(data=wire.encode_frame(kind, data)))

    def line(self, document: dict) -> None:
        self.send(h11.Data(data=json.dumps(document).encode() + b"\n"))

    def hung_up(self, wait_s: float) -> bool:
        """Whether the caller goes away within that time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            return bool(selector.select(wait_s))


class Mute(Connection):
    """Takes an answer and sends it nowhere."""

    def __init__(self) -> None:
        pass

    def send(self, event: h11.Event) -> None:
        pass

    def finish(self, body: bytes = b"") -> None:
        pass
