"""What a neighbour does in its sandbox, whose Python runs this text: `burning.py KIND FILE`, for ever. FILE holds the bytes moved so far.

`processor`: some processes spin. `memory` copies more than any cache holds. Both do so for a while and rest for a while, by the clock and so
together: neighbours come and go. `disk` writes and waits until it is written, all the time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

SPINNING = 4
BUSY_S, REST_S = (5.0, 15.0), (4.0, 10.0)
"""The least and the most of each."""
COPIED = 96 << 20
WRITTEN, PIECE, PAUSE_S = 64 << 20, 1 << 20, 0.1
"""With the pause it is some hundred MB/s: without, a fast disk would be worn by terabytes in an hour."""


def spans() -> list[float]:
    """A cycle of them, busy and at rest in turn: drawn, and the same in each piece of a measurement."""
    draw = random.Random(7)
    return [draw.uniform(*span) for _ in range(16) for span in (BUSY_S, REST_S)]


SPANS = spans()


def phase(at: float) -> tuple[bool, float]:
    """Whether one is busy at a time by the clock, and for how many seconds still."""
    left = at % sum(SPANS)
    for number, span in enumerate(SPANS):
        if left < span:
            return number % 2 == 0, span - left
        left -= span
    return False, 0.01  # What rounding has left over.


def processor(told: int) -> None:
    """Moves nothing: its cgroup tells what it took."""
    del told
    children = [spinning() for _ in range(SPINNING)]
    while True:
        busy, left = phase(time.time())
        for child in children:
            os.kill(child, signal.SIGCONT if busy else signal.SIGSTOP)
        time.sleep(left)


def spinning() -> int:
    """A child that does nothing else, and forks no further."""
    child = os.fork()
    while child == 0:
        pass
    return child


def memory(told: int) -> None:
    """From one buffer to another."""
    source, target, moved = memoryview(bytearray(COPIED)), memoryview(bytearray(COPIED)), 0
    while True:
        busy, left = phase(time.time())
        if not busy:
            time.sleep(left)
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
