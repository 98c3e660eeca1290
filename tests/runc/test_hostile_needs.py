"""Commands that take the daemon's port, or what it needs: it answers rightly or not at all."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from sandman import names
from tests.conformance import container, spec
from tests.runc.judge import attacked, boot_id, client, is_right, not_wrong, python, run
from tests.runc.test_hostile import BOTH, MIB, ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.cells import Box

# --- its port ---

REBIND = """
import socket, sys
port = int(sys.argv[1])
taken = []
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"),
                        (socket.AF_INET6, "::"), (socket.AF_INET6, "::1")):
    for options in ((), ("SO_REUSEADDR",), ("SO_REUSEPORT",), ("SO_REUSEADDR", "SO_REUSEPORT")):
        with socket.socket(family) as sock:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            for option in options:
                sock.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            try:
                sock.bind((address, port))
                sock.listen()
            except OSError:
                continue
            print("listens on", address, options)
"""


@BOTH
def test_nobody_else_listens_on_its_port(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    with client(box) as http:
        argv = ["python3", "-I", "-c", REBIND, str(box.container.port)]
        found = run(http, argv).json()
    assert (found["exit_code"], found["stdout"]) == (0, ""), found
    is_right(box)


CONNECT = """
import socket, sys, time
held = []
while len(held) < 900:
    try:
        sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2)
        sock.sendall(b"POST /v1/exec HTTP/1.1\\r\\nContent-Length: 1000000000\\r\\n" if len(held) % 2 else b"")
        held.append(sock)
    except OSError:
        held.append(None)
time.sleep(600)
"""


@BOTH
def test_a_flood_of_connections_from_inside_passes(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell, limits=spec.Limits(processes=2048))
    with attacked(box, ["python3", "-I", "-c", CONNECT, str(box.container.port)]):
        time.sleep(3)
        not_wrong(box, 5.0)
    is_right(box)


GARBAGE = (
    b"\0" * 4096,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"POST /v1/exec HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /v1/claim HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
    b"GET /v1/info HTTP/1.1\r\nAuthorization: Bearer " + b"x" * 20000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


def test_garbage_without_a_token_is_refused(fresh: Callable[..., Box]) -> None:
    box = fresh("debian-65534")
    for data in GARBAGE:
        with socket.create_connection(("127.0.0.1", box.container.port), timeout=10) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(64)
            assert answer[:12] in {b"", b"HTTP/1.1 400", b"HTTP/1.1 401"}, (data[:40], answer)
    is_right(box)


# --- what it needs ---

BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@BOTH
def test_a_fork_bomb_is_ended_whole(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell, limits=spec.Limits(processes=96))
    with client(box) as http:
        found = run(http, python(BOMB), timeout_s=3).json()
        assert found["timed_out"], found
    assert box.wait_alone() == {}
    is_right(box)


# One that is always gone when it is found, once in the session of its command, once in a new one each time.
HOPPER = """
import os, time
if os.fork():
    time.sleep(60)
while True:
    if os.fork():
        os._exit(0)
"""


@BOTH
@pytest.mark.parametrize("script", [HOPPER, f"{HOPPER}    os.setsid()\n"], ids=["here", "away"])
def test_who_hops_from_process_to_process_is_caught(
    fresh: Callable[..., Box], cell: str, script: str
) -> None:
    box = fresh(cell)
    with client(box) as http:
        server = {"argv": python("import time; time.sleep(600)"), "detached": True}
        assert http.post("/v1/processes", json={**server, "exec_id": "server"}).status_code == 200
        assert run(http, python(script), timeout_s=1).json()["timed_out"]
        assert http.get("/v1/processes/server").json()["state"] == "running"
        assert len(box.container.strangers()) == 1
        assert http.delete("/v1/processes/server").status_code == 204
    assert box.wait_alone() == {}
    is_right(box)


@BOTH
def test_beside_a_fork_bomb_no_answer_is_wrong(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell, limits=spec.Limits(processes=96))
    with attacked(box, python(BOMB), timeout_s=6):
        not_wrong(box, 5.0)
    assert box.wait_alone() == {}
    is_right(box)


EATER = "data = []\nwhile True: data.append(bytes(range(256)) * 4096)"


@BOTH
def test_who_eats_the_memory_dies_of_it_and_the_daemon_does_not(
    fresh: Callable[..., Box], cell: str
) -> None:
    box = fresh(cell, limits=spec.Limits(memory_bytes=128 * MIB))
    before = boot_id(box)
    for script in (EATER, f"import os\nfor _ in range(4): os.fork()\n{EATER}"):
        with client(box) as http:
            found = run(http, python(script), timeout_s=60).json()
        assert found["signal"] == signal.SIGKILL, found
        assert found["oom_killed"] is not False, found
        box.wait_alone()
    assert boot_id(box) == before
    is_right(box)


@BOTH
def test_a_torrent_of_output_is_bounded_and_exact(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell, limits=spec.Limits(memory_bytes=192 * MIB))
    script = "import os\nwhile True: os.write(1, b'y' * 65536); os.write(2, b'n' * 65536)"
    with attacked(box, python(script)), attacked(box, python(script)):
        not_wrong(box, 3.0)
    assert box.wait_alone() == {}
    with client(box) as http:
        found = run(http, python(script), timeout_s=1, output_limit=1 * MIB).json()
    assert found["timed_out"]
    assert found["stdout_truncated"]
    assert set(found["stdout"]) == {"y"}
    assert set(found["stderr"]) == {"n"}
    is_right(box)


FULL = """
import os, sys
fd = os.open(sys.argv[1] + "/full", os.O_CREAT | os.O_WRONLY)
block = b"x" * 65536
while block:
    try:
        os.write(fd, block)
    except OSError:
        block = block[: len(block) // 2]
"""


@BOTH
def test_a_full_disk_is_told_as_such(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    with client(box) as http:
        for place in (container.SMALL, container.VOLUME, "/dev/shm"):
            assert run(http, ["python3", "-I", "-c", FULL, place]).json()["exit_code"] == 0
        path = {"path": f"{container.SMALL}/new"}
        put = http.put("/v1/files", params=path, content=b"x" * MIB)
        assert (put.status_code, put.json()["reason"]) == (507, "no_space")
        assert http.get("/v1/files", params=path).status_code == 404
        found = run(http, ["sh", "-c", "echo out; exit 3"]).json()
        assert (found["exit_code"], found["stdout"]) == (3, "out\n")
        freed = f"rm {container.SMALL}/full {container.VOLUME}/full"
        assert run(http, ["sh", "-c", freed]).json()["exit_code"] == 0
    is_right(box)


def test_with_the_whole_image_deleted_it_answers(fresh: Callable[..., Box]) -> None:
    box = fresh("debian-0")
    everything = (
        "import os, shutil\n"
        "for name in os.listdir('/'):\n"
        "    if name not in ('proc', 'sys'): shutil.rmtree('/' + name, ignore_errors=True)\n"
        "for name in os.listdir('/dev'):\n"
        "    try: os.unlink('/dev/' + name)\n"
        "    except OSError: pass\n"
    )
    ask(box, everything)
    with client(box) as http:
        found = run(http, ["sh", "-c", "true"]).json()
        assert (found["exit_code"], found["start_error"]) == (127, "not_found")
        assert http.get("/v1/files", params={"path": "/etc/passwd"}).status_code == 404
        # Its own files are there, and the uid that has no entry any more.
        assert (
            run(http, python("import os; print(os.getuid())"), user=4321).json()["stdout"]
            == "4321\n"
        )
    is_right(box)


MOUNTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0, 2):
    if libc.umount2(b"/.sandman", flags) == 0:
        print("unmounted")
if libc.mount(b"/tmp", b"/.sandman", None, 4096, None) == 0:
    print("covered")
for path in ("/.sandman/app/x", "/.sandman/bin/python3"):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print("written", path)
    except OSError:
        pass
try:
    os.rename("/.sandman", "/gone")
    print("moved")
except OSError:
    pass
if libc.unshare(0x10020000) == 0:
    # In namespaces of its own it may do all of that, and nobody else sees it.
    libc.mount(b"none", b"/.sandman", b"tmpfs", 0, None)
    libc.umount2(b"/.sandman", 2)
"""


@BOTH
def test_its_files_cannot_be_taken_from_it(fresh: Callable[..., Box], cell: str) -> None:
    box = fresh(cell)
    assert ask(box, MOUNTS) == ""
    is_right(box)


DEVICES = """
import os, stat
os.unlink("/dev/null")
os.mkfifo("/dev/null")
for path in ("/etc/passwd", "/etc/group"):
    os.unlink(path)
    os.mkfifo(path)
print("done")
"""


def test_a_fifo_in_place_of_what_it_opens_does_not_hold_it_up(fresh: Callable[..., Box]) -> None:
    box = fresh("debian-0")
    assert ask(box, DEVICES) == "done\n"
    with client(box) as http:
        found = run(http, python("import sys; print(len(sys.stdin.read()))"), user=4321).json()
        assert (found["exit_code"], found["stdout"]) == (0, "0\n"), found
        refused = run(http, ["true"], user="ann").json()
        assert refused["reason"] == "user_unsupported"
    is_right(box)


PIPES = """
import fcntl, os, time
held = []
try:
    while len(held) < 500:
        held.append(os.pipe())
        fcntl.fcntl(held[-1][1], 1031, 1 << 20)
except OSError:
    pass
try:
    while True:
        held.append(os.pipe())
except OSError:
    pass
time.sleep(600)
"""


@BOTH
def test_pipes_and_descriptors_used_up_change_no_byte(fresh: Callable[..., Box], cell: str) -> None:
    # Beyond the kernel's limit for a user pipes hold two pages, or one.
    box = fresh(cell)
    with attacked(box, ["python3", "-I", "-c", PIPES]):
        time.sleep(1)
        with client(box) as http:
            script = "import sys; [print(n) for n in range(200000)]; sys.exit(9)"
            found = run(http, python(script)).json()
        assert found["exit_code"] == 9
        assert found["stdout"] == "".join(f"{n}\n" for n in range(200000))
        is_right(box)
    is_right(box)


def test_in_an_image_with_nothing_in_it(fresh: Callable[..., Box]) -> None:
    box = fresh("empty-65534", limits=spec.Limits(processes=64))
    before = boot_id(box)
    kill = "import os\nfor n in range(1, 65):\n  try: os.kill(1, n)\n  except OSError: pass"
    with client(box) as http:
        assert run(http, python(kill)).json()["exit_code"] == 0
        assert run(http, python(BOMB), timeout_s=2).json()["timed_out"]
    assert box.wait_alone() == {}
    assert boot_id(box) == before
    is_right(box)
    assert names.MOUNT_PATH in box.python("import sys; print(sys.executable)").stdout_text
