"""An issuer of JWTs whose key set the gateways fetch from this machine."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from sandman.service import pki, tls
from tests.fakes.issuers import keyset

if TYPE_CHECKING:
    from tests.fakes.issuers import Signer


class Site:
    """An issuer's key set on this machine, by TLS."""

    def __init__(self, address: str) -> None:
        self.document = b""
        self.asked: list[str] = []
        now = datetime.now(UTC)
        authority = pki.make_ca("issuer", now, 1)
        leaf = pki.issue(authority, ["issuer.test"], [address], now, 1)
        self.ca = authority.certificate.decode()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(site.document)))
                self.end_headers()
                self.wfile.write(site.document)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        trust = tls.server_context(leaf.certificate, leaf.key)
        self._server.socket = trust.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{address}:{self._server.server_port}"

    def __enter__(self) -> Site:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, *signers: Signer) -> None:
        self.document = json.dumps(keyset(*signers)).encode()
