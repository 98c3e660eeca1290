"""What passes between callers and servers in a sandbox, and where redirects may lead. Pure."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.ports import Port
from gateway.routes import ports as routes
from sandman.errors import BadRequestError, NotFoundError

PREFIX = "/v1/sandboxes/x-1/ports/8000"
PORT = Port(8000, PREFIX, "/a/b")


def test_what_goes_in() -> None:
    given = [
        (b"host", b"gateway"), (b"authorization", b"Bearer secret"), (b"cookie", b"a=b"),
        (b"accept", b"*/*"), (b"x-own", b"1"), (b"x-own", b"2"), (b"content-length", b"3"),
        (b"connection", b"keep-alive, X-Named, content-length"), (b"x-named", b"n"),
        (b"te", b"trailers"), (b"upgrade", b"h2c"), (b"proxy-authorization", b"p"),
        (b"sandman-boot-id", b"forged"), (b"sandman-hop", b"1"), (b"x-forwarded-for", b"f"),
        (b"x-forwarded-prefix", b"forged"), (b"forwarded", b"f"), (b"expect", b"100-continue"),
        (b"sec-websocket-key", b"k"), (b"mcp-session-id", b"m"),
    ]  # fmt: skip
    assert PORT.request_headers(given) == [
        (b"accept", b"*/*"), (b"x-own", b"1"), (b"x-own", b"2"), (b"content-length", b"3"),
        (b"mcp-session-id", b"m"), (b"x-forwarded-prefix", PREFIX.encode()),
    ]  # fmt: skip


def test_a_length_that_chunks_override_does_not_go_in() -> None:
    passed = PORT.request_headers([(b"transfer-encoding", b"chunked"), (b"content-length", b"9")])
    assert passed == [(b"x-forwarded-prefix", PREFIX.encode())]


@pytest.mark.parametrize(
    "name",
    [
        "Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "NEL", "Report-To",
        "Service-Worker-Allowed", "Refresh", "Link", "WWW-Authenticate", "Proxy-Authenticate",
        "Content-Security-Policy", "X-Content-Type-Options", "Access-Control-Allow-Origin",
        "Cross-Origin-Opener-Policy", "Sandman-Port", "Sandman-Anything", "Connection", "X-Named",
        "Transfer-Encoding", "Sec-WebSocket-Accept", "Accept-CH", "Speculation-Rules",
        "X-Accel-Redirect", "X-Accel-Buffering", "X-Sendfile", "Surrogate-Control",
    ],
)  # fmt: skip
def test_what_does_not_come_out(name) -> None:
    given = [(name.encode(), b"v"), (b"Connection", b"X-Named"), (b"ETag", b"e")]
    assert PORT.response_headers(given) == [(b"etag", b"e"), (b"sandman-port", b"8000")]


@pytest.mark.parametrize(
    "name",
    ["x-auth-request-access-token", "cf-access-jwt-assertion", "x-amzn-oidc-data",
     "x-goog-iap-jwt-assertion", "x-ssl-client-cert", "x-ms-token-aad-access-token"],
)  # fmt: skip
def test_what_a_proxy_tells_of_the_caller_does_not_go_in(name) -> None:
    passed = PORT.request_headers([(name.encode(), b"v"), (b"accept", b"*/*")])
    assert passed == [(b"accept", b"*/*"), (b"x-forwarded-prefix", PREFIX.encode())]


def test_a_default_port_need_not_be_named() -> None:
    assert Port(80, PREFIX, "/").location("http://localhost/login") == f"{PREFIX}/login"
    assert Port(443, PREFIX, "/").location("https://localhost/login") == f"{PREFIX}/login"
    assert Port(443, PREFIX, "/").location("http://localhost/login") is None


def test_what_comes_out() -> None:
    given = [
        (b"Content-Type", b"text/html"),
        (b"X-A", b"1"),
        (b"X-A", b"2"),
        (b"Content-Length", b"0"),
    ]
    assert PORT.response_headers(given) == [
        (b"content-type", b"text/html"), (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"0"),
        (b"sandman-port", b"8000"),
    ]  # fmt: skip
    moved = PORT.response_headers([(b"Location", b"/login?next=%2F")])
    assert moved[0] == (b"location", f"{PREFIX}/login?next=%2F".encode())
    assert PORT.response_headers([(b"Location", b"https://evil.example/")]) == [
        (b"sandman-port", b"8000")
    ]


@pytest.mark.parametrize(
    ("given", "leads"),
    [
        ("/", "/"), ("", "/a/b"), ("c", "/a/c"), ("../c", "/c"), ("?q=1", "/a/b?q=1"), ("/a//b", "/a//b"),
        ("/a/./b/../c/", "/a/c/"), ("../../../../v1/runs/r", "/v1/runs/r"), ("/..", "/"),
        ("/%2e%2e/%2E%2e/v1/sandboxes", "/v1/sandboxes"), ("/x/%2e", "/x/"), ("/%2F..%2F", "/%2F..%2F"),
        ("http://localhost:8000/x#f", "/x#f"), ("http://127.0.0.1:8000", "/"), ("https://[::1]:8000/x", "/x"),
        (f"{PREFIX}/done", "/done"), (PREFIX, "/"), (f"{PREFIX}x", f"{PREFIX}x"), ("//localhost:8000/x", "/x"),
        (f"{PREFIX}/../../../exec", "/v1/sandboxes/exec"),
        ("https://evil.example/", None), ("//evil.example/", None), ("http://localhost/", None),
        ("http://localhost:8001/", None), ("javascript:alert(1)", None), ("data:text/html,x", None),
        ("http://localhost:8000@evil.example/", None), ("http://u@localhost:8000/", None),
        ("\\\\evil.example/", None), ("/\\evil.example", None), ("http://[", None), ("http://localhost:x/", None),
    ],
)  # fmt: skip
def test_where_a_redirect_leads(given, leads) -> None:
    assert PORT.location(given) == (None if leads is None else PREFIX + leads)


@settings(max_examples=50)
@given(
    st.text(st.sampled_from("/.\\%2eE?#:@abv1 http[]localhost8000"), max_size=40)
    | st.text(max_size=20)
)
@example("/../../../v1/runs/x")
@example("////evil.example")
def test_no_redirect_leaves_the_port(text) -> None:
    place = PORT.location(text)
    if place is None:
        return
    url = urlsplit(urljoin(f"https://gateway{PREFIX}/a/b", place))
    assert (url.scheme, url.netloc) == ("https", "gateway")
    assert url.path == PREFIX or url.path.startswith(f"{PREFIX}/")


@pytest.mark.parametrize(
    ("path", "port", "rest"),
    [
        (b"/v1/sandboxes/x-1/ports/8000", 8000, ""),
        (b"/v1/sandboxes/x-1/ports/8000/", 8000, "/"),
        (b"/v1/sandboxes/x-1/ports/1/a%2F//../\xe9", 1, "/a%2F//../\xe9"),
    ],
)
def test_paths(path, port, rest) -> None:
    sandbox, parsed = routes.parse(path)
    assert (sandbox, parsed.number, parsed.path) == ("x-1", port, rest)
    assert parsed.tail == f"ports/{port}{rest}"


@pytest.mark.parametrize("number", [b"0", b"65536", b"", b"a", b"00080", b"-1", b"8%30"])
def test_ports_that_there_are_not(number) -> None:
    with pytest.raises(BadRequestError) as refused:
        routes.parse(b"/v1/sandboxes/x-1/ports/" + number + b"/")
    assert refused.value.field == "port"


@pytest.mark.parametrize(
    "path",
    [b"/v1/sandboxes/x%2F1/ports/80/", b"/v1/sandboxes/x-1%2Fports/80/", b"/v1/%73/x/ports/1"],
)
def test_what_is_encoded_before_the_port_is_no_path(path) -> None:
    with pytest.raises(NotFoundError):
        routes.parse(path)
