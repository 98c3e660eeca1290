"""`sandman port-forward`'s local port, through the real gateway and the real daemon to a server inside."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys

import anyio
import anyio.abc
import httpx
import pytest
import trio

from sandman.cli.forwarder import MOST_CONNECTIONS, Forwarder
from sandman.client import Client
from sandman.errors import SandmanError
from tests.fakes.daemons import answer, says, scripted
from tests.fakes.sockets import connected, echo, upgraded

HERE = frozenset({"localhost", "127.0.0.1", "::1", "x"})
"""`x` is what the WebSocket of these tests calls it."""


@pytest.fixture
async def inside():
    async with scripted() as one:
        yield one


class Local:
    """A port of this machine that is forwarded."""

    def __init__(self, box, port: int) -> None:
        self.said: list[str] = []
        self.box = box
        self.forwarder = Forwarder(box, port, HERE, self.said.append)
        self.url = ""
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self):
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        self.url = f"http://127.0.0.1:{self.port}"
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self.forwarder.serve)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self.forwarder.aclose()


@contextlib.asynccontextmanager
async def forwarded(bed, port: int):
    async with attached(bed) as box, Local(box, port).serving() as local:
        yield local


@contextlib.asynccontextmanager
async def attached(bed):
    """A fresh sandbox of acme."""
    made = await bed.allocate()
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        yield client.attach(made["id"])


async def test_a_call_and_its_answer_as_the_server_made_it(bed, inside):
    lines = (b"X-Own: 1", b"Content-Type: text/html", b"Location: /next?x=1")
    inside.script = says(answer(b"<html>", *lines, status=b"302 Found"))
    async with forwarded(bed, inside.port) as local, httpx.AsyncClient() as http:
        got = await http.request("PUT", f"{local.url}/a%2Fb//c?q=%20", content=b"x" * 300_000)
        assert (got.status_code, got.content) == (302, b"<html>")
        assert got.headers["location"] == "/next?x=1"
        assert got.headers["x-own"] == "1"
        assert not {"content-security-policy", "sandman-port", "x-content-type-options"} & set(
            got.headers
        )
        # The same connection again, and many at once.
        inside.script = says(answer(b"again"))
        assert (await http.get(local.url)).content == b"again"

        async def one() -> None:
            assert (await http.get(local.url)).content == b"again"

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
    assert local.said == []


async def test_an_upload_without_a_length_and_a_caller_who_waits_to_be_asked(bed, inside):
    async def pieces():
        for _ in range(4):
            yield b"y" * 1000

    inside.script = says(answer(b"got"))
    async with forwarded(bed, inside.port) as local, httpx.AsyncClient() as http:
        assert (await http.post(local.url, content=pieces())).content == b"got"
        stream = await trio.open_tcp_stream("127.0.0.1", local.port)
        async with stream:
            await stream.send_all(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            assert (await read(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            await stream.send_all(b"ab")
            assert (await read(stream, b"got")).startswith(b"HTTP/1.1 200")


async def read(stream: trio.SocketStream, end: bytes) -> bytes:
    seen = b""
    with trio.fail_after(20):
        while end not in seen:
            chunk = await stream.receive_some(4096)
            assert chunk, seen
            seen += chunk
    return seen


async def test_a_websocket_both_ways(bed, inside):
    async def script(call) -> None:
        await echo(await upgraded(call, b"Sec-WebSocket-Protocol: v2"))

    inside.script = script
    async with forwarded(bed, inside.port) as local:
        stream = await trio.open_tcp_stream("127.0.0.1", local.port)
        async with connected(stream, "/ws?x=1", {}, "v1", "v2") as peer:
            assert peer.subprotocol == "v2"
            for message in ("text", b"bytes", "x" * 1_000_000):
                await peer.send(message)
                assert await peer.receive() == message
            await peer.close(4001)
            assert await peer.receive() == (4001, "")
    assert inside.calls[0].line == b"GET /ws?x=1 HTTP/1.1"


async def test_a_websocket_that_the_gateway_resets_ends_alone(bed, inside):
    async def script(call) -> None:
        if b"/ws" in call.line:
            await upgraded(call)
            call.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            call.stream.socket.close()
        else:
            await call.send(answer(b"still"))

    inside.script = script
    async with attached(bed) as box, Local(Direct(box, inside.port), 80).serving() as local:
        stream = await trio.open_tcp_stream("127.0.0.1", local.port)
        async with connected(stream, "/ws", {}) as peer:
            with trio.fail_after(20):
                assert await peer.receive() is None
        async with httpx.AsyncClient() as http:
            assert (await http.get(local.url)).content == b"still"


class Direct:
    """A sandbox whose gateway is a script: the real one resets nothing by itself."""

    def __init__(self, box, port: int) -> None:
        self.id = box.id
        self._url = f"http://127.0.0.1:{port}/"

    def http(self, _port: int, **options) -> httpx.AsyncClient:
        return httpx.AsyncClient(**options)

    def port_url(self, _port: int) -> str:
        return self._url


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfirst"])
async def test_a_caller_who_leaves_takes_his_call_along(bed, inside, begun):
    came, went = trio.Event(), trio.Event()

    async def script(call) -> None:
        await call.send(begun)
        assert await call.read_body() == b"ab"
        came.set()
        assert await call.stream.receive_some() == b""
        went.set()

    inside.script = script
    async with forwarded(bed, inside.port) as local:
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", local.port) as stream:
                await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")
                await (read(stream, b"first") if begun else came.wait())
            await went.wait()
            while local.forwarder._open:
                await trio.sleep(0.01)
        assert local.said == []


async def test_what_is_asked_before_the_answer_has_come_is_answered_after_it(bed, inside):
    go = trio.Event()

    async def script(call) -> None:
        if b"/one" in call.line:
            await go.wait()
        await call.send(answer(call.line.split()[1]))

    inside.script = script
    async with forwarded(bed, inside.port) as local:
        async with await trio.open_tcp_stream("127.0.0.1", local.port) as stream:
            await stream.send_all(b"GET /one HTTP/1.1\r\nHost: x\r\n\r\n")
            while not inside.calls:
                await trio.sleep(0.01)
            await stream.send_all(b"GET /two HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.sleep(0.05)
            go.set()
            seen = await read(stream, b"/two")
        assert seen.index(b"/one") < seen.index(b"/two")


async def test_where_nothing_listens_the_answer_says_so_and_the_person_hears_it_once(bed):
    async with forwarded(bed, 1) as local, httpx.AsyncClient() as http:
        for _ in range(3):
            got = await http.get(local.url)
            assert (got.status_code, "nothing accepts connections on port 1" in got.text) == (
                502,
                True,
            )
    assert len(local.said) == 1
    assert "port 1: port_closed" in local.said[0]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /../../exec HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nConnection: upgrade\r\n"
            b"Upgrade: websocket\r\n\r\n",
            b"403",
        ),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", b"403"),
    ],
)
async def test_what_is_not_passed_on(bed, inside, request_bytes, status):
    inside.script = says(answer(b"never"))
    async with forwarded(bed, inside.port) as local:
        stream = await trio.open_tcp_stream("127.0.0.1", local.port)
        async with stream:
            await stream.send_all(request_bytes)
            assert (await read(stream, b"sandman port-forward:")).split()[1] == status
    assert inside.calls == []


async def test_one_connection_too_many_is_told(bed, inside):
    inside.script = says(answer(b"ok"))
    async with forwarded(bed, inside.port) as local, contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", local.port))
        while local.forwarder._open < MOST_CONNECTIONS:
            await trio.sleep(0.01)
        one = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", local.port))
        assert b" 503 " in await read(one, b"connections at once")


async def test_it_ends_with_the_sandbox_and_says_why(bed, inside):
    with pytest.raises(ExceptionGroup) as ended:  # noqa: PT012 - it ends while the block waits
        async with forwarded(bed, inside.port) as local, httpx.AsyncClient() as http:
            await local.box.release()
            got = await http.get(local.url)
            assert (got.status_code, "released" in got.text) == (502, True)
            await trio.sleep_forever()
    assert ended.group_contains(SandmanError, match="released")


# --- the command ---


async def test_the_command_serves_until_it_is_interrupted(bed, inside, tmp_path):
    inside.script = says(answer(b"well"))
    made = await bed.allocate()
    trust = tmp_path / "ca.pem"
    trust.write_bytes(bed.ca.certificate)
    env = os.environ | {
        "SANDMAN_URL": bed.url, "SANDMAN_TOKEN": bed.credentials.texts["acme"], "SANDMAN_CA": str(trust),
    }  # fmt: skip
    command = [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-m",
        "sandman.cli",
        "port-forward",
        "--json",
    ]
    with trio.fail_after(28):
        process = await trio.lowlevel.open_process(
            [*command, made["id"], f":{inside.port}", ":1"], env=env, stdout=-1, stderr=-1
        )
        assert process.stdout is not None
        told = await read(process.stdout, b"\n")  # type: ignore[arg-type]
        while told.count(b"\n") < 2:
            told += await process.stdout.receive_some()
        one, other = map(json.loads, told.splitlines())
        assert (one["remote_port"], one["address"], other["remote_port"]) == (
            inside.port,
            "127.0.0.1",
            1,
        )
        async with httpx.AsyncClient() as http:
            assert (await http.get(one["url"])).content == b"well"
        process.send_signal(2)
        assert await process.wait() == 130
        assert process.stderr is not None
        assert await process.stderr.receive_some() == b""
        await process.stdout.aclose()
        await process.stderr.aclose()
