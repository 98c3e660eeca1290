"""What the HTTPS server refuses by itself: each with a problem, never with a fault of its own."""

from __future__ import annotations

import json

import pytest
import trio

from sandman import names
from tests.unit.service.https import hello, respond, serving

UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
NEXT = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
REFUSED = {
    "two framings": CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + NEXT,
    "chunks in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n",
    "a coding twice": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n" + NEXT,
    "a coding that nobody knows": CHUNKED.replace(b"chunked", b"xchunked") + b"\r\n0\r\n\r\n",
    "a length that is none": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
    "another version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/2 without a word before": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "a line that is none": b"GET\r\n\r\n",
    "no UTF-8 for a WebSocket": UPGRADE
    + b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n"
    + b"Sec-WebSocket-Extensions: \xff\r\n\r\n",
}


async def said(data: bytes, app=hello) -> bytes:
    """All that comes back until the server closes."""
    async with serving(app) as server:
        stream = await server.connect()
        answer = b""
        with trio.fail_after(5):
            async with stream:
                await stream.send_all(data)
                while piece := await stream.receive_some():
                    answer += bytes(piece)
    return answer


@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_closed(name, caplog):
    answer = await said(REFUSED[name])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert f"content-type: {names.MEDIA_PROBLEM}".encode() in head
    assert b"connection: close" in head.lower()
    assert (json.loads(body)["reason"], json.loads(body)["status"]) == ("bad_request", 400)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_head_that_is_too_long_is_told_so():
    head, _, body = (await said(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["status"] == 431


async def test_an_upgrade_to_http_2_is_passed_over():
    """A proxy that passes it on would see nothing of what comes after."""

    async def version(scope, _receive, send) -> None:
        await respond(send, scope["http_version"].encode())

    settings = b"h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    answer = await said(UPGRADE + settings + b"Connection: close\r\n\r\n", version)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n1.1")


async def test_chunks_and_trailers_are_taken_and_the_connection_stays():
    good = CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n"
    answer = await said(good + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 2
