"""One caller's connection: HTTP over a kept TLS connection. Only here are sockets of the load.

The standard library's client, on purpose: under Locust gevent makes it wait for many at once, without it threads do.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

LINE_MOST_BYTES = 4 * 1024 * 1024
"""Of a stream's line: a sandbox is one of a kilobyte."""


class BrokenError(Exception):
    """No answer: the connection was not to be had, broke, or was silent for too long."""


class Answer(NamedTuple):
    """What came; names of headers in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Its object; an empty one where it is none: proxies answer with pages."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class _Secure(http.client.HTTPSConnection):
    """One whose certificate may have another name than the address."""

    def __init__(self, host: str, port: int | None, trust: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, context=trust)
        self._trust, self._name = trust, name

    def connect(self) -> None:
        # http.client's own, but for the name.
        http.client.HTTPConnection.connect(self)
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=self._name)


class Session:
    """A caller of one server: one connection, opened at the first call and kept.

    Args:
        url: base address.
        trust: whose certificates are believed. They are always looked at.
        headers: of each call.
        server_name: the name in the certificate, where it is not the address'.
    """

    def __init__(
        self,
        url: str,
        trust: ssl.SSLContext,
        headers: Mapping[str, str],
        server_name: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        host, self._headers = parts.hostname or "", dict(headers)
        self._turn = threading.Lock()
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = _Secure(host, parts.port, trust, server_name or host)
        else:
            self._connection = http.client.HTTPConnection(host, parts.port)

    @classmethod
    def with_key(cls, url: str, trust: ssl.SSLContext, key: str, server_name: str | None) -> Self:
        """With an API key."""
        return cls(url, trust, {"Authorization": f"Bearer {key}"}, server_name)

    def close(self) -> None:
        """Give the connection up, whatever is on it; the next call opens another."""
        self._connection.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = 60.0,
    ) -> Answer:
        """One call and its whole answer.

        Args:
            body: bytes as they are, anything else as JSON.
            silence_s: how long nothing may come.

        Raises:
            BrokenError: there was none.
        """
        try:
            # Who leads sends heartbeats, and at the same time the last calls: one after the other on a connection.
            with self._turn:
                return _whole(self._begin(method, path, body, headers or {}, silence_s))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise BrokenError(_text(error)) from error

    def stream(
        self, path: str, body: object, headers: Mapping[str, str], silence_s: float
    ) -> Iterator[Answer]:
        """A POST whose answer is lines: each as it comes. An answer that is no 200 is the only one.

        Raises:
            BrokenError: it broke off.
        """
        try:
            answer = self._begin("POST", path, body, headers, silence_s)
            if answer.status != 200:
                yield _whole(answer)
                return
            while line := answer.readline(LINE_MOST_BYTES):
                yield Answer(200, {}, line)
            # To its end, or the connection serves no other call.
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise BrokenError(_text(error)) from error

    def _begin(
        self, method: str, path: str, body: object, headers: Mapping[str, str], silence_s: float
    ) -> http.client.HTTPResponse:
        connection = self._connection
        connection.timeout = silence_s
        if connection.sock is not None:
            connection.sock.settimeout(silence_s)
        content: dict[str, str] = {}
        if body is not None and not isinstance(body, bytes):
            body, content = json.dumps(body).encode(), {"Content-Type": "application/json"}
        connection.request(method, path, body, {**content, **self._headers, **headers})
        return connection.getresponse()


def _whole(answer: http.client.HTTPResponse) -> Answer:
    body = answer.read()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return f"its name does not resolve: {error}"
    return f"{type(error).__name__}: {error}"
