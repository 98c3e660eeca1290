"""Requests on a connection: what our parser takes h11 takes, too, and both mean the same by it.

h11 stands for the proxy in front of us: when two readers of the same bytes disagree where a request
ends, a caller can smuggle one past the first reader's checks. Where ours refuses what h11 takes, the
request must have one of the listed faults; and what has one must be refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import h11

from daemon import config
from daemon.connection import Connection
from daemon.exchange import Response
from sandman.errors import SandmanError
from tests.fuzz.choices import each_byte, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange

Request = tuple[str, str, tuple[tuple[str, str], ...], bytes]
"""Method, target, headers (lower case, joined, sorted), body."""

_SEED_BYTES = 256 * 1024
"""Room for h11, well over what ours takes: it must not be the one that gives up for length."""


class Reading(NamedTuple):
    """What a reader found: whole requests, and why it refused the rest, if it did."""

    requests: list[Request]
    refusal: str | None


def check(data: bytes) -> None:
    """Read the bytes whole, one by one and cut anyhow; compare."""
    theirs, raws, refusal = read_theirs(data)
    ours = read_ours([data])
    assert read_ours(pieces(data)) == ours, "another meaning at another split"
    if len(data) < 2000:
        assert read_ours(each_byte(data)) == ours, "another meaning byte by byte"
    for index, request in enumerate(ours.requests):
        assert index < len(theirs), f"h11 refuses what we take: {refusal}: {request}"
        assert theirs[index] == request, f"h11 reads {theirs[index]}, we read {request}"
        assert not faults(raws[index], request), f"taken with {faults(raws[index], request)}"
    if len(theirs) > len(ours.requests):
        index = len(ours.requests)
        found = faults(raws[index], theirs[index])
        assert found, f"refused for no listed fault: {ours.refusal}: {raws[index]!r}"


# --- ours ---


class Pieces:
    """A socket from which these pieces come, and into which all goes."""

    def __init__(self, data: list[bytes]) -> None:
        self._left = [piece for piece in reversed(data) if piece]
        self.sent = b""

    def recv(self, _most: int) -> bytes:
        return self._left.pop() if self._left else b""

    def send(self, data: bytes | memoryview) -> int:
        self.sent += bytes(data)
        return len(data)

    def settimeout(self, _seconds: float | None) -> None:
        """Nothing blocks."""

    def shutdown(self, _how: int) -> None:
        """There is no other side."""

    def close(self) -> None:
        """Nor anything to give back."""


def read_ours(data: list[bytes]) -> Reading:
    """What the daemon's own connection makes of it."""
    found: list[Request] = []
    refusals: list[str] = []
    sock = Pieces(data)
    Connection(sock, recorder(found, refusals)).serve()  # type: ignore[arg-type]
    if not refusals and b'"bad_request"' in sock.sent:
        refusals.append(sock.sent.rpartition(b'"detail": ')[2].decode())
    return Reading(found, refusals[0] if refusals else None)


def recorder(found: list[Request], refusals: list[str]) -> Callable[[Exchange], None]:
    """A handler that notes requests and answers them."""

    def handle(exchange: Exchange) -> None:
        try:
            body = b"".join(exchange.body())
        except SandmanError as error:
            refusals.append(str(error))
            exchange.respond(Response(error.status))
            return
        head = exchange.head
        target = f"{head.path}?{head.query}" if head.query else head.path
        headers = dict(head.headers)
        if "transfer-encoding" in headers:
            headers["transfer-encoding"] = headers["transfer-encoding"].lower()  # as h11 tells it
        found.append((head.method, target, tuple(sorted(headers.items())), body))
        exchange.respond(Response(200))

    return handle


# --- h11's ---


def read_theirs(data: bytes) -> tuple[list[Request], list[bytes], str | None]:
    """What h11 makes of it: requests, the bytes of each, and why it went no further."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_SEED_BYTES)
    found: list[Request] = []
    raws: list[bytes] = []
    left = data
    connection.receive_data(data)
    connection.receive_data(b"")
    try:
        while (request := _next_request(connection)) is not None:
            found.append(request)
            rest = connection.trailing_data[0]
            raws.append(left[: len(left) - len(rest)])
            left = rest
            if not _answer(connection):
                break
    except h11.RemoteProtocolError as error:
        return found, raws, str(error)
    return found, raws, None


def _next_request(connection: h11.Connection) -> Request | None:
    event = connection.next_event()
    if not isinstance(event, h11.Request):
        return None
    headers: dict[str, str] = {}
    for raw, value in event.headers:
        name, text = raw.decode("ascii"), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    method, target = event.method.decode("ascii"), event.target.decode("ascii")
    # A query that is empty and one that is not there are one to us.
    target = target[:-1] if target.count("?") == 1 and target.endswith("?") else target
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        body += bytes(event.data)  # type: ignore[union-attr]
    return method, target, tuple(sorted(headers.items())), body


def _answer(connection: h11.Connection) -> bool:
    """Answer, and say whether another request may follow."""
    connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
        return False
    connection.start_next_cycle()
    return True


# --- what ours refuses on purpose ---

_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ONCE = ("authorization", "content-length", "content-type", "expect", "host", "range",
         "sandman-boot-id", "transfer-encoding")  # fmt: skip
_MAX_FRAMING = 4096
"""Bytes of a line of the chunked body's framing, and of all trailers."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")


def faults(raw: bytes, request: Request) -> list[str]:
    """Which of the listed faults a request has that h11 takes. Each could be read in two ways."""
    end = _END_OF_HEAD.search(raw)
    assert end is not None
    head = raw[: end.start()].removesuffix(b"\r")
    lines = re.split(rb"\r?\n", head)
    version = lines[0].rsplit(b" ", 1)[-1]
    headers = _raw_headers(lines[1:])
    seen, values = {name for name, _ in headers}, dict(headers)
    sizes, trailers = _framing(raw[end.end() :]) if "transfer-encoding" in seen else ([], b"")
    length = values.get("content-length", b"0")
    framing = [*sizes, *trailers.split(b"\r\n")]
    has = {
        "a line that ends in LF alone": _BARE_LF.search(raw[: end.end()] + trailers),
        "a control character": any(_CONTROL.search(line) for line in [*lines, *framing]),
        "a folded header": any(
            line[:1] in {b" ", b"\t"} for line in [*lines[1:], *trailers.split(b"\r\n")]
        ),
        "a trailer that means something": any(
            line.partition(b":")[0].decode("latin-1").lower() in _ONCE
            for line in trailers.split(b"\r\n")
        ),
        "another version": version not in {b"HTTP/1.0", b"HTTP/1.1"},
        "a target that is no path": not request[1].startswith("/") or "#" in request[1],
        "a header twice that may occur once": any(
            sum(name == once for name, _ in headers) > 1 for once in _ONCE
        ),
        "an odd length": not length.isdigit() or len(length) > 18,
        "two framings": {"content-length", "transfer-encoding"} <= seen,
        "chunks in HTTP/1.0": "transfer-encoding" in seen and version == b"HTTP/1.0",
        "an unknown expectation": values.get("expect", b"100-continue").lower() != b"100-continue",
        "too many headers": len(lines) > config.MAX_HEADERS + 1,
        "a long head": len(head) > config.MAX_HEAD_BYTES - 4,
        "a size of too many digits": any(len(_digits(line)) > 15 for line in sizes),
        "a long line of framing": any(len(line) >= _MAX_FRAMING for line in framing),
        "long trailers": len(trailers.replace(b"\r\n", b"")) > _MAX_FRAMING,
    }
    return [name for name, value in has.items() if value]


def _raw_headers(lines: list[bytes]) -> list[tuple[str, bytes]]:
    found = (line.partition(b":") for line in lines if line[:1] not in {b" ", b"\t"})
    return [(name.decode("latin-1").lower(), value.strip(b" \t")) for name, _, value in found]


def _framing(body: bytes) -> tuple[list[bytes], bytes]:
    """The lines with the chunks' sizes, and all after the last of them."""
    sizes: list[bytes] = []
    while True:
        line, _, body = body.partition(b"\r\n")
        sizes.append(line)
        size = int(_digits(line), 16)
        if size == 0:
            return sizes, body
        body = body[size + 2 :]


def _digits(line: bytes) -> bytes:
    match = re.match(rb"[0-9a-fA-F]+", line)
    assert match is not None
    return match[0]
