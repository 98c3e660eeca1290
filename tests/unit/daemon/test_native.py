"""The daemon's own C module, as it is linked into its Python: marker `runtime`."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from daemon import digest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon.harness import Daemon

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(1200)]

COMPARE = """
import hashlib, os, random, sys
from _sandman import Sha256
random.seed(int(sys.argv[1]))
sizes = [*range(300), *(random.randrange(200_000) for _ in range(100)), 3_000_000]
for size in sizes:
    data, own, at = random.randbytes(size), Sha256(), 0
    while at < size:
        step = random.choice([1, 3, 55, 56, 63, 64, 65, 128, 4095, 4096, 50_000, size])
        if size > 100_000 and step < 4095:
            continue
        own.update(memoryview(data)[at:at + step])
        at += step
        if random.random() < 0.01:
            seen = hashlib.sha256(data[:at]).digest()
            assert own.digest() == seen, (size, at)
    assert own.digest() == own.digest() == hashlib.sha256(data).digest(), size
print("equal")
"""


def run(native: Path, code: str, *arguments: str) -> str:
    """What a program prints on the daemon's own Python."""
    done = subprocess.run(
        [native, "-I", "-S", "-B", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def has_instructions() -> bool:
    """Whether this processor computes SHA-256 by itself."""
    with open("/proc/cpuinfo") as file:  # noqa: PTH123
        return " sha_ni" in file.read()


def test_it_is_used_where_the_processor_can(native: Path) -> None:
    code = "import _sandman; print(hasattr(_sandman, 'Sha256'))"
    assert run(native, code) == f"{has_instructions()}\n"


@pytest.mark.parametrize("seed", ["1", "2"])
def test_30_the_digest_is_hashlibs(native: Path, seed: str) -> None:
    if not has_instructions():
        assert digest.new is hashlib.sha256
        return
    assert run(native, COMPARE, seed) == "equal\n"


def test_30_an_upload_is_checked_by_it(own: Daemon, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    found = hashlib.sha256(data).hexdigest()
    answer = own.put(tmp_path / "file", data, sha256=found)
    assert (answer.status_code, answer.json()["sha256"]) == (200, found)
    other = "0" * 64
    assert own.put(tmp_path / "other", data, sha256=other).status_code == 400
    assert not (tmp_path / "other").exists()
    assert (tmp_path / "file").read_bytes() == data


BAD = """
import _sandman
n = 3
cases = [
    ((b"a\\0",), (b"x",), {}), ((b"a",), (b"x\\0",), {}), ((b"a",), (b"x",), {b"A": b"\\0"}),
    (("a",), (b"x",), {}), ((b"a",), (1,), {}), ((b"a",), (b"x",), {b"A": "b"}),
]
for paths, argv, env in cases:
    try:
        _sandman.start(paths, argv, env, (n, n, n), b"/", None, False, 0, -1, -1)
    except (ValueError, TypeError) as error:
        print(type(error).__name__)
for user in ((1, 2), (1, 2, (b"x",)), (-1, 2, ())):
    try:
        _sandman.start((b"/bin/true",), (b"x",), {}, (n, n, n), b"/", user, False, 0, -1, -1)
    except (ValueError, TypeError, OverflowError) as error:
        print("user")
import os
null = os.open("/dev/null", os.O_RDWR)
def fail(*paths, fd=null, cwd=b"/", terminal=False):
    print(_sandman.start(paths, (b"x",), {}, (fd, null, null), cwd, None, terminal, 0, -1, -1)[1:3])
fail(b"/nope", b"/")
fail()
fail(b"/bin/true", cwd=b"/nope")
fail(b"/bin/true", terminal=True)
fail(b"/bin/true", fd=999)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("none left")
"""


FAILURES = ("(0, 2)", "(0, 2)", "(1, 2)", "(3, 25)", "(4, 9)")
"""Each start's stage and errno."""


def test_what_is_no_start(native: Path) -> None:
    lines = run(native, BAD).splitlines()
    assert lines[:6] == ["ValueError"] * 3 + ["TypeError"] * 3
    assert lines[6:] == ["user", "user", *FAILURES, "none left"]


TERMINAL = """
import _sandman, os
for user in (None, (1, 1, (1,))):
    ours, theirs = os.openpty()
    os.chmod(os.ttyname(theirs), 0o666)
    argv = (b"sh", b"-c", b"tty; echo own > /dev/tty; id -u")
    fds = (theirs, theirs, theirs)
    pid = _sandman.start((b"/bin/sh",), argv, {}, fds, b"/", user, True, 0, -1, -1)[0]
    _sandman.claim(pid)
    assert not _sandman.is_starting(pid)
    os.waitpid(pid, 0)
    name, said = os.ttyname(theirs), b""
    os.close(theirs)
    try:
        while True:
            said += os.read(ours, 1000)
    except OSError:  # nobody has it open
        tty, own, uid = said.decode().split()
        print(tty == name, own, uid)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch users")
def test_a_terminal_becomes_that_of_the_session(native: Path) -> None:
    assert run(native, TERMINAL) == "True own 0\nTrue own 1\n"


EARLY = """
import _sandman, os
null = os.open("/dev/null", os.O_RDWR)
pids = []
for _ in range(1024):
    started = _sandman.start(
        (b"/bin/true",), (b"true",), {}, (null, null, null), b"/", None, False, 0, -1, -1)
    pids.append(started[0])
    assert _sandman.is_starting(started[0])
    assert len(pids) > 3 or _sandman.starts() == pids
try:
    _sandman.start((b"/bin/true",), (b"x",), {}, (null, null, null), b"/", None, False, 0, -1, -1)
except BlockingIOError:
    print("full")
for pid in pids:
    os.waitpid(pid, 0)
    _sandman.claim(pid)
    _sandman.claim(pid)
    assert not _sandman.is_starting(pid)
print(_sandman.is_starting(-1), _sandman.is_starting(0), _sandman.starts())
"""


def test_what_has_started_is_told_until_it_is_claimed(native: Path) -> None:
    assert run(native, EARLY) == "full\nFalse False []\n"


KILLED_EARLY = """
import _sandman, os, signal, sys, threading, time
number, groups = int(sys.argv[1]), tuple(range(65536, 0, -1))  # the kernel sorts them: that takes a while
null = os.open("/dev/null", os.O_RDWR)
is_over = False
def hit():
    me = os.listdir("/proc/self/task")
    while not is_over:
        for thread in me:
            with open(f"/proc/self/task/{thread}/children") as file:
                for pid in file.read().split():
                    try:
                        os.kill(int(pid), number)
                    except OSError:
                        pass
threading.Thread(target=hit, daemon=True).start()
early, begun = 0, time.monotonic()
while early < 4 and time.monotonic() < begun + 20:
    pid, stage, error, peak = _sandman.start((b"/bin/true",), (b"true",), {}, (null, null, null), b"/",
                                             (1, 1, groups), False, 0, -1, -1)
    assert error == 0 and _sandman.is_starting(pid), (pid, stage, error)
    ended = os.waitpid(pid, 0)[1]
    _sandman.claim(pid)
    assert not _sandman.is_starting(pid)
    early += peak == 0
    assert peak or os.WTERMSIG(ended) == number
is_over = True
print(early > 3)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch users")
def test_28_one_that_is_killed_before_it_is_a_program_is_known_all_the_same(native: Path) -> None:
    assert run(native, KILLED_EARLY, "9") == "True\n"


STATE = "ulimit -Hx; ulimit -Hi; cat /proc/self/oom_score_adj; cat /proc/self/status"


def test_what_a_command_starts_with(own: Daemon) -> None:
    lines = own.sh(STATE).stdout_text.splitlines()
    fields = dict(line.split(":\t", 1) for line in lines[3:] if ":\t" in line)
    assert int(lines[0]) > 2**48
    assert int(fields["SigBlk"], 16) == int(fields["SigIgn"], 16) == 0
    score = int(own.exec(argv=["cat", "/proc/1/oom_score_adj"]).stdout)
    assert int(lines[2]) == min(1000, score + 100)
    assert len(own.exec(argv=["ls", "/proc/self/fd"]).stdout.split()) == 4
