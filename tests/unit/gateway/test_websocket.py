"""A WebSocket to a daemon that may be anything: over streams in memory."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, Pong, TextMessage
from wsproto.utilities import generate_accept_token

from gateway import websocket
from gateway.daemons import LostError
from gateway.websocket import ClosedError, DaemonSocket, Opening, RefusedError, TooBigError

OPENING = Opening("h:1", "/v1/x?y", [(b"x-own", b"1")], ["a", "b"])


async def head_of(stream: trio.abc.Stream) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += await stream.receive_some()
    return data


def switch(head: bytes, *lines: bytes, accept: bytes | None = None) -> bytes:
    [key] = [
        line.split(b": ")[1] for line in head.split(b"\r\n") if b"ebsocket-key" in line.lower()
    ]
    return b"\r\n".join([
        b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + (accept or generate_accept_token(key)), *lines, b"", b"",
    ])  # fmt: skip


async def opened(rest: bytes = b"") -> tuple[DaemonSocket, trio.abc.Stream]:
    """An open one and the daemon's end, which has said `rest` at once."""
    ours, theirs = memory_stream_pair()
    socket = DaemonSocket(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.open, OPENING)
        await theirs.send_all(switch(await head_of(theirs)) + rest)
    return socket, theirs


async def failing(answer) -> BaseException:
    """What opening ends in, when this is answered; a function makes it out of the request."""
    ours, theirs = memory_stream_pair()
    socket = DaemonSocket(ours)

    async def say() -> None:
        head = await head_of(theirs)
        await theirs.send_all(answer if isinstance(answer, bytes) else answer(head))
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say)
        with pytest.raises((LostError, RefusedError)) as caught:
            await socket.open(OPENING)
    return caught.value


async def test_messages_come_whole_and_pings_are_answered():
    say = Connection(ConnectionType.SERVER)
    data = say.send(Ping(b"p")) + say.send(TextMessage("té", message_finished=False))
    data += say.send(Pong(b"")) + say.send(TextMessage("xt")) + say.send(BytesMessage(b""))
    socket, theirs = await opened(data)
    assert socket.subprotocol is None
    assert await socket.receive() == "téxt"
    assert await socket.receive() == b""
    say.receive_data(await theirs.receive_some())
    [pong] = say.events()
    assert pong == Pong(b"p")


async def test_what_was_asked_for():
    ours, theirs = memory_stream_pair()
    socket = DaemonSocket(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.open, OPENING)
        head = await head_of(theirs)
        await theirs.send_all(switch(head, b"Sec-WebSocket-Protocol: b", b"X-A: 1"))
    assert head.startswith(b"GET /v1/x?y HTTP/1.1\r\n")
    assert b"Sec-WebSocket-Protocol: a, b\r\n" in head
    assert b"x-own: 1\r\n" in head
    assert b"xtensions" not in head
    assert (socket.subprotocol, socket.headers) == ("b", [(b"x-a", b"1")])


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n",
        lambda head: switch(head, accept=b"wrong"),
        lambda head: switch(head, b"Sec-WebSocket-Protocol: c"),
        lambda head: switch(head, b"Sec-WebSocket-Protocol: \xff"),
        lambda head: switch(head, b"Sec-WebSocket-Extensions: permessage-deflate"),
        lambda head: switch(head, b"A: " + b"x" * 100_000),
    ],
)  # fmt: skip
async def test_answers_that_are_no_websockets(answer):
    assert isinstance(await failing(answer), LostError)


async def test_refusals():
    head = b"HTTP/1.1 403 Forbidden\r\nX-A: 1\r\n"
    error = await failing(head + b"Content-Length: 2\r\n\r\nno")
    assert isinstance(error, RefusedError)
    assert (error.status, error.headers[0], error.body) == (403, (b"x-a", b"1"), b"no")
    # What breaks off, and what does not end.
    assert (await failing(head + b"Content-Length: 9\r\n\r\nno")).body == b"no"
    assert (await failing(head + b"\r\nto the end")).body == b"to the end"
    endless = head + b"Content-Length: 9999999\r\n\r\n" + b"x" * 300_000
    assert len((await failing(endless)).body) == websocket.REFUSAL_MAX_BYTES


async def test_goodbyes():
    say = Connection(ConnectionType.SERVER)
    socket, theirs = await opened(b"\x88\x05\x0f\xa1why")
    with pytest.raises(ClosedError) as closed:
        await socket.receive()
    assert (closed.value.code, closed.value.reason) == (4001, "why")
    await socket.close(4001)
    say.receive_data(await theirs.receive_some())
    assert [event.code for event in say.events()] == [4001]
    await socket.send("too late")  # nobody reads that, and nobody minds
    with pytest.raises(ClosedError):
        await (await opened(b"\x88\x00"))[0].receive()


@pytest.mark.parametrize(("given", "sent"), [(1005, 1000), (1006, 1001), (3000, 3000)])
async def test_codes_that_may_not_be_sent(given, sent, autojump_clock):
    socket, theirs = await opened()
    await socket.close(given, "x" * 300)  # it is not answered
    assert trio.current_time() == websocket.FAREWELL_S
    say = Connection(ConnectionType.SERVER)
    say.receive_data(await theirs.receive_some())
    assert [event.code for event in say.events()] == [sent]


async def test_no_goodbye_lands_within_a_frame_that_was_broken_off(monkeypatch):
    monkeypatch.setattr(websocket, "FAREWELL_S", 0.1)
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    socket = DaemonSocket(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.open, OPENING)
        await theirs.send_all(switch(await head_of(theirs)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.send, b"x" * 8_000_000)  # far more than the kernel takes
        data = await theirs.receive_some(1)  # it has begun
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        nursery.cancel_scope.cancel()
    data += await theirs.receive_some(1_000_000)  # there is room for a goodbye now
    await socket.close(1009)
    await ours.aclose()
    say = Connection(ConnectionType.SERVER)
    while data:
        say.receive_data(bytes(data))
        for event in say.events():
            assert isinstance(event, BytesMessage)
            assert set(event.data) == {ord("x")}
        data = await theirs.receive_some()
    await theirs.aclose()


async def test_connections_that_break():
    for at_end in (lambda stream: stream.aclose(), trio.aclose_forcefully):
        socket, theirs = await opened()
        await at_end(theirs)
        with pytest.raises(LostError):
            await socket.receive()
        with pytest.raises(LostError):
            await socket.send("x")
        await socket.close(1000)


async def test_a_texts_bytes_are_counted_and_not_its_characters(monkeypatch):
    monkeypatch.setattr(websocket, "MESSAGE_MAX_BYTES", 1000)
    say = Connection(ConnectionType.SERVER)
    parts = [TextMessage("\u00e4" * 250, message_finished=False), TextMessage("\u00e4" * 250)]
    socket, _ = await opened(b"".join(say.send(part) for part in parts))
    assert await socket.receive() == "\u00e4" * 500
    socket, _ = await opened(say.send(TextMessage("\u00e4" * 501)))
    with pytest.raises(TooBigError):
        await socket.receive()


async def test_a_message_of_many_parts_is_bounded_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(websocket, "MESSAGE_MAX_BYTES", 2000)
    tiny = b"\x02\x01x" + b"\x00\x01x" * 1000
    socket, _ = await opened(tiny + b"\x80\x00")
    assert await socket.receive() == b"x" * 1001
    socket, _ = await opened(tiny + tiny[3:] + b"\x80\x00")
    turns = [0]

    async def others() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        with pytest.raises(TooBigError):
            await socket.receive()
        nursery.cancel_scope.cancel()
    assert turns[0] > 2000 // websocket.EVENTS_AT_ONCE // 2


@given(st.lists(st.binary(max_size=60), max_size=4))
@settings(max_examples=60)
async def test_no_bytes_break_it(pieces):
    socket, theirs = await opened()
    for piece in pieces:
        await theirs.send_all(piece)
    await theirs.aclose()
    with pytest.raises((LostError, ClosedError)):
        await all_of(socket)


async def all_of(socket: DaemonSocket) -> None:
    while isinstance(await socket.receive(), str | bytes):
        pass
