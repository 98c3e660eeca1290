"""`/v1/files` of a hollow daemon: whole files, in memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from daemon import paths
from daemon.documents import dump
from daemon.exchange import Response
from sandman import names
from sandman.errors import BadRequestError, PathNotFoundError

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.state import Sandbox

MOST_BYTES = 1024 * 1024
"""Of one file: twelve thousand sandboxes share this process's memory."""


class Files:
    """The handlers of `files`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._content: dict[bytes, bytes] = {}

    def read(self, path: str) -> bytes | None:
        """A file's content; None: there is none."""
        return self._content.get(self._sandbox.absolute(path.encode()))

    def get(self, exchange: Exchange) -> None:
        """Send a file, or with HEAD what would be sent."""
        path = self._path(exchange)
        data = self._content.get(path)
        if data is None:
            raise PathNotFoundError(f"there is no {paths.text(path)}", field="path")
        headers = (("Sandman-Mode", "0644"), ("Accept-Ranges", "none"))
        exchange.respond(Response(200, data, names.MEDIA_BYTES, headers))

    def put(self, exchange: Exchange) -> None:
        """Receive a file, which appears only when it is whole."""
        path = self._path(exchange)
        data = exchange.read_body(MOST_BYTES)
        found = hashlib.sha256(data).hexdigest()
        wanted = exchange.query.get("sha256")
        if wanted is not None and wanted.lower() != found.encode():
            raise BadRequestError(f"the body's sha256 is {found}, not as given", field="sha256")
        self._content[path] = data
        told = {"size": len(data), "sha256": found, "mode": "0644", "path": paths.text(path)}
        exchange.respond(Response(200, dump(told), names.MEDIA_JSON))

    def delete(self, exchange: Exchange) -> None:
        """Remove a file."""
        path = self._path(exchange)
        if self._content.pop(path, None) is None:
            raise PathNotFoundError(f"there is no {paths.text(path)}", field="path")
        exchange.respond(Response(204))

    def _path(self, exchange: Exchange) -> bytes:
        path = exchange.query.get("path")
        if not path:
            raise BadRequestError("which file is meant is in the query", field="path")
        return self._sandbox.absolute(path)
