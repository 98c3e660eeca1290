"""Servers inside a sandbox, through the real gateway and the real daemon."""

from __future__ import annotations

import contextlib
import itertools

import httpx
import pytest
import trio

from gateway.model import Ending
from tests.fakes.daemons import ScriptedDaemon, answer, says, scripted
from tests.fakes.sockets import Refused, connected, echo, upgraded

SIZE = 12_000_000


@pytest.fixture
async def inside():
    """A server inside the sandbox, which is this machine."""
    async with scripted() as one:
        yield one


class Way:
    """The way to a port of a fresh sandbox."""

    def __init__(self, bed, made: dict, port: int) -> None:
        self.bed = bed
        self.made = made
        self.prefix = f"/v1/sandboxes/{made['id']}/ports/{port}"

    def call(self, path: str = "/", method: str = "GET", **kwargs):
        headers = {**self.bed.as_("acme"), **kwargs.pop("headers", {})}
        return self.bed.client.request(method, self.prefix + path, headers=headers, **kwargs)

    def stream(self, path: str = "/", method: str = "GET", **kwargs):
        headers = self.bed.as_("acme")
        return self.bed.client.stream(method, self.prefix + path, headers=headers, **kwargs)

    @contextlib.asynccontextmanager
    async def socket(self, path: str = "/", *subprotocols: str):
        async with self.bed.raw() as stream:
            target, headers = self.prefix + path, self.bed.as_("acme")
            async with connected(stream, target, headers, *subprotocols) as peer:
                yield peer


async def way_to(bed, server: ScriptedDaemon) -> Way:
    return Way(bed, await bed.allocate(), server.port)


async def test_a_call_and_its_answer(bed, inside):
    way = await way_to(bed, inside)
    lines = (b"X-Own: 1", b"Set-Cookie: a=b", b"Content-Type: text/html", b"Location: /next?x=1")
    inside.script = says(answer(b"<html>", *lines, status=b"302 Found"))
    got = await way.call("/a%2Fb//c?q=%20", "PROPFIND", headers={"cookie": "c=d", "x-a": "1"})
    assert (got.status_code, got.content) == (302, b"<html>")
    assert got.headers["location"] == f"{way.prefix}/next?x=1"
    assert got.headers["content-security-policy"] == "sandbox"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["sandman-port"] == str(inside.port)
    assert got.headers["x-own"] == "1"
    assert "set-cookie" not in got.headers
    [call] = inside.calls
    assert call.line == b"PROPFIND /a%2Fb//c?q=%20 HTTP/1.1"
    assert call.headers[b"host"] == b"localhost:%d" % inside.port
    assert call.headers[b"x-forwarded-prefix"] == way.prefix.encode()
    assert call.headers[b"x-a"] == b"1"
    assert not call.headers.keys() & {b"authorization", b"cookie", b"sandman-boot-id"}


@pytest.mark.parametrize("path", ["/a%0Ab", "/%0a", "/a%0D%0Ab%00%7F", "/%C3%A9/%E2%80%A8x"])
async def test_a_path_may_have_any_character(bed, inside, path):
    way = await way_to(bed, inside)
    inside.script = says(answer(b"here"))
    got = await way.call(path)
    assert (got.status_code, got.content) == (200, b"here")
    [call] = inside.calls
    assert call.line == b"GET %b HTTP/1.1" % path.encode()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_any_method(bed, inside, method):
    way = await way_to(bed, inside)
    inside.script = says(answer(b"body"))
    got = await way.call("", method, content=b"x" if method in {"POST", "PUT", "PATCH"} else None)
    assert (got.status_code, got.content) == (200, b"" if method == "HEAD" else b"body")
    assert got.headers["content-length"] == "4"
    assert inside.calls[0].line == method.encode() + b" / HTTP/1.1"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_that_have_no_body(bed, inside, status):
    way = await way_to(bed, inside)
    inside.script = says(b"HTTP/1.1 " + status + b"\r\nETag: e\r\n\r\n", stay=False)
    got = await way.call()
    assert (got.status_code, got.headers["etag"], got.content) == (int(status[:3]), "e", b"")


async def test_events_come_as_they_are_sent(bed, inside):
    way = await way_to(bed, inside)
    go = trio.Event()

    async def script(call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go.wait()
        await call.send(b"data: 2\n\n")

    inside.script = script
    async with way.stream() as got:
        chunks = got.aiter_raw()
        assert await anext(chunks) == b"data: 1\n\n"
        go.set()
        assert await anext(chunks) == b"data: 2\n\n"
        assert [chunk async for chunk in chunks] == []


@pytest.mark.parametrize("streamed", [True, False])
async def test_much_goes_up_and_comes_down(bed, inside, streamed):
    way = await way_to(bed, inside)
    taken = [0]

    async def script(call) -> None:
        # To the last byte, also of the chunks' framing: the kernel resets a connection that is closed
        # with something unread, and what of the answer is not on its way by then is lost.
        size, end = len(call.early), call.early[-5:]
        while not end.endswith(b"0\r\n\r\n") if streamed else size < SIZE:
            more = await call.stream.receive_some()
            assert more
            size += len(more)
            end = (end + more)[-5:]
        taken[0] = size
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        for _ in range(SIZE // 1_000_000):
            await call.send(b"x" * 1_000_000)

    async def pieces():
        for _ in range(SIZE // 1_000_000):
            yield b"y" * 1_000_000

    inside.script = script
    content = pieces() if streamed else b"y" * SIZE
    async with way.stream("/", "POST", content=content) as got:
        size = 0
        async for chunk in got.aiter_raw():
            size += len(chunk)
    assert size == SIZE
    assert taken[0] >= SIZE


async def test_a_server_may_refuse_a_body_that_it_has_not_read(bed, inside):
    way = await way_to(bed, inside)

    async def script(call) -> None:
        await call.send(answer(b"no", status=b"413 Content Too Large"))

    inside.script = script
    got = await way.call("/", "POST", content=b"y" * SIZE)
    assert (got.status_code, got.content) == (413, b"no")
    assert got.headers["sandman-port"] == str(inside.port)


async def test_a_transfer_that_breaks_off_is_an_error_at_once(bed, inside):
    way = await way_to(bed, inside)
    for head in (
        b"Content-Length: 100\r\n\r\nshort",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
    ):
        go = trio.Event()

        async def script(call, head=head, go=go) -> None:
            await call.send(b"HTTP/1.1 200 OK\r\n" + head)
            await go.wait()

        inside.script = script
        with trio.fail_after(5):
            async with way.stream() as got:
                chunks = got.aiter_raw()
                assert await anext(chunks) == b"short"
                go.set()
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(chunks)


async def test_errors_are_typed_and_the_servers_own_are_its_own(bed, inside):
    way = await way_to(bed, inside)
    inside.script = says(answer(b"who?", status=b"401 Unauthorized"))
    own = await way.call()
    assert (own.status_code, own.content, own.headers["sandman-port"]) == (
        401, b"who?", str(inside.port),
    )  # fmt: skip
    inside.script = says(b"nonsense\r\n\r\n", stay=False)
    bad = await way.call("/", "POST")
    assert (bad.status_code, bad.json()["reason"], bad.json()["cause"]) == (
        502, "outcome_unknown", "sandbox",
    )  # fmt: skip
    assert "sandman-port" not in bad.headers
    port = way.prefix.rpartition("/")[0]
    for number, status, reason in (
        ("1", 503, "port_closed"), ("0", 400, "bad_request"), ("70000", 400, "bad_request"),
        (str(bed.daemon.port), 400, "bad_request"),
    ):  # fmt: skip
        got = await bed.client.get(f"{port}/{number}/", headers=bed.as_("acme"))
        assert (got.status_code, got.json()["reason"]) == (status, reason)
    assert (await bed.client.get(f"{way.prefix}/", headers=bed.as_("zeta"))).status_code == 404
    assert (await bed.client.get(f"{way.prefix}/")).status_code == 401


async def test_a_sandboxs_own_token_is_good_for_its_ports(bed, inside):
    way = await way_to(bed, inside)
    inside.script = says(answer(b"hi"))
    headers = {"authorization": f"Bearer {way.made['token']}"}
    assert (await way.call(headers=headers)).content == b"hi"


async def test_a_websocket_to_a_server_inside(bed, inside):
    way = await way_to(bed, inside)

    async def script(call) -> None:
        await echo(await upgraded(call, b"Sec-WebSocket-Protocol: v2"))

    inside.script = script
    async with way.socket("/ws?a=1", "v1", "v2") as peer:
        assert (peer.subprotocol, peer.headers["sandman-port"]) == ("v2", str(inside.port))
        for message in ("text", b"bytes", "x" * 1_000_000, b"y" * 1_000_000):
            await peer.send(message)
            assert await peer.receive() == message
        await peer.close(4001)
        assert await peer.receive() == (4001, "")
    assert inside.calls[0].line == b"GET /ws?a=1 HTTP/1.1"
    assert inside.calls[0].headers[b"host"] == b"localhost:%d" % inside.port


async def test_many_messages_keep_their_order_and_number(bed, inside):
    way = await way_to(bed, inside)

    async def script(call) -> None:
        peer = await upgraded(call)
        for number in itertools.count():
            if await peer.receive() != str(number):
                return
            await peer.send(str(number))

    inside.script = script
    async with way.socket() as peer:
        for number in range(500):
            await peer.send(str(number))
        assert [await peer.receive() for _ in range(500)] == [str(n) for n in range(500)]


async def test_no_websocket_where_nothing_listens(bed, inside):
    way = await way_to(bed, inside)
    way.prefix = way.prefix.rpartition("/")[0] + "/1"
    with pytest.raises(Refused) as refused:
        async with way.socket():
            pass
    assert refused.value.status == 503
    assert b'"port_closed"' in refused.value.body


async def test_a_server_that_ends_its_websocket_rudely_and_a_sandbox_that_dies(bed, inside):
    way = await way_to(bed, inside)
    cut = trio.Event()

    async def script(call) -> None:
        peer = await upgraded(call)
        await peer.send("hello")
        await cut.wait()

    inside.script = script
    async with way.socket() as peer:
        assert await peer.receive() == "hello"
        cut.set()
        code, reason = await peer.receive()
        assert (code, reason.partition(":")[0]) == (1011, "outcome_unknown")
    cut = trio.Event()
    async with way.socket() as peer:
        assert await peer.receive() == "hello"
        bed.daemon.kill()
        [instance] = bed.registry.of_tenant("acme")
        bed.registry.remove(instance.uid, Ending("died", "its first process ended"))
        assert await peer.receive() == (1011, "died: its first process ended")
    bed.daemon.restart()
    gone = await way.call()
    assert (gone.status_code, gone.json()["reason"]) == (410, "died")
