"""A body in large pieces, however it is framed and however it arrives."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from daemon import config, http1
from daemon.exchange import CallerGoneError, Exchange

BODY = random.Random(1).randbytes(300_000)


def head(length: int | None) -> http1.Head:
    return http1.Head("PUT", "/", "", {}, length, keep_alive=True)


def chunked(body: bytes, *sizes: int) -> bytes:
    """In chunks of these sizes, over and over."""
    framed, at, turn = b"", 0, 0
    while at < len(body):
        piece = body[at : at + sizes[turn % len(sizes)]]
        framed += http1.encode_chunk(piece)
        at, turn = at + len(piece), turn + 1
    return framed + http1.LAST_CHUNK


def taken(exchange: Exchange) -> bytes:
    """The body; each piece is only good until the next one."""
    body = b""
    for piece in exchange.views():
        assert 0 < len(piece) <= config.BODY_BYTES
        body += piece
    return body


def pair(data: bytes, step: int) -> socket.socket:
    """A connection on which these bytes come, so many at a time, and then its end."""
    near, far = socket.socketpair()

    def send() -> None:
        with far:
            for at in range(0, len(data), step):
                far.sendall(data[at : at + step])

    threading.Thread(target=send, daemon=True).start()
    return near


@pytest.mark.parametrize("step", [1_000_000, 7001, 333])
@pytest.mark.parametrize("early", [0, 1, 100_001])
@pytest.mark.parametrize("sizes", [None, (65536,), (1, 100, 90_000), (5,)])
def test_31_all_of_it_and_not_a_byte_of_the_next(
    step: int, early: int, sizes: tuple[int, ...] | None
) -> None:
    body = BODY[:20_000] if sizes == (5,) else BODY
    framed = body if sizes is None else chunked(body, *sizes)
    data = framed + b"GET / next"
    with pair(data[early:], step) as sock:
        exchange = Exchange(sock, head(None if sizes else len(body)), data[:early])
        assert taken(exchange) == body
        assert exchange.body_is_done
        left = exchange.rest
        while piece := sock.recv(100_000):
            left += piece
    assert left == b"GET / next"


@pytest.mark.parametrize("cut", [1, 1000, 299_999])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_30_a_body_that_ends_early_is_none(cut: int, is_chunked: bool) -> None:
    data = (chunked(BODY, 70_000) if is_chunked else BODY)[:-cut]
    with pair(data, 65536) as sock:
        exchange = Exchange(sock, head(None if is_chunked else len(BODY)))
        with pytest.raises(CallerGoneError):
            taken(exchange)


def test_30_a_reset_is_no_end() -> None:
    sock = socket.socket()
    with pytest.raises(CallerGoneError):
        taken(Exchange(sock, head(5)))
    sock.close()
