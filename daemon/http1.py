"""HTTP/1.1 without sockets: bytes in, values out.

Strict where two readers of the same bytes could disagree: a proxy before us and this parser must
see the same requests, or a caller could smuggle one past the proxy's checks. So: CRLF only, one
framing only, one of each header that frames or authorises, digits that are ASCII digits.
"""

from __future__ import annotations

from daemon.config import MAX_HEADERS
from sandman.errors import BadRequestError
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD_END = b"\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

REASONS = {
    101: "Switching Protocols", 200: "OK", 201: "Created", 204: "No Content", 206: "Partial Content", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 410: "Gone", 413: "Content Too Large", 416: "Range Not Satisfiable",
    422: "Unprocessable Content", 500: "Internal Server Error", 503: "Service Unavailable",
    507: "Insufficient Storage",
}  # fmt: skip

TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # RFC 9110 5.6.2
TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
_TARGET = bytes(range(0x21, 0x7F))
_DIGITS = b"0123456789"
_HEX = b"0123456789abcdefABCDEF"
_ONCE = frozenset({
    "authorization", "content-length", "content-type", "expect", "host", "range",
    "sandman-boot-id", "transfer-encoding",
})  # fmt: skip
_CONTROL = "control characters in the head of the request, or lines that do not end in CRLF"
_MAX_LINE = 4096
"""Of a chunk's size line with extensions, and of all trailers together."""


class Head(NamedTuple):
    """A request without its body. `length` None: the body is chunked."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int | None
    keep_alive: bool
    knows_chunks: bool = True
    """False for HTTP/1.0, which can take no answer of unknown length."""

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits for a word before it sends the body."""
        return self.headers.get("expect", "").lower() == "100-continue"

    @property
    def has_body(self) -> bool:
        """Whether any byte of a body is announced."""
        return self.length != 0


def check_early(head: bytes) -> None:
    """Look at a head that has not come whole: who speaks TLS here, or ends lines in LF, would wait in vain.

    Raises:
        BadRequestError: what more bytes cannot mend. Of the whole head the same is said.
    """
    if head.translate(None, TEXT + b"\r\n") or head.count(b"\n") > head.count(b"\r\n"):
        raise BadRequestError(_CONTROL)


def parse_head(head: bytes) -> Head:
    """The request whose head these bytes are, without the empty line at its end.

    Raises:
        BadRequestError: anything doubtful.
    """
    lines = head.split(b"\r\n")
    if any(line.translate(None, TEXT) for line in lines):
        raise BadRequestError(_CONTROL)
    if len(lines) > MAX_HEADERS + 1:
        raise BadRequestError(f"more than {MAX_HEADERS} headers")
    method, path, query, version = _request_line(lines[0])
    headers = _headers(lines[1:])
    if version == b"HTTP/1.1" and "host" not in headers:
        raise BadRequestError("the Host header is missing")
    expect = headers.get("expect", "100-continue")
    if expect.lower() != "100-continue":
        raise BadRequestError(f"unknown expectation {expect!r}")
    # Not a plain strip(): in Latin-1 that would take bytes away which others keep.
    options = [o.strip(" \t").lower() for o in headers.get("connection", "").split(",")]
    keep_alive = version == b"HTTP/1.1" and "close" not in options
    modern = version == b"HTTP/1.1"
    return Head(method, path, query, headers, _length(headers, version), keep_alive, modern)


def _request_line(line: bytes) -> tuple[str, str, str, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise BadRequestError("the request line is not `METHOD target HTTP/1.1`")
    method, target, version = parts
    if not method or method.translate(None, TOKEN):
        raise BadRequestError("the method is not a token")
    # Absolute-form is for proxies; a fragment never travels.
    if not target.startswith(b"/") or target.translate(None, _TARGET) or b"#" in target:
        raise BadRequestError("the target must be an absolute path, percent-encoded")
    path, _, query = target.decode("ascii").partition("?")
    return method.decode("ascii"), path, query, version


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        raw, colon, value = line.partition(b":")
        # Also refuses folded lines and a space before the colon: their name is not a token.
        if not colon or not raw or raw.translate(None, TOKEN):
            raise BadRequestError("a header is not `name: value`")
        name = raw.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        if name in headers:
            if name in _ONCE:
                raise BadRequestError(f"the header {name} occurs twice")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _length(headers: dict[str, str], version: bytes) -> int | None:
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise BadRequestError("both Content-Length and Transfer-Encoding")
        if coding.lower() != "chunked" or version != b"HTTP/1.1":
            raise BadRequestError(f"transfer coding {coding!r} is not supported")
        return None
    if length is None:
        return 0
    if not is_length(length):
        raise BadRequestError("Content-Length is not a number")
    return int(length)


def is_length(text: str) -> bool:
    """Whether this is a Content-Length: digits of ASCII, of a size that exists."""
    return 0 < len(text) <= 18 and not text.encode("latin-1").translate(None, _DIGITS)


class LengthDecoder:
    """A body of known length."""

    def __init__(self, length: int) -> None:
        self.missing = length
        self.rest = b""
        """Bytes after the body: the next request's."""

    @property
    def is_done(self) -> bool:
        """Whether the body is complete."""
        return self.missing == 0

    def feed(self, data: bytes) -> list[bytes]:
        """The body's bytes among these."""
        if len(data) > self.missing:
            data, self.rest = data[: self.missing], data[self.missing :]
        self.missing -= len(data)
        return [data] if data else []

    @property
    def direct(self) -> int:
        """How many of the next bytes are the body's for certain: they need not pass by `feed`."""
        return self.missing

    def passed(self, size: int) -> None:
        """So many of them went past."""
        self.missing -= size


class ChunkedDecoder:
    """A chunked body (RFC 9112 7.1). Extensions and trailers are checked and dropped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._missing = 0
        self._step = self._size
        self._trailer_bytes = 0
        self.is_done = False
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The body's bytes among these.

        Raises:
            BadRequestError: the framing is broken.
        """
        self._buffer += data
        pieces: list[bytes] = []
        while not self.is_done:
            piece = self._step()
            if piece is None:
                return pieces
            if piece:
                pieces.append(piece)
        self.rest = bytes(self._buffer)
        return pieces

    @property
    def direct(self) -> int:
        """How many of the next bytes are the body's for certain: they need not pass by `feed`."""
        return 0 if self._buffer else self._missing

    def passed(self, size: int) -> None:
        """So many of them went past."""
        self._missing -= size
        if not self._missing:
            self._step = self._data_end

    # Each step returns None when it needs more bytes, else what it found of the body.

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _MAX_LINE:
                raise BadRequestError("a line of the chunked body is too long")
            return None
        if end > _MAX_LINE or self._buffer[end - 1 : end] != b"\r":
            raise BadRequestError("a line of the chunked body does not end in CRLF")
        line = bytes(self._buffer[: end - 1])
        del self._buffer[: end + 1]
        if line.translate(None, TEXT):
            raise BadRequestError("control characters in the chunked body's framing")
        return line

    def _size(self) -> bytes | None:
        line = self._line()
        if line is None:
            return None
        digits, extension, _ = line.partition(b";")
        if not extension:
            digits = digits.rstrip(b" \t")
        if not digits or len(digits) > 15 or digits.translate(None, _HEX):
            raise BadRequestError("a chunk's size is not a hexadecimal number")
        self._missing = int(digits, 16)
        self._step = self._data if self._missing else self._trailer
        return b""

    def _data(self) -> bytes | None:
        if not self._buffer:
            return None
        piece = bytes(self._buffer[: self._missing])
        del self._buffer[: self._missing]
        self._missing -= len(piece)
        if not self._missing:
            self._step = self._data_end
        return piece

    def _data_end(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        if self._buffer[:2] != b"\r\n":
            raise BadRequestError("a chunk is longer than its size says")
        del self._buffer[:2]
        self._step = self._size
        return b""

    def _trailer(self) -> bytes | None:
        line = self._line()
        if line is None:
            return None
        self._trailer_bytes += len(line)
        if self._trailer_bytes > _MAX_LINE:
            raise BadRequestError("the trailers are too long")
        if line and not _headers([line]).keys().isdisjoint(_ONCE):
            raise BadRequestError("a trailer that would frame or authorise the request")
        self.is_done = not line
        return b""


def body_decoder(head: Head) -> LengthDecoder | ChunkedDecoder:
    """The decoder that the head asks for."""
    return ChunkedDecoder() if head.length is None else LengthDecoder(head.length)


def encode_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Status line and headers of an answer."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk_parts(*parts: bytes | memoryview) -> list[bytes | memoryview]:
    """One chunk of these parts, without joining them."""
    return [b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n"]


def unquote(text: str, field: str) -> bytes:
    """Percent-decoded bytes of a query, where every client library writes a space as `+`.

    Raises:
        BadRequestError: a `%` without two hexadecimal digits; it names the field.
    """
    first, *others = text.encode("ascii").replace(b"+", b" ").split(b"%")
    pieces = [first]
    for part in others:
        if len(part) < 2 or part[:2].translate(None, _HEX):
            raise BadRequestError("a percent sign without two hexadecimal digits", field=field)
        pieces += [bytes((int(part[:2], 16),)), part[2:]]
    return b"".join(pieces)


def parse_query(query: str) -> dict[str, bytes]:
    """Names and decoded values of a query string.

    Raises:
        BadRequestError: malformed, or a name that occurs twice.
    """
    values: dict[str, bytes] = {}
    for pair in query.split("&") if query else ():
        raw, _, value = pair.partition("=")
        name = unquote(raw, "query").decode("utf-8", "replace")
        if name in values:
            raise BadRequestError(f"{name} occurs twice", field=name)
        values[name] = unquote(value, name)
    return values
