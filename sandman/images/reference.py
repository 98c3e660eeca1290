"""Image references as container runtimes read them. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

HUB = "docker.io"
"""Where a reference without a host leads, and by which name its credentials are known."""
_HUB_API = "registry-1.docker.io"
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_PATH = re.compile(
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\](:\d{1,5})?")


class Reference(NamedTuple):
    """A parsed reference. `digest` wins over `tag`."""

    host: str
    repository: str
    tag: str = "latest"
    digest: str | None = None

    @property
    def version(self) -> str:
        """What the registry is asked for."""
        return self.digest or self.tag

    @property
    def base_url(self) -> str:
        """Where the registry's API is; without TLS on this machine alone, as runtimes do it."""
        host = _HUB_API if self.host == HUB else self.host
        return f"{'http' if _LOOPBACK.fullmatch(host) else 'https'}://{host}"


def parse(text: str) -> Reference:
    """The reference in a pod's `image`.

    Raises:
        ValueError: it is none.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{text!r}: the digest must be sha256:… or sha512:…")
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, rest = first, path
    else:
        host = HUB
    repository, colon, tag = rest.partition(":")
    if host in {HUB, "index.docker.io"}:
        host = HUB
        repository = repository if "/" in repository else f"library/{repository}"
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(repository):
        raise ValueError(f"{text!r} is not an image reference")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"{text!r} has no tag behind its colon")
    return Reference(host, repository, tag if colon else "latest", digest or None)
