"""Frames: any bytes at any split, against a reader that is too simple to be wrong."""

from __future__ import annotations

import struct

from sandman import wire
from sandman.errors import BadRequestError
from tests.fuzz.choices import each_byte, pieces

Reading = tuple[list[wire.Frame], bool, bool]
"""Frames, whether the bytes ended on a border, whether they were refused."""


def check(data: bytes) -> None:
    """Decode; what was read must give the same bytes again."""
    expected = simple(data)
    for cut in ([data], pieces(data), each_byte(data[:3000])):
        whole = expected if len(data) <= 3000 or len(cut) < 10 else simple(data[:3000])
        assert decode(cut) == whole
    assert one_by_one(data) == expected
    again = b"".join(wire.encode_frame(*frame) for frame in expected[0])
    assert data.startswith(again)


def simple(data: bytes) -> Reading:
    """The format as its description has it."""
    frames: list[wire.Frame] = []
    while len(data) >= 5:
        kind, length = struct.unpack(">BI", data[:5])
        if kind not in wire.FRAME_TYPES or length > wire.MAX_FRAME_BYTES:
            return frames, False, True
        if len(data) < 5 + length:
            break
        frames.append(wire.Frame(kind, data[5 : 5 + length]))
        data = data[5 + length :]
    return frames, not data, False


def decode(cut: list[bytes]) -> Reading:
    """What our decoder makes of these pieces."""
    decoder = wire.FrameDecoder()
    frames: list[wire.Frame] = []
    for piece in cut:
        try:
            frames += _most(decoder, piece)
        except _RefusedError as error:
            return frames + error.frames, False, True
    return frames, decoder.is_clean, False


class _RefusedError(Exception):
    def __init__(self, frames: list[wire.Frame]) -> None:
        super().__init__()
        self.frames = frames


def _most(decoder: wire.FrameDecoder, piece: bytes) -> list[wire.Frame]:
    frames: list[wire.Frame] = []
    try:
        for frame in decoder.feed(piece):
            frames.append(frame)  # noqa: PERF402 - those before the refusal count
    except BadRequestError:
        raise _RefusedError(frames) from None
    return frames


def one_by_one(data: bytes) -> Reading:
    """As `uploads` does: one frame is taken, the others are asked for later, without more bytes."""
    decoder = wire.FrameDecoder()
    frames: list[wire.Frame] = []
    feed = data
    try:
        while (frame := next(decoder.feed(feed), None)) is not None:
            frames.append(frame)
            feed = b""
    except BadRequestError:
        return frames, False, True
    return frames, decoder.is_clean, False
