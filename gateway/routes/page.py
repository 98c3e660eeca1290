"""The page for people who would rather look. Files of ours and nothing else: no token, nothing of a tenant.

Whatever the page shows it asks of the API as any caller does, with the token that its user has typed.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sandman.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from starlette.requests import Request

PLACE = "/ui/"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is served, by suffix; other files that lie there (licenses) are not."""
POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # No text becomes markup or code, not by our own mistake either.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Asked for anew each time, and mostly not sent again: a new gateway's page is new at once.
    "Cache-Control": "no-cache",
}


class File(NamedTuple):
    """One of them, in memory."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, File]:
    """All files of the page, by their path below `PLACE`. Some 400 KB."""
    return dict(_files(resources.files("gateway").joinpath("page"), ""))


def _files(place: Traversable, above: str) -> Iterator[tuple[str, File]]:
    for one in place.iterdir():
        name = f"{above}{one.name}"
        if one.is_dir():
            yield from _files(one, f"{name}/")
        elif (kind := TYPES.get(PurePosixPath(name).suffix)) is not None:
            content = one.read_bytes()
            yield name, File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


class PageRoutes:
    """Endpoints over the files."""

    def __init__(self) -> None:
        self._files = load()

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/", self.lead, methods=["GET"]),
            Route("/ui", self.lead, methods=["GET"]),
            Route("/ui/{file:path}", self.file, methods=["GET"]),
        ]

    async def lead(self, _request: Request) -> Response:
        """Whoever types the address alone means the page."""
        return RedirectResponse(PLACE, status_code=307, headers=HEADERS)

    async def file(self, request: Request) -> Response:
        """One file, or that it has not changed."""
        name = request.path_params["file"] or INDEX
        file = self._files.get(name)
        if file is None:
            raise NotFoundError(f"no such file of the page: {name[:200]}")
        headers = {**HEADERS, "ETag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)
