# Written by scripts/unasync.py from tests/unit/client/twins_async/test_ports.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""HTTP to servers in a sandbox, with the real daemon at the end."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest

from sandman import errors
from sandman.sync import Client
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(BaseHTTPRequestHandler):
    """Says what it was asked."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = f"{self.command} {self.path} {self.rfile.read(length).decode()}".encode()
        status = int(self.path.strip("/")) if self.path.strip("/").isdigit() else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "https://elsewhere.example/")
        self.send_header("X-Authorized", str("Authorization" in self.headers))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def log_message(self, *_args: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server inside the sandbox, which is this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_calls_to_a_server_inside(way: Way, port: int) -> None:
    with Client(way.url, TOKEN) as client, client.attach(SANDBOX).http(port) as server:
        answer = server.get("/a%2Fb", params={"q": "1"})
        assert answer.text == "GET /a%2Fb?q=1 "
        assert answer.headers["x-authorized"] == "False"
        assert (server.post("/x", content=b"data")).text == "POST /x data"
        assert (server.get("")).text == "GET / "
        for status in (401, 404, 503):
            assert (server.delete(f"/{status}")).status_code == status


def test_what_sandman_says_is_raised(way: Way, port: int) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        with box.http(1) as closed:
            with pytest.raises(errors.PortClosedError) as caught:
                closed.get("/")
        assert (caught.value.sandbox, caught.value.retryable) == (SANDBOX, True)
        assert caught.value.retry_after == 1
    with Client(way.url, "wrong") as client, client.attach(SANDBOX).http(port) as server:
        with pytest.raises(errors.UnauthenticatedError):
            server.get("/")


def test_the_token_goes_nowhere_else(way: Way, port: int) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        with box.http(port, follow_redirects=True) as server:
            for url in ("https://elsewhere.example/", f"{way.url}/v1/sandboxes", "/302"):
                with pytest.raises(errors.BadRequestError, match="is not at"):
                    server.get(url)
            assert (server.get(box.port_url(port, "/x"))).text == "GET /x "


def test_a_gateway_that_is_not_there_is_httpx_own_error() -> None:
    with (
        Client("http://127.0.0.1:1", "t0ken") as client,
        client.attach("b-1").http(80, timeout=1) as server,
    ):
        with pytest.raises(httpx.TransportError):
            server.get("/")


def test_addresses_for_other_libraries() -> None:
    with Client("https://gateway:8443/", "t0ken") as client:
        box = client.attach("b-1")
        base = "//gateway:8443/v1/sandboxes/b-1/ports/8000"
        assert box.port_url(8000) == f"https:{base}/"
        assert box.port_url(8000, "/ws?a=b", websocket=True) == f"wss:{base}/ws?a=b"
        assert box.port_headers() == {"Authorization": "Bearer t0ken"}
        for port, path in ((0, "/"), (65536, "/"), (80, "x")):
            with pytest.raises(errors.BadRequestError):
                box.port_url(port, path)
