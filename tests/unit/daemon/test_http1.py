"""The HTTP parser alone: any split of the bytes, and everything doubtful refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import http1
from sandman.errors import BadRequestError


def decode_all(decoder: http1.ChunkedDecoder | http1.LengthDecoder, pieces: list[bytes]) -> bytes:
    """The body in these pieces."""
    return b"".join(part for piece in pieces for part in decoder.feed(piece))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    bounds = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def test_a_head() -> None:
    head = http1.parse_head(
        b"POST /v1/exec?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nX-A:  one\t\r\nx-a: two"
    )
    assert (head.method, head.path, head.query) == ("POST", "/v1/exec", "a=b")
    assert head.headers == {"host": "x", "content-length": "12", "x-a": "one, two"}
    assert (head.length, head.keep_alive, head.has_body) == (12, True, True)
    assert not head.expects_continue


def test_what_ends_a_connection() -> None:
    close = http1.parse_head(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: TE, Close")
    assert not close.keep_alive
    assert not http1.parse_head(b"GET / HTTP/1.0").keep_alive


@pytest.mark.parametrize("length", ["", "-1", "1 2", "0x1", "1" * 19, "\u0661", "1,1", "1_0"])
def test_lengths_that_are_none(length: str) -> None:
    with pytest.raises(BadRequestError):
        http1.parse_head(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}".encode())


@given(st.binary(max_size=300))
def test_no_head_breaks_the_parser(data: bytes) -> None:
    try:
        head = http1.parse_head(data)
    except BadRequestError:
        return
    assert head.path.startswith("/")


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(0, 10**6), max_size=20), st.binary())
def test_chunks_at_any_split(chunks: list[bytes], cuts: list[int], rest: bytes) -> None:
    body = b"".join(http1.encode_chunk(chunk) for chunk in chunks if chunk)
    body += b"0; ext=1\r\nTrailer: x\r\n\r\n" + rest
    decoder = http1.ChunkedDecoder()
    out, over = b"", b""
    for piece in split(body, cuts):
        if decoder.is_done:
            over += piece
        else:
            out += b"".join(decoder.feed(piece))
    assert out == b"".join(chunks)
    assert decoder.is_done
    assert decoder.rest + over == rest


@given(st.binary(max_size=100), st.lists(st.integers(0, 100), max_size=9), st.binary(max_size=9))
def test_a_length_at_any_split(body: bytes, cuts: list[int], rest: bytes) -> None:
    decoder = http1.LengthDecoder(len(body))
    pieces = split(body, cuts)
    pieces[-1] += rest
    assert decode_all(decoder, pieces) == body
    assert decoder.is_done
    assert decoder.rest == rest


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n", b"\r\n", b";a\r\n", b"0x1\r\n", b"+1\r\n", b"1\n", b"1\r\nab\r\n", b"1\r\na\n\n",
        b"1" * 16 + b"\r\n", b"1;" + b"x" * 5000, b"1;a\x00b\r\n", b"0\r\nTrailer: x\n\n",
        b"0\r\n" + b"A: b\r\n" * 2000, b"1;" + b"x" * 5000 + b"\r\n",
    ],
)  # fmt: skip
def test_broken_chunks(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        http1.ChunkedDecoder().feed(body)


def test_a_response_head() -> None:
    assert http1.encode_head(200, [("A", "b")]) == b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    assert http1.encode_head(299, []) == b"HTTP/1.1 299 Unknown\r\n\r\n"


@given(st.binary())
def test_percent_encoding(data: bytes) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in data)
    assert http1.unquote(encoded, "x") == data


def test_queries() -> None:
    assert http1.parse_query("") == {}
    assert http1.parse_query("a=b%20c+d&e&f=g=h") == {"a": b"b c d", "e": b"", "f": b"g=h"}
    for bad, field in (("a=1&a=2", "a"), ("a=%1", "a"), ("b&a=%", "a"), ("%g1=x", "query")):
        with pytest.raises(BadRequestError) as caught:
            http1.parse_query(bad)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "framing",
    [b"0\r\nno trailer\r\n\r\n", b"0\r\nX-Sum : 1\r\n\r\n", b"0\r\n : 1\r\n\r\n",
     b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nAuthorization: Bearer t\r\n\r\n",
     b"0\r\nX: 1\r\n folded\r\n\r\n", b"1 ;a=b\r\nx\r\n0\r\n\r\n"],
)  # fmt: skip
def test_fuzzed_framing_that_another_reader_refuses_is_refused(framing: bytes) -> None:
    with pytest.raises(BadRequestError):
        http1.ChunkedDecoder().feed(framing)


def test_fuzzed_trailers_and_blanks_that_others_take_are_taken() -> None:
    decoder = http1.ChunkedDecoder()
    assert decoder.feed(b"2 \t\r\nab\r\n0;x y\r\nX-Sum:\t1 \r\n\r\nnext") == [b"ab"]
    assert (decoder.is_done, decoder.rest) == (True, b"next")


@pytest.mark.parametrize("option", ["\x85close", "close\xa0"])
def test_fuzzed_option_with_latin_1_blanks_is_no_close(option: str) -> None:
    head = f"GET / HTTP/1.1\r\nHost: x\r\nConnection: {option}".encode("latin-1")
    assert http1.parse_head(head).keep_alive


@pytest.mark.parametrize(
    "early",
    [b"GET / HTTP/1.1\nHost: x\n", b"\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nX: \0"],
)
def test_what_no_more_bytes_can_mend_is_refused_early(early: bytes) -> None:
    with pytest.raises(BadRequestError):
        http1.check_early(early)


@given(st.integers(0, 74))
def test_the_beginning_of_a_head_is_not_refused(size: int) -> None:
    head = (
        b"GET /x HTTP/1.1\r\nHost: x\r\nX-Name: caf\xe9\t1\r\nX-Last: the end of it is near\r\n\r"
    )
    http1.check_early(head[:size])
