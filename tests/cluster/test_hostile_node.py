"""Attempts from inside a sandbox, as root and as a user: on its node, on what all share there, and on who reads its
answers."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import faults, hostile_inside
from tests.cluster.hostile import said
from tests.cluster.hostile_inside import USERS, WHO, World
from tests.runc.test_hostile_needs import BOMB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.deployed import Deployed


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    with hostile_inside.world(sandman) as made:
        yield made


# --- its node -----------------------------------------------------------------------------------

NODE = """
import ctypes, errno, os, stat
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, act):
    try:
        act()
        print("done:", what)
    except OSError:
        pass
def called(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
def device():
    os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    os.open("/tmp/disk", os.O_RDONLY)
attempt("core pattern", lambda: write("/proc/sys/kernel/core_pattern", "|/tmp/x"))
attempt("sysrq", lambda: write("/proc/sysrq-trigger", "h"))
attempt("host name", lambda: write("/proc/sys/kernel/hostname", "x"))
attempt("mount", lambda: called(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
attempt("mount cgroups", lambda: called(libc.mount(b"none", b"/mnt", b"cgroup", 0, b"memory")))
attempt("remount", lambda: called(libc.mount(None, b"/sys/fs/cgroup", None, 32, None)))
attempt("disk", device)
attempt("memory", lambda: os.open("/dev/mem", os.O_RDONLY))
attempt("kernel log", lambda: os.open("/dev/kmsg", os.O_RDONLY))
attempt("clock", lambda: called(libc.settimeofday(ctypes.create_string_buffer(16), None)))
attempt("module", lambda: called(libc.syscall(175, b"", 0, b"")))
attempt("reboot", lambda: called(libc.reboot(0)))
attempt("trace", lambda: called(libc.syscall(321, 5, b"", 0)))
attempt("root of the first", lambda: os.listdir("/proc/1/root/"))
attempt("names of the first", lambda: os.open("/proc/1/ns/mnt", os.O_RDONLY))
for folder, _, files in os.walk("/sys/fs/cgroup"):
    for name in {"memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max", "release_agent",
                 "cgroup.procs", "notify_on_release"} & set(files):
        attempt(os.path.join(folder, name), lambda: write(os.path.join(folder, name), "1"))
"""


@pytest.mark.parametrize("who", WHO)
def test_nothing_of_its_node_is_had(world: World, who: str) -> None:
    assert world.python(who, NODE) == ""
    world.stand()


SHARED_MEMORY = """
import errno, os
size = os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks
fd, written = os.open("/dev/shm/full", os.O_CREAT | os.O_WRONLY), 0
try:
    while True:
        written += os.write(fd, b"x" * 65536)
except OSError as error:
    print(errno.errorcode[error.errno], written <= size <= 1 << 26)
"""


@pytest.mark.parametrize("who", WHO)
def test_a_full_dev_shm_is_ones_own(world: World, who: str) -> None:
    box = world.box(who)
    try:
        assert world.python(who, SHARED_MEMORY) == "ENOSPC True\n"
        assert box.python("print(6 * 7)") == "42\n"
        world.stand()
        assert world.neighbour.python("import os\nprint(os.listdir('/dev/shm'))") == "[]\n"
    finally:
        box.run(["rm", "-f", "/dev/shm/full"])


@pytest.mark.parametrize("who", WHO)
def test_a_big_tmp_is_ones_own(world: World, who: str) -> None:
    """Not to the limit: the test pools have none, since the machine's disk is shared. 64 MiB, and nobody sees them."""
    box = world.box(who)
    script = "print(open('/tmp/big', 'wb').write(bytes(1 << 26)))"
    try:
        assert world.python(who, script) == f"{1 << 26}\n"
        assert world.neighbour.python("import os\nprint(os.path.exists('/tmp/big'))") == "False\n"
        world.stand()
    finally:
        box.run(["rm", "-f", "/tmp/big"])


EATER = "data = []\nwhile True: data.append(bytes(range(256)) * 4096)"


@pytest.mark.parametrize("who", WHO)
def test_who_eats_memory_is_killed_and_nobody_else(world: World, who: str) -> None:
    argv = ["python3", "-I", "-c", EATER]
    result = world.box(who).run(argv, timeout_s=60, **USERS.get(who, {}))
    assert (result["signal"], result["timed_out"]) == (9, False), result
    world.stand()


@pytest.mark.parametrize("who", WHO)
def test_a_fork_bomb_meets_the_sandboxs_limit_of_processes(
    world: World, sandman: Deployed, who: str
) -> None:
    box = world.box(who)
    outcome: list[dict[str, Any]] = []

    def explode() -> None:
        bomb = ["python3", "-I", "-c", BOMB]
        outcome.append(box.run(bomb, timeout_s=4, **USERS.get(who, {})))

    with processes_bounded(faults.first_process(sandman, box.pod)) as full:
        bomb = threading.Thread(target=explode)
        bomb.start()
        try:
            faults.wait("the limit is reached", full, 6)
            assert world.neighbour.python("print(6 * 7)") == "42\n"
            world.neighbour.is_whole()
            # It has a connection's thread for who comes from outside, or says that there is no room.
            answer = box.call("GET", "/info")
            assert answer.status_code == 200 or said(answer)[:2] == (503, "unreachable")
        finally:
            bomb.join(60)
        assert outcome[0]["timed_out"], outcome
    assert box.python("print(6 * 7)") == "42\n"
    world.stand()


BOUND = 200
"""Processes of a sandbox while a bomb goes off in it: the kubelet's limit is larger than a small machine likes."""


@contextlib.contextmanager
def processes_bounded(pid: int) -> Iterator[Callable[[], bool]]:
    """The container of this first process has a limit of its own below its pod's, which is looked at; whether it is
    reached."""
    own = next(
        line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if ":pids:" in line
    )
    cgroup = Path("/sys/fs/cgroup/pids") / own.split(":", 2)[2].lstrip("/")
    assert int((cgroup.parent / "pids.max").read_text()) <= 4096
    limit = cgroup / "pids.max"
    limit.write_text(str(BOUND))
    try:
        yield lambda: int((cgroup / "pids.current").read_text()) >= BOUND - 5
    finally:
        limit.write_text("max")


# --- what it answers through the gateway --------------------------------------------------------

LIAR = r"""
import socket, sys
server = socket.create_server(("127.0.0.1", 8001))
print("listens", flush=True)
HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\nSandman-Port: 1\r\n"
    "Sandman-Boot-Id: forged\r\nSandman-Request-Id: forged\r\nLocation: https://evil.example/\r\n"
    "X-Accel-Redirect: /etc/passwd\r\nX-Sendfile: /etc/passwd\r\nWWW-Authenticate: Basic\r\n"
    "Content-Security-Policy: default-src *\r\nAccess-Control-Allow-Origin: *\r\nStrict-Transport-Security: max-age=0\r\n"
    "Clear-Site-Data: \"*\"\r\nRefresh: 0; url=https://evil.example/\r\nLink: </x>; rel=preload\r\n"
    "Service-Worker-Allowed: /\r\nAlt-Svc: h3=\":443\"\r\nX-Mine: kept\r\nConnection: close\r\n\r\nok"
)
while True:
    connection, _ = server.accept()
    with connection:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += connection.recv(65536)
        open("/tmp/asked", "wb").write(asked)
        connection.sendall(HEAD.encode())
"""


def test_a_server_that_lies_is_not_taken_for_sandman(world: World) -> None:
    box = world.root
    server = {"argv": ["python3", "-I", "-c", LIAR], "exec_id": "liar", "detached": True}
    assert box.call("POST", "/processes", json=server).status_code == 200
    try:
        answer = box.call("GET", "/ports/8001/x", headers={"cookie": "session=1"})
        while answer.status_code == 503:
            time.sleep(0.1)
            answer = box.call("GET", "/ports/8001/x", headers={"cookie": "session=1"})
        assert (answer.status_code, answer.text) == (200, "ok")
        kept = {name: value for name, value in answer.headers.items() if name != "date"}
        assert kept == {
            "content-length": "2", "content-type": "text/html", "x-mine": "kept", "sandman-port": "8001",
            "content-security-policy": "sandbox", "x-content-type-options": "nosniff",
        }  # fmt: skip
        asked = box.call("GET", "/files?path=/tmp/asked").text.lower()
        assert box.tenant_token.lower() not in asked
        assert "authorization" not in asked
        assert "cookie" not in asked
    finally:
        assert box.call("DELETE", "/processes/liar").status_code == 204
