"""The first handler: says that the daemon lives before the rest of it is loaded.

Half of the start goes into imports that only commands and files need. Meanwhile the kubelet's and the
gateway's probes are answered, and other calls wait for a few milliseconds.
"""

from __future__ import annotations

import threading

from daemon.exchange import Response
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange


class Front:
    """Answers `GET /healthz` itself and hands all else to the application once it is there."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._application: Callable[[Exchange], None] | None = None

    def open(self, application: Callable[[Exchange], None] | None) -> None:
        """From now on the application answers; None: there will be none, and connections end."""
        self._application = application
        self._ready.set()

    def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        if exchange.head.path == "/healthz" and exchange.head.method in {"GET", "HEAD"}:
            exchange.respond(Response(200, b"ok\n", "text/plain"))
            return
        self._ready.wait()
        if self._application is not None:
            self._application(exchange)
