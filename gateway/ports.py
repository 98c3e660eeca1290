"""What passes between a caller and a server inside a sandbox: headers, and where a redirect may lead. Pure.

The server is hostile and its answers come from the gateway's own origin. So nothing passes that would
make a browser keep anything for that origin or show anything as its page, and no redirect that would
send a caller, with its token, to another path of the gateway or out into its own network.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Iterable

Header = tuple[bytes, bytes]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
})  # fmt: skip
_NOT_IN = _HOP_BY_HOP | {
    b"host", b"authorization", b"cookie", b"cookie2", b"expect", b"forwarded", b"via", b"x-real-ip",
    names.HEADER_IDEMPOTENCY_KEY.lower().encode(),
}  # fmt: skip
_NOT_IN_PREFIXES = (
    b"sandman-", b"proxy-", b"x-forwarded-", b"sec-websocket-",
    # What proxies that authenticate tell of the caller, some of it good as a password.
    b"x-auth-request-", b"cf-access-", b"x-amzn-oidc-", b"x-goog-iap-", b"x-goog-authenticated-", b"x-ssl-",
    b"x-client-cert", b"x-ms-client-principal", b"x-ms-token-",
)  # fmt: skip
_NOT_OUT = _HOP_BY_HOP | {
    # What a browser keeps for the origin.
    b"set-cookie", b"set-cookie2", b"clear-site-data", b"strict-transport-security", b"public-key-pins",
    b"public-key-pins-report-only", b"expect-ct", b"alt-svc", b"nel", b"report-to",
    b"reporting-endpoints", b"accept-ch", b"critical-ch", b"delegate-ch", b"service-worker-allowed",
    b"set-login", b"use-as-dictionary", b"origin-trial", b"origin-agent-cluster", b"speculation-rules",
    b"supports-loading-mode", b"activate-storage-access", b"sourcemap", b"x-sourcemap",
    # Where it goes, and whom it asks for a password.
    b"location", b"refresh", b"link", b"content-location", b"www-authenticate", b"authentication-info",
    # What says how it treats the answer: the gateway's own word alone counts.
    b"content-security-policy", b"content-security-policy-report-only", b"x-content-type-options",
    b"permissions-policy", b"document-policy", b"timing-allow-origin", b"date", b"age",
}  # fmt: skip
_NOT_OUT_PREFIXES = (
    # What a proxy before the gateway would obey: files of its own, places within it.
    b"x-accel-", b"x-sendfile", b"x-lighttpd-", b"x-litespeed-", b"surrogate-",
    b"sandman-", b"proxy-", b"access-control-", b"cross-origin-", b"sec-", b"attribution-reporting-",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """A server in a sandbox, and where callers see it.

    Args:
        number: its port.
        prefix: what its paths begin with at the gateway, without a slash at the end.
        path: of this call, without the prefix, percent-encoded as it came.
    """

    number: int
    prefix: str
    path: str

    @property
    def tail(self) -> str:
        """The path at the daemon, below `/v1/`."""
        return f"ports/{self.number}{self.path}"

    def request_headers(self, given: Iterable[Header]) -> list[Header]:
        """Those that go in."""
        headers = list(given)
        named = _named(headers)
        passed = [
            (name, value)
            for name, value in headers
            if name not in _NOT_IN and name not in named and not name.startswith(_NOT_IN_PREFIXES)
        ]
        if any(name == b"transfer-encoding" for name, _ in headers):
            # It overrides the length, which may be a lie (RFC 9112, 6.3).
            passed = [header for header in passed if header[0] != b"content-length"]
        return [*passed, (b"x-forwarded-prefix", self.prefix.encode())]

    def response_headers(self, given: Iterable[Header]) -> list[Header]:
        """Those that come out, the port's mark among them."""
        headers = [(name.lower(), value) for name, value in given]
        named = _named(headers)
        passed = [
            (name, value)
            for name, value in headers
            if name not in _NOT_OUT and name not in named and not name.startswith(_NOT_OUT_PREFIXES)
        ]
        given_place = next((value for name, value in headers if name == b"location"), b"")
        if given_place and (place := self.location(given_place.decode("latin-1"))) is not None:
            passed.append((b"location", place.encode("latin-1")))
        return [*passed, (names.HEADER_PORT.lower().encode(), str(self.number).encode())]

    def location(self, given: str) -> str | None:
        """Where a redirect leads, as callers see it; None when that is not this very server."""
        origin = f"http://localhost:{self.number}"
        try:
            place = urlsplit(urljoin(f"{origin}{self.path or '/'}", given))
            port = place.port or _DEFAULT_PORTS.get(place.scheme)
            is_here = place.scheme in _DEFAULT_PORTS and port == self.number
        except ValueError:
            return None
        if not is_here or place.hostname not in {"localhost", "127.0.0.1", "::1"}:
            return None
        if "\\" in given or place.username is not None:
            return None  # what some read as a slash, and as another host
        path = _without_dots(place.path)
        if path == self.prefix or path.startswith(f"{self.prefix}/"):
            path = path.removeprefix(self.prefix)  # it goes by X-Forwarded-Prefix
        query = f"?{place.query}" if place.query else ""
        fragment = f"#{place.fragment}" if place.fragment else ""
        return f"{self.prefix}{path or '/'}{query}{fragment}"


def _named(headers: Iterable[Header]) -> set[bytes]:
    """Headers that the Connection header declares to be of this connection alone."""
    options = b",".join(value for name, value in headers if name == b"connection")
    return {option.strip().lower() for option in options.split(b",")} - {b"content-length", b""}


def _without_dots(path: str) -> str:
    """The path as every client resolves it, also where a dot is percent-encoded: it climbs nowhere."""
    kept: list[str] = []
    segments = path.split("/")[1:] or [""]
    for segment in segments:
        plain = segment.lower().replace("%2e", ".")
        if plain == "..":
            kept = kept[:-1]
        elif plain != ".":
            kept.append(segment)
    if segments[-1].lower().replace("%2e", ".") in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)
