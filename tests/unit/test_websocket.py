"""The frame codec: any split gives the same messages, and another implementation reads and says the same."""

from __future__ import annotations

import itertools
import os
import struct

import pytest
import wsproto
from hypothesis import given
from hypothesis import strategies as st
from wsproto import events
from wsproto.connection import Connection, ConnectionType

from sandman import websocket
from sandman.websocket import BINARY, CLOSE, PING, PONG, TEXT, Decoder, Message, ProtocolError

MASK = b"\x01\x02\x03\x04"
PAYLOADS = st.binary(max_size=300) | st.sampled_from(
    [b"x" * size for size in (125, 126, 127, 65535, 65536)]
)
CONTROL = st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=125))
DATA = st.tuples(st.just(BINARY), PAYLOADS) | st.tuples(st.just(TEXT), st.text().map(str.encode))
MESSAGES = st.lists(DATA | CONTROL, max_size=6)


def frame(first: int, payload: bytes, *, mask: bytes | None = MASK) -> bytes:
    """A frame with any first byte."""
    data = bytearray(websocket.encode(0, payload, mask=mask))
    data[0] = first
    return bytes(data)


def decode(data: bytes, *, is_server: bool = True, **options: int) -> list[Message]:
    return list(Decoder(is_server=is_server, **options).feed(data))


def fault(data: bytes, *, is_server: bool = True, **options: int) -> int:
    with pytest.raises(ProtocolError) as caught:
        decode(data, is_server=is_server, **options)
    assert caught.value.text
    return caught.value.code


@given(MESSAGES, st.booleans(), st.lists(st.integers(0, 2000), max_size=8))
def test_any_split_gives_the_same_messages(
    messages: list[tuple[int, bytes]], is_server: bool, cuts: list[int]
) -> None:
    mask = MASK if is_server else None
    data = b"".join(websocket.encode(kind, payload, mask=mask) for kind, payload in messages)
    decoder = Decoder(is_server=is_server)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [m for a, b in itertools.pairwise(places) for m in decoder.feed(data[a:b])]
    assert found == [Message(kind, payload) for kind, payload in messages]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_fragments_join_and_control_frames_may_come_between(
    payload: bytes, cuts: list[int], is_text: bool
) -> None:
    payload = payload.decode("latin-1").encode() if is_text else payload
    places = [0, *sorted(cut % (len(payload) + 1) for cut in cuts), len(payload)]
    parts = [payload[a:b] for a, b in itertools.pairwise(places)]
    kind = TEXT if is_text else BINARY
    data, found = b"", []
    for number, part in enumerate(parts):
        first = (0 if number else kind) | (0x80 if number == len(parts) - 1 else 0)
        data += frame(first, part) + websocket.encode(PING, b"p", mask=MASK)
    found = decode(data)
    assert [m for m in found if m.opcode == PING] == [Message(PING, b"p")] * len(parts)
    assert [m for m in found if m.opcode != PING] == [Message(kind, payload)]


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=5), st.booleans())
def test_any_bytes_at_any_split_end_alike(data: bytes, cuts: list[int], is_server: bool) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[Message], int | None]:
        decoder, found = Decoder(is_server=is_server, limit=200), []
        try:
            for piece in pieces:
                for message in decoder.feed(piece):
                    found.append(message)  # noqa: PERF402 - what came before the fault counts
        except ProtocolError as error:
            return found, error.code
        return found, None

    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    whole = outcome([data])
    assert outcome([data[a:b] for a, b in itertools.pairwise(places)]) == whole
    assert outcome([bytes([byte]) for byte in data]) == whole


# --- against wsproto -----------------------------------------------------------------------------


@given(MESSAGES)
def test_wsproto_reads_what_a_server_says(messages: list[tuple[int, bytes]]) -> None:
    peer = Connection(ConnectionType.CLIENT)
    peer.receive_data(b"".join(websocket.encode(kind, payload) for kind, payload in messages))
    peer.receive_data(websocket.encode_close(websocket.NORMAL, "bye"))
    found = joined(peer)
    assert found == [*messages, (CLOSE, b"bye")]


@given(MESSAGES)
def test_wsproto_reads_what_a_client_says(messages: list[tuple[int, bytes]]) -> None:
    peer = Connection(ConnectionType.SERVER)
    mask = os.urandom(4)
    said = [websocket.encode(kind, payload, mask=mask) for kind, payload in messages]
    peer.receive_data(b"".join(said))
    assert joined(peer) == messages


@given(MESSAGES, st.booleans())
def test_what_wsproto_says_is_read(messages: list[tuple[int, bytes]], is_server: bool) -> None:
    peer = Connection(ConnectionType.CLIENT if is_server else ConnectionType.SERVER)
    said = b"".join(peer.send(event(kind, payload)) for kind, payload in messages)
    said += peer.send(events.CloseConnection(code=3001, reason="so"))
    found = decode(said, is_server=is_server)
    assert found == [*(Message(k, p) for k, p in messages), Message(CLOSE, b"so", 3001)]


@given(st.binary(max_size=300))
def test_what_wsproto_refuses_is_refused(data: bytes) -> None:
    """With masks: wsproto takes a client's frames without, and closes that may not travel."""
    data = b"".join(
        bytes([piece[0], (piece[1] | 0x80) & 0xFF]) + piece[2:]
        for piece in (data[n : n + 40] for n in range(0, len(data), 40))
        if len(piece) > 1
    )
    peer = Connection(ConnectionType.SERVER)
    peer.receive_data(data)
    try:
        joined(peer)
    except wsproto.utilities.RemoteProtocolError:
        with pytest.raises(ProtocolError):
            decode(data)


def event(kind: int, payload: bytes) -> events.Event:
    match kind:
        case websocket.TEXT:
            return events.TextMessage(data=payload.decode())
        case websocket.BINARY:
            return events.BytesMessage(data=payload)
        case websocket.PING:
            return events.Ping(payload=payload)
        case _:
            return events.Pong(payload=payload)


def joined(peer: Connection) -> list[tuple[int, bytes]]:
    """The messages that wsproto found; it tells of parts."""
    found: list[tuple[int, bytes]] = []
    parts = b""
    for one in peer.events():
        if isinstance(one, events.Ping):
            found.append((PING, bytes(one.payload)))
        elif isinstance(one, events.Pong):
            found.append((PONG, bytes(one.payload)))
        elif isinstance(one, events.CloseConnection):
            found.append((CLOSE, (one.reason or "").encode()))
        elif isinstance(one, events.Message):
            is_text = isinstance(one, events.TextMessage)
            parts += one.data.encode() if is_text else bytes(one.data)
            if one.message_finished:
                found.append((TEXT if is_text else BINARY, parts))
                parts = b""
    return found


# --- the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(0xC2, b""), 1002),
        (frame(0x83, b""), 1002),
        (frame(0x8B, b""), 1002),
        (frame(0x80, b""), 1002),
        (frame(0x02, b"a") + frame(0x82, b"b"), 1002),
        (frame(0x09, b""), 1002),
        (frame(0x89, b"x" * 126), 1002),
        (frame(0x82, b"a", mask=None), 1002),
        (b"\x82\xfe\x00\x05" + MASK + b"12345", 1002),
        (b"\x82\xff" + struct.pack("!Q", 65535) + MASK, 1002),
        (b"\x82\xff" + struct.pack("!Q", 1 << 63) + MASK, 1002),
        (frame(0x81, b"\xff"), 1007),
        (frame(0x01, b"\xc3") + frame(0x80, b"x"), 1007),
        (frame(0x88, b"x"), 1002),
        (frame(0x88, struct.pack("!H", 1005)), 1002),
        (frame(0x88, struct.pack("!H", 999)), 1002),
        (frame(0x88, struct.pack("!H", 2999)), 1002),
        (frame(0x88, struct.pack("!H", 5000)), 1002),
        (frame(0x88, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(0x02, b"") + frame(0x00, b"") * 1024, 1008),
    ],
)
def test_rules_are_kept(data: bytes, code: int) -> None:
    assert fault(data) == code


def test_a_server_does_not_mask() -> None:
    assert fault(frame(0x82, b"a"), is_server=False) == 1002


def test_the_limit_holds_for_a_message_and_before_its_bytes_came() -> None:
    assert decode(frame(0x82, b"x" * 10), limit=10) == [Message(BINARY, b"x" * 10)]
    assert fault(frame(0x82, b"x" * 11), limit=10) == 1009
    assert fault(frame(0x82, b"x" * 200)[:4], limit=10) == 1009
    assert fault(frame(0x02, b"x" * 6) + frame(0x80, b"x" * 5), limit=10) == 1009
    assert decode(frame(0x89, b"x" * 100), limit=10) == [Message(PING, b"x" * 100)]


def test_text_may_be_cut_within_a_letter() -> None:
    assert decode(frame(0x01, b"\xc3") + frame(0x80, b"\xa4")) == [Message(TEXT, "ä".encode())]


def test_after_a_close_nothing_is_read() -> None:
    decoder = Decoder(is_server=True)
    data = frame(0x88, b"") + frame(0xFF, b"x")
    assert list(decoder.feed(data)) == [Message(CLOSE)]
    assert decoder.is_closed
    assert list(decoder.feed(data)) == []


def test_a_long_reason_is_cut_at_a_letter() -> None:
    (message,) = decode(websocket.encode_close(1011, "ä" * 100), is_server=False)
    assert (message.code, message.data.decode()) == (1011, "ä" * 61)


def test_the_handshakes_example() -> None:
    """RFC 6455, 1.3."""
    assert websocket.accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert websocket.is_key(websocket.make_key())
    assert not websocket.is_key("short")
    assert not websocket.is_key("!" * 24)
    assert not websocket.is_key("")
    assert websocket.tokens("keep-alive , Upgrade,") == ["keep-alive", "upgrade"]
