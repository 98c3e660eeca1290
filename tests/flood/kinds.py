"""Malformed requests by kind, the same ones for a seed. None of them can be meant by an honest caller, nor could any
do something if it were taken: bodies name a member that there is not, and targets of what changes things are nobody's."""

from __future__ import annotations

import enum
import json
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.15
"""The longest pause of a slow sender between two pieces: there are tens of them at once."""
DEPTHS = (400, 1500, 20_000, 200_000)
"""Of nesting: Python's own limit is 1000 frames, the longest text stays below every limit of bodies."""
DIGITS = 6000
"""Over the 4300 digits that Python turns into a number."""
HEADER_BYTES = (9_000, 40_000, 70_000, 300_000)
"""Around the daemon's limit (32 KiB) and the services' (64 KiB), and well over both."""
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""What a smuggler puts where the one reader sees a body and the other a request."""


NEVER_DONE = frozenset({"bad_json", "wrong_values", "huge_numbers", "deep_nesting"})
"""Kinds of bodies that nobody may take for good who is strict."""


class Then(enum.Enum):
    """What the sender does when all is sent."""

    READ = enum.auto()
    """Reads what is answered, to the end."""
    HALF_CLOSE = enum.auto()
    """Shuts down its sending side, and reads to the end."""
    LEAVE = enum.auto()
    """Goes, whether or not it was answered."""
    RESET = enum.auto()
    """Goes with a reset."""


class Malformed(NamedTuple):
    """What is sent, piece by piece, each after a pause in seconds."""

    kind: str
    pieces: tuple[tuple[float, bytes], ...]
    then: Then = Then.READ
    in_tls: bool = True
    """False: on the naked connection, where others speak TLS."""


class Aim(NamedTuple):
    """A server, as somebody knows it who may call it.

    Args:
        token: a good one, "" where none is needed.
        posts: paths that take a JSON object, and one that each would look at and refuse.
        paths: of calls without a body that change nothing.
        sockets: paths of WebSockets.
        is_tls: whether it speaks TLS.
        is_strict: whether it refuses members that it does not know; the API server's objects may have any.
    """

    token: str
    posts: tuple[tuple[str, dict[str, object]], ...]
    paths: tuple[str, ...]
    sockets: tuple[str, ...] = ()
    is_tls: bool = True
    is_strict: bool = True


def some(aim: Aim, seed: int, name: str, number: int) -> Malformed:
    """The request of that number to the server of that name: of any kind that it can be sent."""
    random = Random(f"{seed} {name} {number}")
    kind = random.choice([one for one in KINDS if aim.sockets or one != "bad_socket"])
    return KINDS[kind](aim, random)._replace(kind=kind)


def head(aim: Aim, first: bytes, *lines: bytes, token: str | None = None) -> bytes:
    """A request's head."""
    bearer = aim.token if token is None else token
    given = [b"Authorization: Bearer " + bearer.encode()] if bearer else []
    return b"\r\n".join([first, b"Host: x", *given, *lines, b"", b""])


def post(aim: Aim, path: str, body: bytes, *lines: bytes) -> bytes:
    """A whole call with this body."""
    length = b"Content-Length: %d" % len(body)
    kind = b"Content-Type: application/json"
    return head(aim, b"POST %s HTTP/1.1" % path.encode(), length, kind, *lines) + body


def _once(data: bytes, then: Then = Then.READ) -> Malformed:
    return Malformed("", ((0.0, data),), then)


def _get(aim: Aim, random: Random, *lines: bytes) -> bytes:
    return head(aim, b"GET %s HTTP/1.1" % random.choice(aim.paths).encode(), *lines)


# --- bodies --------------------------------------------------------------------------------------


def _bad_json(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    text = json.dumps({**document, "no such member": 1})
    body = random.choice((
        text[: random.randrange(1, len(text))],
        text + random.choice(("}", ",", "]", "x", '{"', "\0")),
        text.replace('"', "'"), text.replace(":", "=", 1), text.replace("1", "NaN"), text.replace("1", "Infinity"),
        text.replace("{", '{"no such member": 2, ', 1), "[" + text + "]", json.dumps(text), "7", "true", '""',
        "\ufeff" + text, "//\n" + text, text.replace("1", "01"), text.replace("1", '"\\x41"'),
    ))  # fmt: skip
    return _once(post(aim, path, body.encode()))


def _wrong_values(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    name = random.choice(list(document))
    odd: object = random.choice((
        -1, 1e308, 10**30, True, [], {}, [[]], [None], {"": {}}, "", "\0", "\ud800", "x" * 100_000, "../../..", "1e9",
    ))  # fmt: skip
    body = json.dumps({**document, name: odd, "no such member": odd})
    return _once(post(aim, path, body.encode()))


def _huge_numbers(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    number = random.choice(("9" * DIGITS, "-" + "1" * DIGITS, "1e99999", "0." + "0" * DIGITS + "1"))
    text = json.dumps({**document, "no such member": 1, random.choice(list(document)): "HERE"})
    return _once(post(aim, path, text.replace('"HERE"', number).encode()))


def _deep_nesting(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    depth = random.choice(DEPTHS)
    opened, closed = random.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    deep = (
        opened * (depth // len(opened))
        + "1"
        + (closed * (depth // len(opened))) * random.randrange(2)
    )
    if random.random() < 0.5:
        text = json.dumps({**document, random.choice(list(document)): "HERE", "no such member": 1})
        deep = text.replace('"HERE"', deep)
    return _once(post(aim, path, deep.encode()))


def _bad_utf8(aim: Aim, random: Random) -> Malformed:
    raw = random.choice(
        (b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80")
    )
    path, document = random.choice(aim.posts)
    text = json.dumps({**document, "no such member": "HERE"}).encode()
    escaped = b"".join(b"%%%02x" % byte for byte in raw)
    some_path = random.choice(aim.paths).encode()
    data = random.choice((
        post(aim, path, text.replace(b"HERE", raw)),
        post(aim, path, text.replace(b'"no', b'"' + raw)),
        post(aim, path, text.decode().encode("utf-16")),
        post(aim, path, text, b"X-Name: " + raw),
        post(aim, path, text, b"Content-Type: application/json; charset=" + raw),
        head(aim, b"GET " + some_path + b"/" + raw + b" HTTP/1.1"),
        head(aim, b"GET " + some_path + b"/" + escaped + b" HTTP/1.1"),
        head(aim, b"GET " + some_path + b"?a=" + escaped + b"&" + escaped + b"=1 HTTP/1.1"),
        head(aim, b"GET " + some_path + b" HTTP/1.1", b"Authorization: Bearer " + raw, token=""),
        head(aim, b"GET " + some_path + b" HTTP/1.1", raw + b": 1"),
    ))  # fmt: skip
    return _once(data)


# --- framing -------------------------------------------------------------------------------------


def _smuggling(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    body = json.dumps({**document, "no such member": 1}).encode()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    length = b"Content-Length: %d" % len(body)
    long = b"Content-Length: %d" % (len(chunk) + len(HIDDEN))
    te = b"Transfer-Encoding: "
    lines, rest = random.choice((
        ((long, te + b"chunked"), chunk + HIDDEN),
        ((te + b"chunked", b"Content-Length: 4"), chunk + HIDDEN),
        ((length, b"Content-Length: 0"), body + HIDDEN),
        ((b"Content-Length: 0, %d" % len(body),), body + HIDDEN),
        ((b"Content-Length: +%d" % len(body),), body + HIDDEN),
        ((b"Content-Length: 0x%x" % len(body),), body + HIDDEN),
        ((b"Content-Length: -1",), body + HIDDEN),
        ((b"Content-Length: " + b"9" * 30,), body),
        ((b"Content-Length : %d" % len(body),), body + HIDDEN),
        ((te + b"xchunked", length), body + HIDDEN),
        ((te + b"chunked, identity",), chunk + HIDDEN),
        ((te + b"gzip, chunked",), chunk + HIDDEN),
        ((te + b"chunked", te + b"identity"), chunk + HIDDEN),
        ((te + b"\x0bchunked", length), body + HIDDEN),
        ((b"Transfer-Encoding\t: chunked", length), body + HIDDEN),
        ((b"X: 1\r\n\tTransfer-Encoding: chunked", length), body),
        ((b"X: 1\nTransfer-Encoding: chunked", length), body + HIDDEN),
        ((b"X: 1\rTransfer-Encoding: chunked", length), body + HIDDEN),
        ((te + b"chunked",), b"-1\r\n" + HIDDEN),
        ((te + b"chunked",), b"0x%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" + HIDDEN),
        ((te + b"chunked",), b"f" * 30 + b"\r\n" + body),
        ((te + b"chunked",), b"%x;%s\r\n" % (len(body), b"x" * 20_000) + body + b"\r\n0\r\n\r\n"),
        ((te + b"chunked",), b"%x\r\n%sXX0\r\n\r\n" % (len(body), body) + HIDDEN),
        ((te + b"chunked",), b"%x\n%s\r\n0\r\n\r\n" % (len(body), body) + HIDDEN),
        ((te + b"chunked",), chunk[:-2] + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ))  # fmt: skip
    first = b"POST %s HTTP/1.1" % path.encode()
    return _once(head(aim, first, *lines, b"Content-Type: application/json") + rest)


def _huge_headers(aim: Aim, random: Random) -> Malformed:
    size = random.choice(HEADER_BYTES)
    path = random.choice(aim.paths).encode()
    data = random.choice((
        _get(aim, random, b"X-Long: " + b"x" * size),
        _get(aim, random, b"x" * size + b": 1"),
        _get(aim, random, *(b"X-%d: %d" % (n, n) for n in range(size // 12))),
        head(aim, b"GET " + path + b"?a=" + b"b" * size + b" HTTP/1.1"),
        head(aim, b"GET /" + b"../" * (size // 3) + b" HTTP/1.1"),
        head(aim, b"G" * size + b" / HTTP/1.1"),
        head(aim, b"GET " + path + b" HTTP/1.1", b"Authorization: Bearer " + b"t" * size, token=""),
    ))  # fmt: skip
    if random.random() < 0.1:
        endless = b"GET " + path + b" HTTP/1.1\r\nX-Endless: " + b"y" * size
        return _once(endless, Then.LEAVE)
    return _once(data)


def _bad_line(aim: Aim, random: Random) -> Malformed:
    path = random.choice(aim.paths).encode()
    first = random.choice((
        b"GET", b"GET  " + path + b" HTTP/1.1", b"GET " + path, b"GET " + path + b" HTTP/9.9", b"\0\0 / HTTP/1.1",
        b"GET " + path + b" HTTP/1.1 x", b"GET http://x" + path + b" HTTP/1.1", b"GET * HTTP/1.1", b"CONNECT x:1 HTTP/1.1",
        b"GET " + path + b"#x HTTP/1.1", b"G\xc3T / HTTP/1.1", b" GET / HTTP/1.1", b"PRI * HTTP/2.0", b"", b"GET / HTTP/1",
        b"GET " + path + b"/../../v1/info HTTP/1.1", b"GET " + path + b"/%2e%2e/%00 HTTP/1.1", b"TRACE / HTTP/1.1",
        random.randbytes(60),
    ))  # fmt: skip
    return _once(head(aim, first))


def _bad_header(aim: Aim, random: Random) -> Malformed:
    lines = random.choice((
        (b"no colon",), (b": no name",), (b"X: a\0b",), (b"Host: y",), (b"Expect: the worst",), (b"X\x7f: 1",),
        (b"Connection: upgrade, close", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"), (b"Range: bytes=9-1,x",),
        (b"Content-Encoding: gzip", b"Content-Length: 3"), (b"Sandman-Within: -1",), (b"Sandman-Boot-Id: \xff",),
        (b"Idempotency-Key: " + b"k" * 5000,), (b"Accept: " + b"a/b," * 3000,), (b"X: 1", b" folded"),
    ))  # fmt: skip
    return _once(_get(aim, random, *lines) + b"abc")


def _bad_query(aim: Aim, random: Random) -> Malformed:
    query = random.choice((
        b"wait_s=nan", b"wait_s=-1e999", b"limit=" + b"9" * DIGITS, b"%", b"%zz=%", b"&&&=&=", b"a=b" * 4000, b"path=%00",
        b"stdout=-1&stderr=x", b"state=ended&state=ended", b"run=" + b"r" * 9000, b"no%20such=1", b"?", b"a;b=c",
    ))  # fmt: skip
    return _once(head(aim, b"GET %s?%s HTTP/1.1" % (random.choice(aim.paths).encode(), query)))


# --- time ----------------------------------------------------------------------------------------


def _cut(data: bytes, count: int, random: Random) -> tuple[tuple[float, bytes], ...]:
    """The bytes in so many pieces, with a pause before each."""
    places = sorted(random.randrange(len(data) + 1) for _ in range(count - 1))
    ends = zip([0, *places], [*places, len(data)], strict=True)
    return tuple((random.random() * PAUSE_S, data[a:b]) for a, b in ends)


def _slow_head(aim: Aim, random: Random) -> Malformed:
    data = _get(aim, random, b"X-Slow: 1")[: -random.randrange(1, 5)]
    return Malformed("", _cut(data, 5, random), random.choice((Then.LEAVE, Then.RESET)))


def _slow_body(aim: Aim, random: Random) -> Malformed:
    """It does not come to its end, or it does and is not worth having waited for."""
    path, document = random.choice(aim.posts)
    body = json.dumps({**document, "no such member": "x" * random.randrange(9000)}).encode()
    whole = post(aim, path, body)
    if random.random() < 0.5:
        return Malformed("", _cut(whole, 6, random))
    return Malformed("", _cut(whole[:-2], 4, random), random.choice((Then.LEAVE, Then.RESET)))


def _half_closed(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    whole = post(aim, path, json.dumps({**document, "no such member": 1}).encode())
    size = random.choice((0, 1, 20, len(whole) // 2, len(whole) - 1, len(whole)))
    return Malformed("", ((0.0, whole[:size]),), Then.HALF_CLOSE)


def _reset(aim: Aim, random: Random) -> Malformed:
    path, document = random.choice(aim.posts)
    whole = post(aim, path, json.dumps({**document, "no such member": 1}).encode())
    return _once(whole[: random.randrange(len(whole) + 1)], Then.RESET)


# --- others --------------------------------------------------------------------------------------


def _bad_token(aim: Aim, random: Random) -> Malformed:
    text = f"{random.getrandbits(128):x}"
    token = random.choice((
        f"smk_acme_{text}", f"sms_{text}", f"{text}.{text}.{text}", "eyJhbGciOiJub25lIn0.e30.", "x" * 8000, "a b c", ",",
    ))  # fmt: skip
    return _once(head(aim, b"GET %s HTTP/1.1" % random.choice(aim.paths).encode(), token=token))


def _not_tls(aim: Aim, random: Random) -> Malformed:
    """Where TLS is spoken, what is none; where it is not, TLS."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200)
    data = random.choice(
        (hello, hello[:6], b"\x15\x03\x03\x00\x02\x02\x28", random.randbytes(300), b"\x80\x2e\x01")
    )
    plain = head(aim, b"GET / HTTP/1.1") if aim.is_tls else hello
    then = random.choice((Then.HALF_CLOSE, Then.LEAVE, Then.RESET))
    return Malformed("", ((0.0, random.choice((data, plain))),), then, in_tls=False)


def _pipelined(aim: Aim, random: Random) -> Malformed:
    """Good ones, and then one that is none."""
    good = _get(aim, random) * random.randrange(1, 4)
    return _once(
        good
        + random.choice((b"\r\n\0\r\n\r\n", b"GET\r\n\r\n", random.randbytes(90) + b"\r\n\r\n"))
    )


def _bad_socket(aim: Aim, random: Random) -> Malformed:
    """Handshakes that are none, and frames after one that is."""
    path = random.choice(aim.sockets).encode()
    upgrade = (b"Upgrade: websocket", b"Connection: Upgrade")
    key, version = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Sec-WebSocket-Version: 13"
    lines = random.choice((
        upgrade, (*upgrade, key), (*upgrade, version), (*upgrade, key, b"Sec-WebSocket-Version: 99"),
        (*upgrade, b"Sec-WebSocket-Key: x", version), (upgrade[0], key, version),
        (*upgrade, key, version, b"Sec-WebSocket-Extensions: \xff"), (*upgrade, key, version),
    ))  # fmt: skip
    frames = random.choice(
        (
            b"\xff" * 40,
            b"\x81\x7f" + b"\xff" * 8,
            b"\x81\xfe\xff\xff" + bytes(90),
            random.randbytes(64),
        )
    )
    data = head(aim, b"GET " + path + b" HTTP/1.1", *lines) + frames
    return _once(data, random.choice((Then.HALF_CLOSE, Then.LEAVE, Then.RESET)))


KINDS: dict[str, Callable[[Aim, Random], Malformed]] = {
    "bad_json": _bad_json, "wrong_values": _wrong_values, "huge_numbers": _huge_numbers, "deep_nesting": _deep_nesting,
    "bad_utf8": _bad_utf8, "smuggling": _smuggling, "huge_headers": _huge_headers, "bad_line": _bad_line,
    "bad_header": _bad_header, "bad_query": _bad_query, "slow_head": _slow_head, "slow_body": _slow_body,
    "half_closed": _half_closed, "reset": _reset, "bad_token": _bad_token, "not_tls": _not_tls,
    "pipelined": _pipelined, "bad_socket": _bad_socket,
}  # fmt: skip
