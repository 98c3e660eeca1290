"""The parser of untrusted answers alone: any split of the bytes, everything doubtful refused, and never
another opinion than h11's of what it accepts."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon import answers
from daemon.answers import AnswerError, AnswerReader, parse_answer
from daemon.config import MAX_HEAD_BYTES, MAX_HEADERS


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


def read(
    pieces: list[bytes], method: str = "GET", *, upgrade: bool = False
) -> tuple[AnswerReader, bytes]:
    """A reader that was fed these, and the body that it gave."""
    reader = AnswerReader(method, upgrade=upgrade)
    body = b"".join(part for piece in pieces for part in reader.feed(piece))
    return reader, body


def by_h11(data: bytes, method: str) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
    """What h11 makes of an answer and the end of its connection; None: nothing whole."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    status, headers, body = 0, [], b""
    try:
        while True:
            event = client.next_event()
            if isinstance(event, h11.Response):
                status, headers = event.status_code, list(event.headers)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, headers, bytes(body)
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None


TOKENS = st.text("abcXYZ019-_!#", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)
OWN = {"content-length", "transfer-encoding", "connection", "upgrade"}
HEADERS = st.lists(st.tuples(TOKENS, VALUES).filter(lambda h: h[0].lower() not in OWN), max_size=5)
BODIES = st.lists(st.binary(max_size=40), max_size=5)
CUTS = st.lists(st.integers(0, 10**6), max_size=12)


@given(
    st.sampled_from([200, 201, 204, 206, 302, 304, 401, 404, 418, 500, 599]),
    HEADERS, BODIES, st.sampled_from(["length", "chunked", "end"]), CUTS,
    st.sampled_from(["GET", "POST", "HEAD", "DELETE"]), st.integers(0, 3),
)  # fmt: skip
def test_any_answer_at_any_split_is_read_as_h11_reads_it(
    status, headers, parts, framing, cuts, method, interim
) -> None:
    body = b"".join(parts)
    lines = [f"HTTP/1.1 {status} Some Reason", *(f"{name}:  {value} " for name, value in headers)]
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in parts if part)
        body += b"0\r\nTrailer: x\r\n\r\n"
    if method == "HEAD" or status in {204, 304}:
        body = b""
    data = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * interim
    data += "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    expected = by_h11(data, method)
    assert expected is not None
    reader, got = read(split(data, cuts), method)
    answer = reader.answer
    assert answer is not None
    assert reader.may_end
    assert reader.is_done or framing == "end"
    pairs = [(name.encode(), value.encode()) for name, value in answer.headers]
    assert (answer.status, pairs, got) == expected


@given(st.binary(max_size=200), CUTS)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx", [])
@example(b"HTTP/1.0 200 OK\r\n\r\nrest", [3])
def test_no_bytes_break_the_reader(data: bytes, cuts: list[int]) -> None:
    try:
        reader, body = read(split(data, cuts))
    except AnswerError:
        return
    assert len(body) <= len(data)
    assert reader.answer is not None or not body


MUTANTS = st.sampled_from(
    [b"\r", b"\n", b"\0", b" ", b":", b"\t", b"chunked", b"5", b"\xff", b"\r\n"]
)


@given(st.integers(0, 200), MUTANTS, st.booleans())
def test_what_is_accepted_is_read_the_same_by_h11(place, mutant, replace) -> None:
    data = b"HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 5\r\nX-A: b\r\n\r\n12345"
    place %= len(data)
    data = data[:place] + mutant + data[place + (1 if replace else 0) :]
    try:
        reader, body = read([data])
    except AnswerError:
        return
    answer = reader.answer
    if answer is None or not reader.may_end:
        return
    expected = by_h11(data, "GET")
    assert expected is not None
    assert (answer.status, body) == (expected[0], expected[2])


@pytest.mark.parametrize(
    "head",
    [
        b"", b"200 OK", b"HTTP/2 200 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 600 No", b"HTTP/1.1 099 No",
        b"HTTP/1.1  200 OK", b"HTTP/1.1 20x", b"HTTP/1.1 200 OK\r\n a: b", b"HTTP/1.1 200 OK\r\na : b",
        b"HTTP/1.1 200 OK\r\n: b", b"HTTP/1.1 200 OK\r\na", b"HTTP/1.1 200 OK\r\na: \0",
        b"HTTP/1.1 200 OK\r\na: b\n c: d", b"HTTP/1.1 200 OK\r\n\xe9: b",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked", b"HTTP/1.1 200 OK" + b"\r\na: b" * (MAX_HEADERS + 1),
    ],
)  # fmt: skip
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(AnswerError):
        parse_answer(head, "GET")


@pytest.mark.parametrize(
    "data",
    [
        b"x" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\na: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (answers.MAX_INTERIM + 1),
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    ],
)
def test_answers_that_are_refused(data: bytes) -> None:
    with pytest.raises(AnswerError):
        read(split(data, [100, 1000, 20_000]))


def test_after_the_change_of_protocol_bytes_are_bytes() -> None:
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\n\r\n"
    reader, rest = read([head[:9], head[9:] + b"ab", b"cd"], upgrade=True)
    assert reader.is_switched
    assert rest == b"abcd"
    with pytest.raises(AnswerError, match="nobody asked"):
        read([b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n"], upgrade=True)


def test_an_end_too_early_is_none() -> None:
    for data in (b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"):
        assert not read([data])[0].may_end
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    assert not read([chunked])[0].may_end
    assert read([chunked + b"\r\n"])[0].may_end
