"""What a neighbour does in its sandbox, whose Python runs this text: `burning.py KIND FILE`, for ever. FILE holds the bytes moved so far.

`processor`: some processes spin, all at once and then none, for spans that are drawn: neighbours come and go. `memory` copies more than any
cache holds; `disk` writes and waits until it is written.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

SPINNING = 4
SPAN_S = (2.0, 8.0)
"""The least and the most of spinning, and of rest."""
COPIED = 96 << 20
WRITTEN, PIECE, PAUSE_S = 64 << 20, 1 << 20, 0.1
"""With the pause it is some hundred MB/s: without, a fast disk would be worn by terabytes in an hour."""


def processor(told: int) -> None:
    """Moves nothing: its cgroup tells what it took."""
    del told
    children = [os.fork() for _ in range(SPINNING)]
    if not all(children):
        while True:
            pass
    draw = random.Random(
        7
    )  # on purpose: no secret, and the same spans in each piece of a measurement
    while True:
        for what in (signal.SIGCONT, signal.SIGSTOP):
            for child in children:
                os.kill(child, what)
            time.sleep(draw.uniform(*SPAN_S))


def memory(told: int) -> None:
    """From one buffer to another."""
    source, target, moved = memoryview(bytearray(COPIED)), memoryview(bytearray(COPIED)), 0
    while True:
        target[:] = source
        moved += COPIED
        tell(told, moved)


def disk(told: int) -> None:
    """Over the same file again and again: it must not fill the node."""
    piece, moved = bytes(PIECE), 0
    file = os.open("/tmp/burning", os.O_WRONLY | os.O_CREAT)
    while True:
        for at in range(0, WRITTEN, PIECE):
            os.pwrite(file, piece, at)
        os.fsync(file)
        moved += WRITTEN
        tell(told, moved)
        time.sleep(PAUSE_S)


def tell(told: int, moved: int) -> None:
    """So that it is read whole, as it is written."""
    os.pwrite(told, b"%020d" % moved, 0)


if __name__ == "__main__":
    file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o644)
    tell(file, 0)
    {"processor": processor, "memory": memory, "disk": disk}[sys.argv[1]](file)
