"""Heads that `sandman port-forward` passes on."""

from __future__ import annotations

import pytest

from sandman.cli import heads
from sandman.cli.heads import RefusedError

PREFIX = "/v1/sandboxes/box-1/ports/80"
HERE = frozenset({"localhost", "127.0.0.1", "::1"})


def test_a_request_keeps_what_is_the_servers_and_loses_what_is_this_connections():
    given = [
        (b"host", b"localhost:8080"), (b"authorization", b"Basic x"), (b"connection", b"keep-alive"),
        (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"3"), (b"expect", b"100-continue"),
    ]  # fmt: skip
    passed = heads.request(given, b"gateway:8443")
    assert passed == [
        (b"host", b"gateway:8443"), (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"3"),
    ]  # fmt: skip
    chunked = [(b"transfer-encoding", b"chunked"), (b"content-length", b"9")]
    assert heads.request(chunked, b"g") == [(b"host", b"g"), (b"transfer-encoding", b"chunked")]
    socket = [(b"upgrade", b"WebSocket"), (b"connection", b"Upgrade"), (b"sec-websocket-key", b"k")]
    assert heads.request(socket, b"g")[1:] == [
        (b"sec-websocket-key", b"k"), (b"connection", b"upgrade"), (b"upgrade", b"websocket"),
    ]  # fmt: skip


def test_an_answer_loses_what_the_gateway_put_there_for_its_own_origin():
    given = [
        (b"Content-Security-Policy", b"sandbox"), (b"X-Content-Type-Options", b"nosniff"), (b"Sandman-Port", b"80"),
        (b"Content-Type", b"text/html"), (b"Location", f"{PREFIX}/next?x=1".encode()), (b"Connection", b"close"),
    ]  # fmt: skip
    assert heads.answer(given, PREFIX) == [
        (b"content-type", b"text/html"), (b"location", b"/next?x=1"),
    ]  # fmt: skip
    assert heads.answer([(b"location", PREFIX.encode())], PREFIX) == [(b"location", b"/")]
    assert heads.answer([(b"location", b"/v1/other")], PREFIX) == [(b"location", b"/v1/other")]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/", "/"),
        (b"/a%2Fb//c?q=../x", "/a%2Fb//c?q=../x"),
        (b"/...", "/..."),
        # A server that heeds X-Forwarded-Prefix makes its links so.
        (f"{PREFIX}/static/x.js".encode(), "/static/x.js"),
        (f"{PREFIX}?x".encode(), "/?x"),
        (f"{PREFIX}80/x".encode(), f"{PREFIX}80/x"),
    ],
)
def test_paths_below_the_port(target, path):
    assert heads.path(target, PREFIX) == path


@pytest.mark.parametrize(
    "target",
    [b"*", b"http://other/", b"/a/../../exec", b"/%2e%2E/exec", b"/.", b"/a%2f..%2fexec", b"/a\\..\\b", b"/a%5C..%5Cb"],
)  # fmt: skip
def test_what_somebody_between_may_read_as_another_path_is_refused(target):
    with pytest.raises(RefusedError) as refused:
        heads.path(target, PREFIX)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8080"}, None),
        ({"host": "127.0.0.1"}, None),
        ({"host": "[::1]:8080"}, None),
        ({"host": "LOCALHOST"}, None),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:80"}, 421),
        ({"host": "localhost", "origin": "https://evil.example"}, 403),
        ({"host": "localhost", "origin": "https://localhost.evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "origin": ""}, 403),
        ({"host": "localhost", "origin": "http://localhost:3000"}, None),
        ({"host": "localhost", "origin": "http://[::1]:3000"}, None),
        # An image, a script, a form or a link of a page of elsewhere: of these a browser tells no origin.
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost", "sec-fetch-site": " Cross-Site"}, 403),
        (
            {
                "host": "localhost",
                "origin": "http://localhost:3000",
                "sec-fetch-site": "cross-site",
            },
            403,
        ),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, None),
        ({"host": "localhost", "sec-fetch-site": "none"}, None),
        # A form of a page that wants to be named nowhere (`Referrer-Policy: no-referrer`).
        ({"host": "localhost", "origin": "null", "sec-fetch-site": "same-origin"}, None),
        (
            {
                "host": "localhost",
                "origin": "https://evil.example",
                "sec-fetch-site": "same-origin",
            },
            403,
        ),
        ({"host": "localhost", "origin": "https://evil.example", "upgrade": "websocket"}, 403),
        ({"host": "localhost", "origin": "null", "upgrade": "websocket"}, 403),
        ({"host": "localhost", "origin": "http://localhost:3000", "upgrade": "websocket"}, None),
    ],
)
def test_who_may_call(headers, status):
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    heads.check_caller(given, frozenset())
    if status is None:
        heads.check_caller(given, HERE)
        return
    with pytest.raises(RefusedError) as refused:
        heads.check_caller(given, HERE)
    assert refused.value.status == status
