"""Timeouts, trees, callers that leave. Points 13 to 19."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import pytest
import trio

from sandman import names, wire
from sandman._core.config import Limits
from sandman.errors import BadRequestError
from tests.conformance import container
from tests.conformance.cells import EACH_IMAGE, PYTHON, Box, over, over_each_image, with_shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.cells import Cell

TRIES = 4
"""A machine that others load may be late with anything: the best of a few is what the daemon does."""

SILENT = "import time; time.sleep(600)"
NOISY = "import os\nwhile True: os.write(1, b'noise')"
HELD = """
import os, time
if os.fork() == 0:
    os.setsid()  # holds both pipes, and the leader has gone by then
    time.sleep(600)
time.sleep(600)
"""
CLOSED = "import os, time; os.close(1); os.close(2); time.sleep(600)"


def lateness(box: Box, script: str, timeout_s: float, **options: object) -> float:
    """How long after its deadline the result came; the best of some tries, the first good one ends it."""
    best = 1e9
    for _ in range(TRIES):
        begun = time.monotonic()
        result = box.python(script, timeout_s=timeout_s, **options)
        assert result.timed_out
        best = min(best, time.monotonic() - begun - timeout_s)
        if best < 1:
            break
    return best


@over_each_image()
@pytest.mark.parametrize(
    "script", [SILENT, NOISY, HELD, CLOSED], ids=["silent", "noisy", "held", "closed"]
)
def test_point_13_a_timeout_fires_within_a_second(box: Box, script: str) -> None:
    assert lateness(box, script, 0.2) < 1


DAEMONISED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        {before}
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], {env})
    os._exit(0)
os.wait()
os.write(1, b"up")
time.sleep(600)
"""


def daemonised(before: str = "pass", env: str = "os.environ") -> str:
    """A script whose grandchild left its parents, its group and its session."""
    return DAEMONISED.format(before=before, env=env)


@over_each_image()
def test_point_14_a_timeout_ends_the_whole_tree(box: Box) -> None:
    result = box.python(daemonised(), timeout_s=0.7)
    assert (result.timed_out, result.stdout) == (True, b"up")
    assert box.wait_alone() == {}


@over_each_image()
def test_point_14_also_who_cleared_the_environment(box: Box) -> None:
    assert box.python(daemonised(env="{}"), timeout_s=0.7).timed_out
    assert box.wait_alone() == {}


@over("debian-0", "musl-0", "empty-0")
def test_point_14_also_who_changed_the_user(box: Box) -> None:
    before = "os.setgid(4321); os.setuid(4321)"
    for env in ("os.environ", "{}"):
        assert box.python(daemonised(before, env), timeout_s=0.7).timed_out
        assert box.wait_alone() == {}


@over_each_image()
def test_point_14_also_who_cleared_the_environment_while_another_command_runs(box: Box) -> None:
    other = box.sandbox.start([*PYTHON, SILENT])
    try:
        assert box.python(daemonised(env="{}"), timeout_s=0.7).timed_out
        deadline = time.monotonic() + 3
        while len(box.container.strangers()) > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        left = box.container.strangers()
        assert other.refresh().state == "running"
        assert len(left) == 1, left
    finally:
        other.kill()
        other.wait()


IGNORES_TERM = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
time.sleep(600)
"""


def test_point_14_kill_follows_after_five_seconds_for_who_ignores_term(
    boxes: Callable[[Cell], Box],
) -> None:
    # In all images at once: each waits for the same five seconds.
    chosen = [boxes(cell) for cell in EACH_IMAGE]
    with ThreadPoolExecutor(len(chosen)) as pool:
        for box, (result, took) in zip(chosen, pool.map(_outlast, chosen), strict=True):
            assert (result.timed_out, result.exit_code, result.signal) == (True, 137, 9), box
            assert took > wire.TERM_GRACE_S
            assert box.wait_alone() == {}


def _outlast(box: Box) -> tuple[wire.ExecResult, float]:
    begun = time.monotonic()
    result = box.python(IGNORES_TERM, timeout_s=0.5)
    return result, time.monotonic() - begun


@over_each_image()
def test_point_14_term_is_a_chance_to_clean_up(box: Box, place: str) -> None:
    script = f"""
import os, signal, time
def end(*_):
    open({place + "/clean"!r}, "w").close()
    os._exit(9)
signal.signal(signal.SIGTERM, end)
os.write(1, b"up")
time.sleep(600)
"""
    result = box.python(script, timeout_s=0.5)
    assert (result.exit_code, result.signal, result.timed_out) == (9, None, True)
    assert box.files.exists(f"{place}/clean")


@over(where=with_shell)
def test_point_14_a_shells_pipeline_is_ended_whole(box: Box) -> None:
    result = box.run("yes | sleep 600 | cat; echo never", timeout_s=0.3)
    assert (result.timed_out, result.stdout) == (True, b"")
    assert box.wait_alone() == {}


@over_each_image()
def test_point_15_partial_output_comes_with_the_timeout(box: Box) -> None:
    script = "import os, time; os.write(1, b'out'); os.write(2, b'err'); time.sleep(600)"
    result = box.python(script, timeout_s=0.5)
    assert (result.timed_out, result.ok) == (True, False)
    assert (result.stdout, result.stderr) == (b"out", b"err")
    assert result.wall_s >= 0.5


@over_each_image()
def test_point_16_a_timeout_touches_no_other_command(box: Box) -> None:
    other = box.sandbox.start(
        [*PYTHON, "import os; os.write(1, os.read(0, 9)); os._exit(3)"], stdin_open=True
    )
    assert box.python(HELD, timeout_s=0.3).timed_out
    assert box.python("print('at once')").stdout == b"at once\n"
    assert other.refresh().state == "running"
    other.write(b"still")
    result = other.wait()
    assert (result.exit_code, result.stdout) == (3, b"still")


@over("debian-0", "empty-65534")
async def test_point_17_a_silent_command_outlasts_the_limits_of_a_transfer(box: Box) -> None:
    async with box.aio(Limits(silence_s=0.5, idle_s=0.5)) as sandbox:
        result = await sandbox.exec([*PYTHON, "import time; time.sleep(1.2); print('done')"])
        assert (result.exit_code, result.stdout) == (0, b"done\n")


@over_each_image()
def test_point_17_a_detached_command_outlives_its_caller(box: Box) -> None:
    exec_id = f"detached-{time.monotonic_ns()}"
    body = {
        "argv": [*PYTHON, "import time; time.sleep(0.5); print('kept')"],
        "exec_id": exec_id,
        "detached": True,
    }
    send_and_leave(box, "/v1/processes", body)
    result = box.sandbox.process(exec_id).wait()
    assert (result.exit_code, result.stdout, result.abandoned) == (0, b"kept\n", False)


def send_and_leave(box: Box, path: str, body: dict[str, object], *, seen: bytes = b"200") -> None:
    """Make a call, wait for a sign of it, and be gone without a word."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {container.TOKEN}\r\n"
        f"Accept: {names.MEDIA_FRAMES}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", box.container.port), timeout=30) as sock:
        sock.sendall(head.encode() + data)
        got = b""
        while seen not in got:
            piece = sock.recv(65536)
            assert piece, got
            got += piece


@over_each_image()
async def test_point_18_a_cancelled_call_ends_its_command(box: Box) -> None:
    async with box.aio() as sandbox:
        with anyio.move_on_after(0.5) as scope:
            await sandbox.exec([*PYTHON, HELD])
        assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(box.wait_alone) == {}


@over()
def test_point_18_a_caller_that_vanishes_ends_its_command(box: Box) -> None:
    script = "import os, time\nos.fork(); os.write(1, b'up')\ntime.sleep(600)"
    send_and_leave(box, "/v1/exec", {"argv": [*PYTHON, script]}, seen=b"up")
    assert box.wait_alone() == {}


@over()
def test_point_18_leaving_a_stream_early_ends_its_command(box: Box) -> None:
    with box.sandbox.stream([*PYTHON, NOISY]) as stream:
        next(iter(stream))
    assert box.wait_alone() == {}


@over()
def test_point_19_timeouts_are_fractions_or_none(box: Box) -> None:
    assert box.python(SILENT, timeout_s=0.05).timed_out
    assert not box.python("import time; time.sleep(0.1)", timeout_s=None).timed_out
    for bad in (0, -1):
        with pytest.raises(BadRequestError):
            box.python("pass", timeout_s=bad)


@over("musl-65534")
def test_point_16_many_timeouts_at_once_are_each_their_own(box: Box) -> None:
    results: list[tuple[int, wire.ExecResult]] = []

    def one(number: int) -> None:
        script = f"import os, time; os.write(1, b'{number}'); time.sleep(600 * ({number} % 2))"
        results.append((number, box.python(script, timeout_s=3)))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    for number, result in results:
        assert (result.stdout, result.timed_out) == (str(number).encode(), number % 2 == 1)
