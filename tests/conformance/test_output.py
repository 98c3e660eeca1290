"""How much output there may be, and that all of it comes. Points 20 to 22."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandman._core.values import Stdout
from sandman.wire import ExecResult
from tests.conformance.cells import PYTHON, Box, over, over_each_image

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
WRITE = (
    "import os\nn = {size}\nwhile n: n -= os.write(1, b'x' * min(n, 65536))\nos.write(1, b'end')"
)
DAEMON_KIB = 64 * 1024
"""What the daemon itself may need at most, whatever its commands write."""


@over()
def test_point_20_over_the_limit_head_and_tail_are_kept(box: Box) -> None:
    script = (
        "import os\nos.write(1, b''.join(b'%d\\n' % n for n in range(200000))); os.write(2, b'e')"
    )
    whole = b"".join(b"%d\n" % n for n in range(200000))
    result = box.python(script, output_limit=1000)
    assert result.stdout == whole[:500] + whole[-500:]
    assert (result.stdout_truncated, result.stdout_bytes) == (True, len(whole))
    assert (result.stderr, result.stderr_truncated) == (b"e", False)


@over_each_image()
def test_point_20_the_daemon_keeps_to_the_limit_too(box: Box) -> None:
    body = {"argv": [*PYTHON, WRITE.format(size=12 * MIB)]}
    answer = box.http.post("/v1/exec", json=body)
    result = ExecResult.from_json(answer.json())
    assert (result.stdout_truncated, result.stdout_bytes) == (True, 12 * MIB + 3)
    assert len(result.stdout) == 10 * MIB
    assert result.stdout.endswith(b"xend")


@pytest.mark.parametrize("name", ["debian-0", "musl-65534"])
def test_point_20_memory_is_bounded_whatever_is_written(
    fresh: Callable[..., Box], name: str
) -> None:
    box = fresh(name)
    result = box.python(WRITE.format(size=300 * MIB), output_limit=MIB)
    assert (result.stdout_bytes, len(result.stdout)) == (300 * MIB + 3, MIB)
    body = {"argv": [*PYTHON, WRITE.format(size=300 * MIB)], "output_limit": MIB}
    assert box.http.post("/v1/exec", json=body).json()["stdout_bytes"] == 300 * MIB + 3
    assert box.container.peak_kib() < DAEMON_KIB


@over_each_image()
def test_point_21_half_a_mebibyte_and_the_limit_itself_are_whole(box: Box) -> None:
    for size in (500 * 1024, 10 * MIB - 3):
        result = box.python(WRITE.format(size=size))
        assert (len(result.stdout), result.stdout_truncated) == (size + 3, False)
        assert result.stdout.endswith(b"xend")


@over("debian-0", "musl-65534", "busybox-0", "readonly-1000")
def test_point_21_an_endless_writer_ends_with_its_reader(box: Box) -> None:
    # GNU's `yes` writes by the block, busybox's by the line.
    size = 200_000_000 if box.cell.shell == "bash" else 20_000_000
    result = box.run(f"yes | head -c {size}", output_limit=MIB)
    assert (result.exit_code, result.stdout_bytes) == (0, size)
    assert result.stdout_truncated


@over("debian-0", "musl-65534", "busybox-0", "readonly-1000")
def test_point_22_two_million_lines_are_complete(box: Box) -> None:
    last = b""
    size = 0
    with box.sandbox.stream(shell="seq 1 2000000") as stream:
        for event in stream:
            assert isinstance(event, Stdout)
            size += len(event.data)
            last = (last + event.data)[-8:]
    assert (size, last, stream.result.exit_code) == (14_888_896, b"2000000\n", 0)


@over("debian-0", "musl-65534")
def test_point_22_fifty_runs_of_fifty_are_complete(box: Box) -> None:
    for _ in range(50):
        result = box.run("seq 1 100000")
        assert (result.stdout_bytes, result.stdout[-7:]) == (588_895, b"100000\n")


@over()
def test_point_22_the_last_words_are_never_lost(box: Box) -> None:
    script = "import os; os.write(1, b'x' * 60000); os.write(1, b'last'); os._exit(7)"
    for _ in range(20):
        result = box.python(script)
        assert (result.exit_code, len(result.stdout)) == (7, 60004)
        assert result.stdout.endswith(b"xlast")
