"""Servers inside the sandbox, as the daemon reaches them: good ones, hostile ones, and none."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.harness import head, read_all, wait_until
from tests.unit.daemon.servers import call, says, until, whole

if TYPE_CHECKING:
    import socket

# --- what passes -----------------------------------------------------------------------------------


def test_a_request_as_the_server_gets_it(daemon, serve) -> None:
    server = serve(
        says(whole(b"hi", b"X-Own: 1", b"Connection: x-mine", b"X-Mine: 2", b"Sandman-Port: 9"))
    )
    answer = daemon.client.get(
        f"/v1/ports/{server.port}/a%2Fb/../c%ff%00?q=%20&r&%ff=%FE",
        headers={"X-A": "1", "Cookie": "a=b", "Proxy-X": "2", "Sandman-Y": "3", "TE": "trailers",
                 "Connection": "x-named", "X-Named": "4", "Upgrade": "h2c"},
    )  # fmt: skip
    assert (answer.status_code, answer.content) == (200, b"hi")
    assert answer.headers["sandman-port"] == str(server.port)
    assert answer.headers["x-own"] == "1"
    assert "x-mine" not in answer.headers
    [got] = server.heads
    line, *lines = got.decode().split("\r\n")
    headers = dict(text.lower().split(": ", 1) for text in lines)
    assert line.startswith("GET /")
    assert line.endswith("/c%ff%00?q=%20&r&%ff=%FE HTTP/1.1")
    assert headers["host"] == f"localhost:{server.port}"
    assert headers["x-forwarded-prefix"] == f"/v1/ports/{server.port}"
    assert headers["connection"] == "close"
    assert (headers["x-a"], headers["cookie"]) == ("1", "a=b")
    assert not headers.keys() & {
        "authorization",
        "proxy-x",
        "sandman-y",
        "te",
        "x-named",
        "upgrade",
    }


def test_the_path_is_the_servers_own_byte_for_byte(daemon, serve) -> None:
    server = serve(says(whole(b"")))
    for path in ("", "/", "//x", "/../../v1/info", "/%2e%2e/?a=//b", "/a;b=c/@:"):
        daemon.raw(head("GET", f"/v1/ports/{server.port}{path}", "Connection: close"))
        assert server.heads.pop().split(b" ")[1].decode() == (path or "/")


def test_the_prefix_that_callers_see_is_the_gateways_word(daemon, serve) -> None:
    server = serve(says(whole(b"")))
    call(daemon, server.port, headers={"X-Forwarded-Prefix": "/v1/sandboxes/x/ports/1"})
    assert b"X-Forwarded-Prefix: /v1/sandboxes/x/ports/1\r\n" in server.heads[0] + b"\r\n"


def test_a_server_on_ipv6_alone_is_found(daemon, serve) -> None:
    try:
        server = serve(says(whole(b"six")), "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert call(daemon, server.port).content == b"six"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("streamed", [True, False])
def test_bodies_go_up_and_come_back(daemon, serve, method, streamed) -> None:
    data = bytes(range(256)) * 2000

    def talk(sock: socket.socket, rest: bytes) -> None:
        body = rest
        while not (body.endswith(b"0\r\n\r\n") if streamed else len(body) >= len(data)):
            body += sock.recv(65536)
        sock.sendall(whole(b"%d" % (len(unchunked(body)) if streamed else len(body))))

    server = serve(talk)
    content = iter([data[:1000], data[1000:]]) if streamed else data
    answer = call(daemon, server.port, "/", method, content=content)
    assert answer.content == b"%d" % len(data)


def unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


def test_a_body_that_waits_for_a_word_gets_it(daemon, serve) -> None:
    def talk(sock: socket.socket, rest: bytes) -> None:
        while len(rest) < 3:
            rest += sock.recv(100)
        sock.sendall(whole(rest))

    server = serve(talk)
    with daemon.connect() as sock:
        expect = ("Content-Length: 3", "Expect: 100-continue", "Connection: close")
        sock.sendall(head("POST", f"/v1/ports/{server.port}/", *expect))
        assert until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert read_all(sock).endswith(b"abc")
    assert b"Expect" not in server.heads[0]


@pytest.mark.parametrize(
    ("answer", "body", "length"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nT: x\r\n\r\n",
         b"abc", None),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end", None),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old", None),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + whole(b"late"), b"late", "4"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", None),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", "9"),
        (whole(b"x") + b"more than was said", b"x", "1"),
        (whole(b""), b"", "0"),
    ],
)  # fmt: skip
def test_every_way_to_end_an_answer(daemon, serve, answer, body, length) -> None:
    server = serve(says(answer))
    got = call(daemon, server.port)
    assert got.content == body
    assert got.headers.get("content-length") == length
    assert "t" not in got.headers
    # The caller's own connection goes on.
    assert daemon.client.get("/healthz").status_code == 200


def test_a_head_has_no_body_and_keeps_its_length(daemon, serve) -> None:
    server = serve(says(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"))
    got = call(daemon, server.port, "/", "HEAD")
    assert (got.status_code, got.headers["content-length"], got.content) == (200, "1000", b"")


def test_two_cookies_stay_two(daemon, serve) -> None:
    server = serve(says(whole(b"", b"Set-Cookie: a=1", b"Set-Cookie: b=2")))
    assert call(daemon, server.port).headers.get_list("set-cookie") == ["a=1", "b=2"]


def test_what_comes_in_pieces_is_passed_on_at_once(daemon, serve) -> None:
    go = threading.Event()

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        assert go.wait(10)
        sock.sendall(b"data: 2\n\n")

    server = serve(talk)
    with daemon.client.stream("GET", f"/v1/ports/{server.port}/") as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b"data: 1\n\n"
        go.set()
        assert next(chunks) == b"data: 2\n\n"


def test_who_does_not_read_holds_up_who_writes(daemon, serve) -> None:
    sent = [0]

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(100):
            sock.sendall(b"x" * 1_000_000)
            sent[0] += 1

    server = serve(talk)
    with daemon.client.stream("GET", f"/v1/ports/{server.port}/") as answer:
        assert wait_until(lambda: sent[0] > 0)
        last = -1
        while last != sent[0]:
            last = sent[0]
            time.sleep(0.2)
        assert last < 60  # what sockets hold, and no more
        assert sum(map(len, answer.iter_raw())) == 100_000_000


def test_an_answer_before_the_end_of_the_upload_is_passed_on(daemon, serve) -> None:
    server = serve(says(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"))
    with daemon.connect() as sock:
        sock.sendall(
            head("POST", f"/v1/ports/{server.port}/", "Content-Length: 100000000") + b"some"
        )
        assert until(sock, b"\r\n\r\nno").startswith(b"HTTP/1.1 413")
    answer = call(daemon, server.port, "/", "POST", content=b"x" * 20_000_000)
    assert (answer.status_code, answer.content) == (413, b"no")
