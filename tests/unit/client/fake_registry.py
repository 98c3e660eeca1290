"""A registry on a real socket: manifests, indexes and blobs by digest, tokens for those who log in."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class FakeRegistry:
    """`auth`: none, basic or bearer; `login` is who may pull then, `identity` an identity token of his."""

    def __init__(self, port: int = 0) -> None:
        self.auth = "none"
        self.login = ("me", "secret")
        self.identity = "identity"
        self.challenge: str | None = None
        self.blobs_at: str | None = None
        """Another host that blobs are redirected to."""
        self.content: dict[str, tuple[str, bytes]] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.host = ""

    def put(self, path: str, body: bytes, kind: str = "application/octet-stream") -> str:
        self.content[path] = (kind, body)
        return digest(body)

    def image(
        self, name: str, tag: str = "latest", *, platform: str = "linux/amd64", **config
    ) -> str:
        """An image for one platform; its manifest's digest."""
        system, architecture = platform.split("/")
        body = json.dumps({"os": system, "architecture": architecture, "config": config}).encode()
        blob = self.put(f"/v2/{name}/blobs/{digest(body)}", body)
        manifest = json.dumps({"schemaVersion": 2, "config": {"digest": blob}}).encode()
        self.put(f"/v2/{name}/manifests/{digest(manifest)}", manifest, MANIFEST)
        return self.put(f"/v2/{name}/manifests/{tag}", manifest, MANIFEST)

    def index(self, name: str, tag: str, entries: list[tuple[str, str]]) -> str:
        """An index of images by platform."""
        manifests = []
        for platform, found in entries:
            system, architecture, *variant = platform.split("/")
            told = {"os": system, "architecture": architecture}
            told |= {"variant": variant[0]} if variant else {}
            manifests.append({"digest": found, "mediaType": MANIFEST, "platform": told})
        body = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
        self.put(f"/v2/{name}/manifests/{digest(body)}", body, INDEX)
        return self.put(f"/v2/{name}/manifests/{tag}", body, INDEX)

    def answer(
        self, method: str, path: str, authorization: str | None, form: str
    ) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(path)
        self.seen.append((url.path, authorization))
        if url.path == "/token":
            return self._token(authorization, parse_qs(form))
        if not self._may(authorization):
            return 401, {"WWW-Authenticate": self._challenge()}, b""
        if self.blobs_at and "/blobs/" in url.path and "elsewhere" not in url.query:
            return 307, {"Location": f"http://{self.blobs_at}{url.path}?elsewhere=1"}, b""
        if url.path not in self.content:
            return 404, {}, b"{}"
        kind, body = self.content[url.path]
        return 200, {"Content-Type": kind}, body

    def _basic(self) -> str:
        return f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}"

    def _challenge(self) -> str:
        if self.challenge is not None:
            return self.challenge
        realm = f'realm="http://{self.host}/token",service="reg",scope="repository:x:pull"'
        return 'Basic realm="reg"' if self.auth == "basic" else f"Bearer {realm}"

    def _may(self, authorization: str | None) -> bool:
        wanted = {"none": authorization, "basic": self._basic(), "bearer": "Bearer good"}
        return authorization == wanted[self.auth]

    def _token(
        self, authorization: str | None, form: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        if form.get("refresh_token") == [self.identity]:
            return 200, {}, b'{"access_token":"good"}'
        if authorization == self._basic():
            return 200, {}, b'{"token":"good"}'
        return (401, {}, b"") if authorization or form else (200, {}, b'{"token":"anonymous"}')


@contextlib.contextmanager
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, headers, body = fake.answer(
                self.command, self.path, self.headers.get("Authorization"), form
            )
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815 - so the library calls them

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
