"""Attacks by a sandbox's own processes: on process 1 itself, and on what it needs."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.runc.judge import attacked, boot_id, client, is_right, not_wrong, python, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.cells import Box

BOTH = pytest.mark.parametrize("cell", ["debian-0", "debian-65534"])
MIB = 1 << 20


def ask(box: Box, script: str, **more: object) -> str:
    """What the script prints; it must end well. By the image's own Python, which has ctypes."""
    with client(box) as http:
        body = run(http, ["python3", "-I", "-c", script], **more).json()
    assert body.get("exit_code") == 0, body
    return str(body["stdout"])


# --- process 1 itself ---

READ = """
import os
for name in ("mem", "environ", "maps", "auxv", "io", "stack", "syscall"):
    try:
        with open(f"/proc/1/{name}", "rb") as file:
            print(name, len(file.read(100)))
    except OSError as error:
        pass
for name in ("exe", "cwd", "root"):
    try:
        print(name, os.readlink(f"/proc/1/{name}"))
    except OSError:
        pass
try:
    numbers = os.listdir("/proc/1/fd")
except OSError:
    numbers = ["0", "1", "2", "3"]
for number in numbers:
    try:
        print(number, os.readlink(f"/proc/1/fd/{number}"))
    except OSError:
        pass
    try:
        print(number, os.open(f"/proc/1/fd/{number}", os.O_RDWR))
    except OSError:
        pass
"""

TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
PROCESS_VM_READV, PIDFD_OPEN, PIDFD_GETFD = 310, 434, 438
for request in (PTRACE_ATTACH, PTRACE_SEIZE):
    if libc.ptrace(request, 1, 0, 0) == 0:
        print("traced", request)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(64)
mine, its = Vector(ctypes.addressof(buffer), 64), Vector(0x400000, 64)
if libc.syscall(PROCESS_VM_READV, 1, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0) > 0:
    print("read")
pidfd = libc.syscall(PIDFD_OPEN, 1, 0)
for number in range(8):
    if libc.syscall(PIDFD_GETFD, pidfd, number, 0) >= 0:
        print("took", number)
"""


@BOTH
def test_nothing_of_it_can_be_read_or_traced(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    assert ask(box, READ) == ""
    assert ask(box, TRACE) == ""
    is_right(box)


SIGNALS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
TGKILL, QUEUE = 234, 129
threads = [int(name) for name in os.listdir("/proc/1/task")]
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
    for thread in threads:
        libc.syscall(TGKILL, 1, thread, number)
    for code in (0, -1, -6):
        info = (ctypes.c_int * 32)(number, 0, code)
        libc.syscall(QUEUE, 1, number, info)
print("sent")
"""


@BOTH
def test_no_signal_from_inside_stops_or_ends_it(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    before = boot_id(box)
    assert ask(box, SIGNALS) == "sent\n"
    with client(box) as http:
        found = run(http, ["sh", "-c", "kill -STOP 1; kill -KILL -1"]).json()
    assert found["signal"] in {None, signal.SIGKILL}
    assert box.container.is_alive()
    assert boot_id(box) == before
    is_right(box)


PRIORITY = """
import os
os.setpriority(os.PRIO_PROCESS, 1, 19)
for thread in os.listdir("/proc/1/task"):
    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
print("done")
"""


@BOTH
def test_starved_of_the_processor_it_is_slow_and_right(
    fresh: Callable[..., Box], cell: str
) -> None:
    box = fresh(cell)
    assert ask(box, PRIORITY) == "done\n"
    busy = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    with attacked(box, python(busy)):
        is_right(box)
    is_right(box)


@BOTH
def test_its_children_are_likelier_victims_than_it_is(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    with attacked(box, python("import os, time; os.fork(); time.sleep(60)")):
        found = {pid: _oom_score_adj(pid) for pid in box.container.strangers()}
        assert len(found) >= 1
        assert min(found.values()) >= _oom_score_adj(box.container.pid) + 100


def _oom_score_adj(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


LIMITS = {
    "NOFILE": "(0, 0)",
    "NOFILE-3": "(12, 12)",
    "FSIZE": "(0, 0)",
    "NPROC": "(0, 0)",
    "AS": "(1, 1)",
    "DATA": "(1, 1)",
    "STACK": "(65536, 65536)",
    "MEMLOCK": "(0, 0)",
    "SIGPENDING": "(0, 0)",
}


@BOTH
@pytest.mark.parametrize("limit", LIMITS)
def test_limits_that_a_command_sets_for_it(
    fresh: Callable[..., Box], cell: str, limit: str
) -> None:
    # Who has its uid may lower them, and nothing can prevent that.
    box = fresh(cell)
    name = limit.partition("-")[0]
    script = f"import resource; resource.prlimit(1, resource.RLIMIT_{name}, {LIMITS[limit]})"
    with contextlib.suppress(httpx.TransportError):
        ask(box, script)
    not_wrong(box, 1.0, timeout_s=2.0)


def test_a_limit_of_the_processor_ends_it_and_no_answer_lies(fresh: Callable[..., Box]) -> None:
    box = fresh("debian-65534")
    with contextlib.suppress(httpx.TransportError):
        ask(box, "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))")
    not_wrong(box, 4.0, timeout_s=2.0)
