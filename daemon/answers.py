"""Answers of servers that run in the sandbox, without sockets: bytes in, values out.

Such a server is a program that nobody vouches for, and what it says goes on to a proxy and to callers. So
its answers are parsed as strictly as requests are, never passed through: CRLF only, one framing only, no
header that two readers could read differently, everything within limits.
"""

from __future__ import annotations

from daemon import http1
from daemon.config import MAX_HEAD_BYTES, MAX_HEADERS
from sandman.errors import BadRequestError
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_INTERIM = 10
"""Answers 1xx before the one that counts; each is read and dropped."""
SWITCHED = 101
Header = tuple[str, str]


class AnswerError(Exception):
    """What came is no HTTP answer, or one that breaks a limit; the text says how."""


class Answer(NamedTuple):
    """A head. `length` None: of a body that ends by its chunks or with the connection."""

    status: int
    headers: tuple[Header, ...]
    has_body: bool
    length: int | None
    is_chunked: bool


class EndDecoder:
    """A body that ends with the connection."""

    is_done = False

    def feed(self, data: bytes) -> list[bytes]:
        """All of it."""
        return [data] if data else []


class AnswerReader:
    """One answer, from its first byte to its last.

    Args:
        method: of the request: HEAD's answer has no body.
        upgrade: whether 101 was asked for.
    """

    def __init__(self, method: str, *, upgrade: bool) -> None:
        self._method = method
        self._upgrade = upgrade
        self._buffer = b""
        self._interim = 0
        self._body: http1.LengthDecoder | http1.ChunkedDecoder | EndDecoder | None = None
        self.answer: Answer | None = None
        """Once its head is there."""

    @property
    def is_done(self) -> bool:
        """Whether nothing more of it can come."""
        return self._body is not None and self._body.is_done

    @property
    def may_end(self) -> bool:
        """Whether the connection may end now without anything missing."""
        return self.is_done or isinstance(self._body, EndDecoder)

    @property
    def is_switched(self) -> bool:
        """Whether it is another protocol from here on; then `feed` gives its bytes."""
        return self.answer is not None and self.answer.status == SWITCHED

    def feed(self, data: bytes) -> list[bytes]:
        """The body's bytes among these.

        Raises:
            AnswerError: it is none.
        """
        if self._body is None:
            data = self._head(self._buffer + data)
            if self._body is None:
                self._buffer = data
                return []
        try:
            return self._body.feed(data) if data else []
        except BadRequestError as error:
            raise AnswerError(error.detail) from None

    def _head(self, data: bytes) -> bytes:
        """Take heads off these bytes; the rest."""
        while self._body is None:
            end = data.find(http1.HEAD_END, 0, MAX_HEAD_BYTES)
            if end < 0:
                if len(data) >= MAX_HEAD_BYTES:
                    raise AnswerError(f"its head is over {MAX_HEAD_BYTES} bytes")
                return data
            answer = parse_answer(data[:end], self._method)
            data = data[end + len(http1.HEAD_END) :]
            self._begin(answer)
        return data

    def _begin(self, answer: Answer) -> None:
        if answer.status == SWITCHED:
            _check_switch(answer, asked=self._upgrade)
        elif answer.status < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise AnswerError(f"more than {MAX_INTERIM} interim answers")
            return
        self.answer = answer
        if answer.status == SWITCHED:
            self._body = EndDecoder()
        elif not answer.has_body:
            self._body = http1.LengthDecoder(0)
        elif answer.is_chunked:
            self._body = http1.ChunkedDecoder()
        else:
            self._body = (
                EndDecoder() if answer.length is None else http1.LengthDecoder(answer.length)
            )


def parse_answer(head: bytes, method: str) -> Answer:
    """The head that these bytes are, without the empty line at its end.

    Raises:
        AnswerError: anything doubtful.
    """
    lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS + 1:
        raise AnswerError(f"more than {MAX_HEADERS} headers")
    if any(line.translate(None, http1.TEXT) for line in lines):
        raise AnswerError("control characters in its head")
    status, modern = _status_line(lines[0])
    headers = tuple(_header(line) for line in lines[1:])
    chunked, length = _framing(headers, modern=modern)
    has_body = method != "HEAD" and status >= 200 and status not in {204, 304}
    return Answer(status, headers, has_body, length, chunked)


def _status_line(line: bytes) -> tuple[int, bool]:
    version, _, rest = line.partition(b" ")
    code, _, _ = rest.partition(b" ")
    if version not in {b"HTTP/1.1", b"HTTP/1.0"} or len(code) != 3 or not code.isdigit():
        raise AnswerError("it does not begin with `HTTP/1.1` and a status")
    status = int(code)
    if not 100 <= status <= 599:
        raise AnswerError(f"there is no status {status}")
    return status, version == b"HTTP/1.1"


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    # Also refuses folded lines and a space before the colon: their name is not a token.
    if not colon or not name or name.translate(None, http1.TOKEN):
        raise AnswerError("a header is not `name: value`")
    return name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")


def _framing(headers: Sequence[Header], *, modern: bool) -> tuple[bool, int | None]:
    codings = [value for name, value in headers if name == "transfer-encoding"]
    lengths = [value for name, value in headers if name == "content-length"]
    if len(codings) + len(lengths) > 1:
        raise AnswerError("more than one of Content-Length and Transfer-Encoding")
    if codings:
        if codings[0].lower() != "chunked" or not modern:
            raise AnswerError(f"transfer coding {codings[0][:40]!r} is not supported")
        return True, None
    if not lengths:
        return False, None
    if not http1.is_length(lengths[0]):
        raise AnswerError("Content-Length is not a number")
    return False, int(lengths[0])


def _check_switch(answer: Answer, *, asked: bool) -> None:
    upgrades = [value.lower() for name, value in answer.headers if name == "upgrade"]
    if not asked or upgrades != ["websocket"]:
        raise AnswerError("it changes to a protocol that nobody asked for")
