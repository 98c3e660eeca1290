"""A registry's front with moods: what it lets through comes from the cluster's own registry.

127.0.0.1:PORT/twice-x/sandman-test/busybox:1     429 for two whole pulls, then the image
127.0.0.1:PORT/always-x/…                         429 for ever
127.0.0.1:PORT/private-x/…                        401: credentials are wanted that nobody has
127.0.0.1:PORT/open-x/…                           the image; a 404 where the registry has none
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed import Bed

ONE_PULL_S = 0.7
"""Requests closer together than this are of one pull: containerd asks up to six times on a 429, without a
pause; the gateway waits a second before it tries the next placeholder."""
PASSED_ON = ("content-type", "content-length", "docker-content-digest", "etag", "accept-ranges")


class Moods:
    """What became of each mood's requests so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}
        self.pulls: dict[str, int] = {}
        """Whole pulls, by the first part of the path."""

    def status(self, name: str) -> int:
        """What a request gets; 200: it is let through."""
        with self._lock:
            now = time.monotonic()
            if now - self._last.get(name, 0.0) > ONE_PULL_S:
                self.pulls[name] = self.pulls.get(name, 0) + 1
            self._last[name] = now
            mood = name.partition("-")[0]
            if mood == "private":
                return 401
            is_throttled = mood == "always" or (mood == "twice" and self.pulls[name] <= 2)
            return 429 if is_throttled else 200


class Front:
    """A front that listens."""

    def __init__(self, address: str, moods: Moods) -> None:
        self.address = address
        self.moods = moods

    def reference(self, mood: str, image: str = "sandman-test/busybox:1") -> str:
        """An image of that mood that no node has seen."""
        return f"{self.address}/{mood}-{uuid.uuid4().hex[:8]}/{image}"

    def pulls(self, reference: str) -> int:
        """How often it was tried to pull this."""
        return self.moods.pulls.get(reference.split("/")[1], 0)


@contextlib.contextmanager
def front(bed: Bed) -> Iterator[Front]:
    """A front of the cluster's registry, which its node trusts without TLS while this lasts."""
    moods = Moods()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(bed.registry, moods))
    address = f"127.0.0.1:{server.server_address[1]}"
    # containerd reads these at each pull.
    hosts = bed.config / "certs.d" / address / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(f'server = "http://{address}"\n')
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Front(address, moods)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        hosts.unlink()
        hosts.parent.rmdir()


def _handler(registry: str, moods: Moods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            name, _, rest = self.path.removeprefix("/v2/").partition("/")
            status = moods.status(name)
            if status != 200:
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="private"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self._pass_on(f"/v2/{rest}")

        def _pass_on(self, path: str) -> None:
            upstream = http.client.HTTPConnection(registry, timeout=30)
            accept = {"Accept": ", ".join(self.headers.get_all("Accept") or ["*/*"])}
            upstream.request(self.command, path, headers=accept)
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() in PASSED_ON:
                    self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)
            upstream.close()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its parent has it
            """Quiet."""

    return Handler
