"""Memory, broken lines, dead sandboxes, full disks. Points 49, 53 and 54; each has a daemon of its own."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sandman._core.config import Limits
from sandman.errors import NoSpaceError, OutcomeUnknownError, UnreachableError
from tests.conformance import container, direct, spec
from tests.conformance.cells import PYTHON, Box, over
from tests.conformance.test_time import send_and_leave

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandman._sync.sandbox import Sandbox

MIB = 1 << 20
EAT = """
import os
os.write(1, b"begun")
pile = []
while True: pile.append(bytearray(os.urandom(4096) * 256))
"""
SMALL = spec.Limits(memory_bytes=96 * MIB)
TELLING = ["debian-0", "musl-65534", "empty-0"]
IMPATIENT = Limits(retry_s=1.0, connect_s=1.0)


@pytest.mark.parametrize("name", TELLING)
def test_point_49_a_child_killed_for_want_of_memory_is_told(
    fresh: Callable[..., Box], name: str
) -> None:
    box = fresh(name, limits=SMALL)
    result = box.python(EAT, timeout_s=120)
    assert (result.exit_code, result.signal, result.timed_out) == (137, 9, False)
    assert result.oom_killed is True
    assert result.stdout == b"begun"
    # The sandbox and its next command are none the worse.
    result = box.python("import os; os.kill(os.getpid(), 9)")
    assert (result.exit_code, result.oom_killed) == (137, False)
    assert box.python("print('alive')").stdout == b"alive\n"


@pytest.mark.parametrize("name", ["debian-0", "musl-65534"])
def test_point_49_a_grandchild_killed_for_want_of_memory_is_told(
    fresh: Callable[..., Box], name: str
) -> None:
    box = fresh(name, limits=SMALL)
    script = f"import os\nif os.fork() == 0:\n    exec({EAT!r})\nprint(os.wait()[1])"
    result = box.python(script, timeout_s=120)
    assert (result.exit_code, result.stdout) == (0, b"begun9\n")
    assert result.oom_killed is True


@pytest.mark.parametrize("name", TELLING)
def test_point_49_a_dead_sandbox_is_an_error_and_never_an_exit_code(
    fresh: Callable[..., Box], name: str
) -> None:
    box = fresh(name)
    with direct.sandbox(box.container.url, container.TOKEN, IMPATIENT) as sandbox:
        with pytest.raises(OutcomeUnknownError):
            _kill_at_the_first_word(box, sandbox)
        with pytest.raises((UnreachableError, OutcomeUnknownError)):
            sandbox.exec([*PYTHON, "pass"])
        with pytest.raises(UnreachableError):
            sandbox.files.read("/etc/hosts")


def _kill_at_the_first_word(box: Box, sandbox: Sandbox) -> None:
    script = "import os, time; os.write(1, b'x'); time.sleep(600)"
    with sandbox.stream([*PYTHON, script]) as stream:
        for _ in stream:
            box.container.kill()


@pytest.mark.parametrize("name", TELLING)
def test_point_49_the_end_of_pid_1_is_the_end_of_all(fresh: Callable[..., Box], name: str) -> None:
    box = fresh(name)
    box.python("import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(600)")
    assert len(box.container.strangers()) == 1
    box.container.kill()
    assert not box.container.is_alive()


@over()
def test_point_53_a_result_is_found_again_by_its_id(box: Box) -> None:
    exec_id = f"lost-{time.monotonic_ns()}"
    body = {
        "argv": [*PYTHON, "import os, time; os.write(1, b'up'); time.sleep(0.3); os._exit(9)"],
        "exec_id": exec_id,
        "attached_grace_s": 30,
    }
    send_and_leave(box, "/v1/exec", body, seen=b"up")
    result = box.sandbox.process(exec_id).wait()
    assert (result.exit_code, result.stdout, result.abandoned) == (9, b"up", False)


@over("debian-0", "musl-65534", "empty-0")
def test_point_53_the_client_comes_back_over_lines_that_break(box: Box, place: str) -> None:
    script = (
        "import os, sys, time\n"
        "open(sys.argv[1], 'a').write('ran')\n"
        "for n in range(60): os.write(1, b'%04d' % n * 8192); time.sleep(0.01)"
    )
    # Longer than any frame: half a frame is no progress.
    with Cutter(box.container.port, after=400_000) as cutter:
        url = f"http://127.0.0.1:{cutter.port}"
        with direct.sandbox(url, container.TOKEN) as sandbox:
            result = sandbox.exec([*PYTHON, script, f"{place}/times"])
        assert cutter.cuts > 1
    assert result.stdout == b"".join(b"%04d" % n * 8192 for n in range(60))
    assert box.files.read(f"{place}/times") == b"ran"


class Cutter:
    """A line to the daemon that breaks each time that so many bytes have come back."""

    def __init__(self, port: int, after: int) -> None:
        self.cuts = 0
        self._to = port
        self._after = after
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Cutter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)

    def _serve(self) -> None:
        lines = []
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                break
            lines.append(threading.Thread(target=self._relay, args=(caller,), daemon=True))
            lines[-1].start()
        for line in lines:
            line.join(10)

    def _relay(self, caller: socket.socket) -> None:
        with caller, socket.create_connection(("127.0.0.1", self._to)) as daemon:
            there = threading.Thread(target=self._copy, args=(caller, daemon, None), daemon=True)
            there.start()
            if self._copy(daemon, caller, self._after):
                self.cuts += 1
            for sock in (caller, daemon):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            there.join(10)

    def _copy(self, source: socket.socket, target: socket.socket, most: int | None) -> bool:
        """Whether it was cut."""
        left = most
        try:
            while piece := source.recv(16384 if left is None else min(16384, left)):
                target.sendall(piece)
                if left is not None:
                    left -= len(piece)
                    if left <= 0:
                        return True
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return False


@over()
def test_point_54_a_full_disk_is_the_programs_and_the_calls_own_error(box: Box) -> None:
    path = f"{container.SMALL}/file"
    box.files.write(path, b"kept")
    with pytest.raises(NoSpaceError, match=path):
        box.files.write(path, b"x" * (container.SMALL_BYTES + 1))
    assert box.files.read(path) == b"kept"
    assert len(box.files.list(container.SMALL)) == 1
    script = (
        "import errno, os, sys\n"
        "file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "try:\n    while True: os.write(file, bytes(65536))\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
        "finally: os.unlink(sys.argv[1])"
    )
    assert box.python(script, f"{container.SMALL}/fill").stdout == b"ENOSPC\n"
    box.files.delete(path)


@over("debian-0", "musl-65534", "readonly-1000")
def test_point_54_a_tree_on_a_full_disk_says_how_far_it_came(box: Box, tmp_path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"x" * MIB)
    with pytest.raises(NoSpaceError) as caught:
        box.files.upload_dir(tmp_path, f"{container.SMALL}/tree")
    assert 0 < caught.value.facts["members"] < 7
    box.files.delete(f"{container.SMALL}/tree", recursive=True)
