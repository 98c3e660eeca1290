"""Where a terminal stands: what comes on a connection, and what is to be sent on the next."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import errors, names, terminal, websocket, wire
from sandman._core import screen as screens
from sandman._core.screen import Screen
from sandman.handles import Gap
from sandman.websocket import BINARY, TEXT


def said(name: str, **content: object) -> bytes:
    return websocket.encode(TEXT, terminal.dump(name, content))


def joined(taken: int = 0, offset: int = 0) -> Screen:
    screen = Screen(offset)
    screen.connected()
    screen.feed(said("started", stdin_bytes=taken))
    return screen


def typed(data: bytes) -> bytes:
    """What frames of a client hold."""
    messages = websocket.Decoder(is_server=True).feed(data)
    return b"".join(message.data for message in messages if message.opcode == BINARY)


def test_nothing_is_sent_before_the_connection_says_where_it_stands() -> None:
    screen = Screen(0)
    screen.connected()
    assert screen.room == 0
    assert screen.type(b"x") == 0
    screen.feed(said("started", stdin_bytes=7))
    assert screen.type(b"abc") == 3
    assert typed(screen.outgoing()) == b"abc"
    assert screen.outgoing() == b""


def test_the_window_bounds_what_is_kept() -> None:
    screen = joined()
    much = b"x" * (terminal.INPUT_WINDOW_BYTES + 1)
    assert screen.type(much) == terminal.INPUT_WINDOW_BYTES
    assert (screen.room, screen.type(b"y")) == (0, 0)
    assert len(typed(screen.outgoing())) == terminal.INPUT_WINDOW_BYTES
    screen.feed(said("taken", stdin_bytes=10))
    assert screen.room == 10


@given(st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 60), st.booleans()), max_size=20))
def test_each_byte_arrives_once_wherever_connections_break(
    steps: list[tuple[bytes, int, bool]],
) -> None:
    """The sandbox takes some of what was sent, tells of it or not, and the connection may break."""
    screen, arrived, all_typed, on_the_way = joined(), b"", b"", b""
    for data, takes, breaks in steps:
        assert screen.type(data) == len(data)
        all_typed += data
        on_the_way += typed(screen.outgoing())
        arrived, on_the_way = arrived + on_the_way[:takes], on_the_way[takes:]
        if breaks:
            screen.broken()
            screen.connected()
            on_the_way = b""
            screen.feed(said("started", stdin_bytes=len(arrived)))
        elif takes % 2:
            screen.feed(said("taken", stdin_bytes=len(arrived)))
    screen.connected()
    screen.feed(said("started", stdin_bytes=len(arrived)))
    assert arrived + typed(screen.outgoing()) == all_typed


def test_output_and_gaps_move_the_offset() -> None:
    screen = joined(offset=5)
    screen.feed(websocket.encode(BINARY, b"abc"))
    screen.feed(said("gap", **Gap("stdout", 8, 20).to_json()))
    screen.feed(websocket.encode(BINARY, b"de"))
    assert (screen.received, screen.offset, screen.has_output) == (22, 17, True)
    assert screen.read() == b"abcde"
    assert (screen.offset, screen.has_output, screen.gaps) == (22, False, [Gap("stdout", 8, 20)])


def test_signs_of_life() -> None:
    screen = joined()
    assert not screen.is_alive
    screen.feed(said("keepalive"))
    assert screen.is_alive
    screen.feed(said("news", of="a later version"))
    screen.feed(websocket.encode(websocket.PONG, b""))
    screen.feed(websocket.encode(websocket.PING, b"there?"))
    (pong,) = websocket.Decoder(is_server=True).feed(screen.outgoing())
    assert pong == websocket.Message(websocket.PONG, b"there?")


def test_the_end() -> None:
    screen = joined()
    result = wire.ExecResult(3, stdout_bytes=4)
    screen.feed(said("exit", **result.to_json(streams=False)) + websocket.encode_close(1000))
    assert screen.result == result


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", errors.UnreachableError, "ended"),
        (b"HTTP", errors.UnreachableError, "no WebSocket"),
        (websocket.encode(TEXT, b"[]"), errors.UnreachableError, "cannot be read"),
        (said("taken"), errors.UnreachableError, "cannot be read"),
        (said("exit", wall_s=1), errors.UnreachableError, "cannot be read"),
        (said("gap", stream="x"), errors.UnreachableError, "cannot be read"),
        (said("error", reason="oom", detail="no memory"), errors.OomError, "no memory"),
        (websocket.encode_close(1000), errors.UnreachableError, "closed"),
        (websocket.encode_close(1011, "died: x"), errors.UnreachableError, "died"),
        (websocket.encode_close(names.CLOSE_OUT_OF_REACH), errors.UnreachableError, "4503"),
        (websocket.encode_close(1012), errors.UnreachableError, "1012"),
        (websocket.encode_close(1008, "no"), errors.InternalError, "refused"),
        (websocket.encode_close(terminal.TAKEN_OVER), errors.ConflictError, "taken"),
    ],
)
def test_ends_that_are_none(data: bytes, error: type[errors.SandmanError], says: str) -> None:
    with pytest.raises(error, match=says):
        joined().feed(data)


def test_what_nobody_reads_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "MOST_UNREAD_BYTES", 10)
    screen = joined()
    screen.feed(websocket.encode(BINARY, b"x" * 10))
    with pytest.raises(errors.ConflictError, match="not read"):
        screen.feed(websocket.encode(BINARY, b"x"))


def test_messages_are_objects() -> None:
    assert json.loads(terminal.dump("resize", {"rows": 1})) == {"resize": {"rows": 1}}
