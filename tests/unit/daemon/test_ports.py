"""Servers inside the sandbox, as the daemon reaches them: good ones, hostile ones, and none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from daemon import config, ports, relay
from sandman.errors import PortClosedError
from tests.unit.daemon.harness import Daemon, head, problem, read_all, small, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Server:
    """A server on the loopback that handles each connection with `talk`."""

    def __init__(self, talk: Callable[[socket.socket, bytes], None], host: str) -> None:
        self._talk = talk
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, 0), family=family)
        self.port = self._sock.getsockname()[1]
        self.heads: list[bytes] = []
        self.ended = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(20)
        with sock, contextlib.suppress(OSError):
            head, _, rest = until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")
            self.heads.append(head)
            self._talk(sock, rest)
        self.ended.release()

    def close(self) -> None:
        # A close alone does not wake who accepts.
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def until(sock: socket.socket, mark: bytes) -> bytes:
    """All that comes, up to a piece with this mark in it."""
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        if not more:
            raise ConnectionError("ended early")
        data += more
    return data


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    running: list[Server] = []

    def make(talk: Callable[[socket.socket, bytes], None], host: str = "127.0.0.1") -> Server:
        running.append(Server(talk, host))
        return running[-1]

    yield make
    for one in running:
        one.close()


def says(*pieces: bytes) -> Callable[[socket.socket, bytes], None]:
    """A server that says this to whatever it is asked, and closes."""

    def talk(sock: socket.socket, _rest: bytes) -> None:
        for piece in pieces:
            sock.sendall(piece)

    return talk


def whole(body: bytes, *lines: bytes) -> bytes:
    """An answer of known length."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *lines, b"", body])


def call(
    daemon: Daemon, port: int, path: str = "/", method: str = "GET", **kwargs
) -> httpx.Response:
    return daemon.client.request(method, f"/v1/ports/{port}{path}", **kwargs)


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


# --- what does not -------------------------------------------------------------------------------


def test_nothing_listens(daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for method in ("GET", "POST"):
        found = problem(call(daemon, port, "/", method))
        assert (found["reason"], found["status"], found["cause"]) == ("port_closed", 503, "sandbox")
        assert (found["retryable"], found["retry_after"]) == (True, 1.0)
        assert str(port) in str(found["detail"])


@pytest.mark.parametrize(
    "port", ["0", "65536", "", "x", "080", "-1", "99999999", "%38000", "8000.0"]
)
def test_ports_that_there_are_not(daemon, port) -> None:
    answer = daemon.raw(head("GET", f"/v1/ports/{port}/", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"field": "port"' in answer


def test_the_daemons_own_port_is_not_called(daemon) -> None:
    found = problem(call(daemon, daemon.port, "/healthz"))
    assert (found["reason"], found["field"]) == ("bad_request", "port")


def test_no_command_can_take_the_daemons_port(daemon) -> None:
    """Whatever is set on the socket, and whatever more precise address is asked for."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind((host, daemon.port))


def test_a_token_is_needed_and_connect_is_for_proxies(daemon, serve) -> None:
    server = serve(says(whole(b"")))
    plain = f"GET /v1/ports/{server.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert daemon.raw(plain.encode()).startswith(b"HTTP/1.1 401")
    connect = head("CONNECT", f"/v1/ports/{server.port}/", "Connection: close")
    assert daemon.raw(connect).startswith(b"HTTP/1.1 405")
    assert server.heads == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["nothing", "ssh", "half", "headers", "header", "interim", "switch", "two framings"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_answer_that_can_be_passed_on(daemon, serve, answer, method) -> None:
    server = serve(says(answer))
    found = problem(
        call(daemon, server.port, "/", method, content=b"x" if method == "POST" else None)
    )
    assert (found["reason"], found["status"], found["cause"]) == ("outcome_unknown", 502, "sandbox")
    assert not found["retryable"]


@pytest.mark.parametrize(
    ("framing", "rest"),
    [
        (b"Content-Length: 10\r\n\r\nshort", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b"nonsense\r\n"),
    ],
)
def test_an_answer_that_breaks_off_never_ends_well(daemon, serve, framing, rest) -> None:
    go = threading.Event()

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n" + framing)
        assert go.wait(10)
        sock.sendall(rest)

    server = serve(talk)
    with daemon.client.stream("GET", f"/v1/ports/{server.port}/") as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b"short"
        go.set()
        with pytest.raises(httpx.RemoteProtocolError):
            next(chunks)


def test_a_reset_in_a_body_of_no_length_is_no_end(daemon, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = serve(talk)
    with pytest.raises(httpx.RemoteProtocolError):
        call(daemon, server.port)


def test_a_server_that_breaks_off_while_it_is_written_to(daemon, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = serve(talk)
    answer = call(daemon, server.port, "/", "POST", content=b"x" * 20_000_000)
    assert problem(answer)["reason"] == "outcome_unknown"


def test_a_caller_that_leaves_ends_the_call_at_the_server(daemon, serve) -> None:
    gone = threading.Event()

    def talk(sock: socket.socket, _rest: bytes) -> None:
        if not sock.recv(1):
            gone.set()

    server = serve(talk)
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/"))
        assert wait_until(lambda: server.heads)
    assert gone.wait(5)


def test_broken_chunks_of_the_caller_reach_no_end_at_the_server(daemon, serve) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket, rest: bytes) -> None:
        got.append(rest + read_all(sock))

    server = serve(talk)
    with daemon.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{server.port}/", "Transfer-Encoding: chunked"))
        assert wait_until(lambda: server.heads)
        sock.sendall(b"1\r\na\r\nnonsense\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")
    assert server.ended.acquire(timeout=5)
    assert got in ([b""], [b"1\r\na\r\n"])


def test_a_socket_that_meets_itself_is_a_closed_port() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert ports.is_itself(sock)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with ports.dial(server.getsockname()[1]) as sock:
            assert not ports.is_itself(sock)
        number = server.getsockname()[1]
    with pytest.raises(PortClosedError):
        ports.dial(number)


# --- WebSockets ----------------------------------------------------------------------------------

UPGRADE = ("Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: k")
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nA: b\r\n\r\n"
)


@contextlib.contextmanager
def tunnel(daemon: Daemon, server: Server, early: bytes = b"") -> Iterator[socket.socket]:
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/ws", *UPGRADE) + early)
        got = b""
        while not got.endswith(b"\r\n\r\n"):
            got += sock.recv(1)
        assert got.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nSandman-Port: %d\r\n" % server.port in got
        assert b"\r\na: b\r\n" in got
        assert got.lower().count(b"upgrade: websocket") == 1
        yield sock


def test_bytes_both_ways_after_the_upgrade(daemon, serve) -> None:
    def talk(sock: socket.socket, rest: bytes) -> None:
        sock.sendall(SWITCH)
        while rest or (rest := sock.recv(65536)):
            sock.sendall(rest)
            rest = b""

    server = serve(talk)
    with tunnel(daemon, server, b"early") as sock:
        assert until(sock, b"early") == b"early"
        data = bytes(range(256)) * 8192
        sender = threading.Thread(
            target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR))
        )
        sender.start()
        back = read_all(sock)  # the half-close went there and came back
        assert (len(back), back == data) == (len(data), True)
        sender.join()
    [got] = server.heads
    assert got.startswith(b"GET /ws HTTP/1.1\r\n")
    assert b"\r\nConnection: Upgrade\r\nUpgrade: websocket" in got
    assert b"sec-websocket-key: k" in got


def test_a_servers_half_close_reaches_the_caller_who_may_still_speak(daemon, serve) -> None:
    heard: list[bytes] = []

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(SWITCH + b"bye")
        sock.shutdown(socket.SHUT_WR)
        heard.append(read_all(sock))

    server = serve(talk)
    with tunnel(daemon, server) as sock:
        assert read_all(sock) == b"bye"
        sock.sendall(b"last words")
        sock.shutdown(socket.SHUT_WR)
        assert server.ended.acquire(timeout=5)
    assert heard == [b"last words"]


def test_a_tunnel_ends_with_either_side(daemon, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), read_all(sock)))
    with tunnel(daemon, server):
        pass
    assert server.ended.acquire(timeout=5)
    short = serve(says(SWITCH, b"x"))
    with tunnel(daemon, short) as sock:
        assert read_all(sock) in {b"x", b""}


def test_an_upgrade_that_is_refused_is_an_answer(daemon, serve) -> None:
    server = serve(says(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"))
    answer = daemon.raw(head("GET", f"/v1/ports/{server.port}/", *UPGRADE, "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"\r\n\r\nno")


# --- who stalls -----------------------------------------------------------------------------------


@pytest.fixture
def impatient(start, tmp_path) -> Daemon:
    """A daemon whose limits of time are short."""
    limits = {"STALL_TIMEOUT_S": 0.4, "HALF_CLOSED_S": 0.4, "LINGER_S": 0.1}
    return start(program=small(tmp_path, **limits))


def test_a_server_that_is_slow_to_answer_has_all_the_time(impatient, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        time.sleep(1)
        sock.sendall(whole(b"at last"))

    assert call(impatient, serve(talk).port).content == b"at last"


def test_a_server_that_takes_no_body_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: time.sleep(5))
    port, length = server.port, 50_000_000
    with impatient.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{port}/", f"Content-Length: {length}"))
        answer = flood(sock)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"takes no data" in answer

    def half(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        time.sleep(5)

    with impatient.connect() as sock:
        sock.sendall(head("POST", f"/v1/ports/{serve(half).port}/", f"Content-Length: {length}"))
        answer = flood(sock)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not answer.endswith(b"0\r\n\r\n")


def flood(sock: socket.socket) -> bytes:
    """What comes while one writes and writes."""

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(bytes(1_000_000))

    threading.Thread(target=write, daemon=True).start()
    return read_all(sock)


def test_a_caller_that_does_not_read_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: sock.sendall(whole(bytes(50_000_000))))
    with impatient.connect() as sock:
        sock.sendall(head("GET", f"/v1/ports/{server.port}/"))
        assert server.ended.acquire(timeout=10)
        assert len(read_all(sock)) < 50_000_000


def test_a_tunnel_with_one_side_gone_ends_in_silence(impatient, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), time.sleep(5)))
    with tunnel(impatient, server) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_a_tunnel_that_is_only_silent_goes_on(impatient, serve) -> None:
    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.sendall(SWITCH)
        time.sleep(1)
        sock.sendall(b"still here")

    with tunnel(impatient, serve(talk)) as sock:
        assert read_all(sock) == b"still here"


def test_a_tunnel_that_nobody_reads_from_is_given_up(impatient, serve) -> None:
    server = serve(lambda sock, _rest: (sock.sendall(SWITCH), sock.sendall(bytes(50_000_000))))
    with tunnel(impatient, server):
        assert server.ended.acquire(timeout=10)


def test_a_tunnel_whose_server_takes_a_byte_now_and_then_is_given_up(
    start, tmp_path, serve
) -> None:
    # The caller is gone, and unwatched: its bytes fill the buffer.
    daemon = start(program=small(tmp_path, FINISH_S=0.4, HALF_CLOSED_S=60.0))

    def talk(sock: socket.socket, _rest: bytes) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(SWITCH)
        until_s = time.monotonic() + 15
        while time.monotonic() < until_s and sock.recv(64):
            time.sleep(0.01)

    with tunnel(daemon, serve(talk)) as sock:
        sock.settimeout(0.2)
        with contextlib.suppress(OSError):
            while True:
                sock.send(bytes(100_000))
        sock.settimeout(10)
        came = b""
        with contextlib.suppress(ConnectionError):
            came = sock.recv(1)
        assert came == b""


@pytest.mark.parametrize("finish_s", [0.0, 60.0])
def test_a_buffer_is_full_until_it_has_room(
    monkeypatch: pytest.MonkeyPatch, finish_s: float
) -> None:
    monkeypatch.setattr(config, "FINISH_S", finish_s)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        pipe = relay.Pipe(near)
        assert pipe.full_left_s() is None
        while pipe.has_room:
            pipe.put(bytes(relay.ROOM_BYTES))
            pipe.flush()
        left = pipe.full_left_s()
        assert left is not None
        assert left <= finish_s
        far.recv(1_000_000)
        pipe.flush()
        assert not pipe.has_room or pipe.full_left_s() is None
        while pipe.waiting:
            far.recv(1_000_000)
            pipe.flush()
        assert pipe.full_left_s() is None
        assert pipe.left_s() is None
