"""Heads of what `sandman port-forward` passes on, both ways. Pure.

The gateway adds what keeps an answer of an untrusted server from acting on the gateway's own origin, and shows its paths
below a prefix. Here the origin is a port of this machine that holds nothing else: the first is taken away again, and so
is the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection",
})  # fmt: skip
_NOT_IN = _HOP_BY_HOP | {b"host", b"authorization", b"expect"}
_NOT_OUT = _HOP_BY_HOP | {
    b"content-security-policy", b"x-content-type-options", names.HEADER_PORT.lower().encode(),
}  # fmt: skip
WEBSOCKET = b"websocket"


class RefusedError(Exception):
    """This request is not passed on. `status` and the text are what its caller gets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def is_websocket(headers: Iterable[Header]) -> bool:
    """Whether a WebSocket is asked for."""
    return any(name == b"upgrade" and value.lower() == WEBSOCKET for name, value in headers)


def request(headers: Iterable[Header], host: bytes) -> list[Header]:
    """Those that go to the gateway at this host."""
    given = list(headers)
    passed = [(b"host", host), *((name, value) for name, value in given if name not in _NOT_IN)]
    if is_websocket(given):
        return [*passed, (b"connection", b"upgrade"), (b"upgrade", WEBSOCKET)]
    if any(name == b"transfer-encoding" for name, _ in given):
        passed = [header for header in passed if header[0] != b"content-length"]
        passed.append((b"transfer-encoding", b"chunked"))
    return passed


def answer(headers: Iterable[Header], prefix: str, *, upgrade: bool = False) -> list[Header]:
    """Those that go to the caller here."""
    passed = []
    for given, value in headers:
        name = given.lower()
        if name == b"location":
            passed.append((name, _below(value.decode("latin-1"), prefix).encode("latin-1")))
        elif name not in _NOT_OUT:
            passed.append((name, value))
    if upgrade:
        passed += [(b"connection", b"upgrade"), (b"upgrade", WEBSOCKET)]
    return passed


def path(target: bytes, prefix: str) -> str:
    """The path of a request below the port.

    Raises:
        RefusedError: it is none, or could be read as one that leads elsewhere: it travels with a token.
    """
    text = target.decode("latin-1")
    if not text.startswith("/"):
        raise RefusedError(400, "only paths are forwarded")
    parts = (
        text.partition("?")[0].replace("\\", "/").lower().replace("%2e", ".").replace("%5c", "/")
    )
    if {".", ".."} & set(parts.replace("%2f", "/").split("/")):
        raise RefusedError(400, "a path with dots for a segment is not forwarded")
    return _below(text, prefix)


def check_caller(headers: Iterable[Header], hosts: Collection[str]) -> None:
    """Refuse what a page of elsewhere makes a browser send here: under a name that was bent to this machine, or from
    another origin. That the page could not read the answer is no help: the call has done what it does.

    Args:
        headers: of the request.
        hosts: names of this machine that are meant; empty: whoever is let in at its address knows what he does.

    Raises:
        RefusedError: it is one.
    """
    if not hosts:
        return
    given = [(name, value.decode("latin-1").strip().lower()) for name, value in headers]
    sites = {value for name, value in given if name == b"sec-fetch-site"}
    for name, value in given:
        if name == b"host" and _host(value) not in hosts:
            raise RefusedError(421, f"forwarded are calls to {', '.join(sorted(hosts))} alone")
        if name == b"origin" and _is_foreign(value, hosts, sites):
            raise RefusedError(403, "a page of elsewhere may call nothing here")
    if "cross-site" in sites:
        raise RefusedError(
            403, "a page of elsewhere may call nothing here; to follow its link, type the address"
        )


def _is_foreign(origin: str, hosts: Collection[str], sites: Collection[str]) -> bool:
    """A page that is to be named nowhere is `null` to itself, too: the browser says whether it is."""
    if origin == "null":
        return sites != {"same-origin"}
    return _host(origin.partition("://")[2]) not in hosts


def _host(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].lower()


def _below(text: str, prefix: str) -> str:
    """Without the prefix, by which the server may have been told to make its links."""
    rest = text.removeprefix(prefix)
    if rest != text and rest[:1] in {"", "/", "?"}:
        return rest if rest.startswith("/") else f"/{rest}"
    return text
