"""Whose process: points 14, 16, 24, 26 and 28 for processes that shed every mark that can be shed.

On each kind of daemon: on any Python and on its own, as PID 1 and beside others. Another command runs
meanwhile: that nothing else could have started the process is then no help.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from daemon import tree
from tests.unit.daemon.harness import Daemon, processes_with, wait_until
from tests.unit.daemon.test_exec_background import zombies_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces and users")
runtime = [pytest.mark.runtime, pytest.mark.timeout(1200)]
KINDS = [
    "daemon",
    "first",
    pytest.param("own", marks=runtime),
    pytest.param("beside", marks=runtime),
]
NATIVE = [pytest.param("own", marks=runtime), pytest.param("beside", marks=runtime)]

ESCAPE = """
import os, sys, time
mark, how, wait_s = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for fd in range(3):
            os.close(fd)
        if how == "setuid":
            os.setgroups([]); os.setgid(1); os.setuid(1)
        os.execve("/bin/sleep", [mark, "60"], {})
    os._exit(0)
os.wait()
time.sleep(float(wait_s))
"""


def escape(mark: str, how: str = "", wait_s: float = 0.0) -> list[str]:
    """A command that leaves a process which double-forked, leads a session, has no environment."""
    return [sys.executable, "-I", "-S", "-c", ESCAPE, mark, how, str(wait_s)]


@contextmanager
def busy(running: Daemon) -> Iterator[None]:
    """Another command runs."""
    name = f"busy-{time.monotonic_ns()}"
    thread = threading.Thread(target=lambda: running.sh("sleep 60", exec_id=name))
    thread.start()
    url = f"/v1/processes/{name}"
    assert wait_until(lambda: running.client.get(url).status_code == 200)
    try:
        yield
    finally:
        running.client.delete(url)
        thread.join()


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest) -> Daemon:
    """Each kind of daemon."""
    found: Daemon = request.getfixturevalue(request.param)
    return found


def test_14_an_escaped_process_ends_with_its_command(running: Daemon, mark: str) -> None:
    with busy(running):
        result = running.exec(argv=escape(mark, "setuid", 60), timeout_s=0.8)
        assert result.timed_out
        assert not processes_with(mark)


@pytest.mark.parametrize("which", NATIVE)
@pytest.mark.parametrize("login", ["", "-l"])
def test_14_it_ends_though_su_made_it_another_users(
    request: pytest.FixtureRequest, mark: str, which: str, login: str
) -> None:
    # Debian's `su` resets all limits, as its PAM module wants it.
    running: Daemon = request.getfixturevalue(which)
    escaped = f"(setsid env -i setsid sh -c 'exec 0<&- 1>&- 2>&-; sleep 60; : {mark}' &)"
    script = f'su {login} -s /bin/sh daemon -c "{escaped}"; echo $?; sleep 60'
    body = {"shell": script, "exec_id": mark, "detached": True, "cwd": "/"}
    url = f"/v1/processes/{mark}"
    with busy(running):
        assert running.client.post("/v1/processes", json=body).status_code in {200, 201}
        assert wait_until(lambda: running.client.get(url).json()["stdout_bytes"] == 2)
        # The shell has become `sleep` by then: what is left is what escaped.
        assert wait_until(lambda: len(processes_with(mark)) == 1)
        assert running.client.delete(url).status_code == 204
        assert wait_until(lambda: not processes_with(mark))
        ended = running.client.get(url, params={"wait_s": "5"}).json()
        assert ended["result"]["stdout"] == "0\n"


@pytest.mark.parametrize("which", [pytest.param("own", marks=runtime)])
def test_14_one_that_lowered_its_mark_is_spared_for_no_other(
    request: pytest.FixtureRequest, mark: str, which: str
) -> None:
    running: Daemon = request.getfixturevalue(which)
    lowering = "import os, resource, sys; resource.setrlimit(10, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-I", "-S", "-c", lowering, *escape(mark, "", 60)]
    with busy(running):
        assert running.exec(argv=argv, timeout_s=0.8).timed_out
        assert not processes_with(mark)


def test_16_and_24_one_that_outlives_its_command_is_spared_by_others(
    running: Daemon, mark: str
) -> None:
    with busy(running):
        assert running.exec(argv=escape(mark)).exit_code == 0
        assert wait_until(lambda: processes_with(mark))
        assert running.sh("sleep 60", timeout_s=0.2).timed_out
    assert processes_with(mark)
    running.sh(f"pkill -f {mark}")
    assert wait_until(lambda: not processes_with(mark))


def test_26_the_end_of_its_command_by_name_reaches_it_later(running: Daemon, mark: str) -> None:
    with busy(running):
        result = running.exec(argv=escape(mark, "setuid"), exec_id=mark)
        assert result.exit_code == 0
        assert wait_until(lambda: processes_with(mark))
        assert running.client.delete(f"/v1/processes/{mark}").status_code == 204
        assert wait_until(lambda: not processes_with(mark))


def test_26_a_signal_to_the_tree_reaches_it(running: Daemon, mark: str) -> None:
    name = mark[:40]
    body = {"argv": escape(mark, "", 60), "exec_id": name, "detached": True}
    with busy(running):
        assert running.client.post("/v1/processes", json=body).status_code in {200, 201}
        assert wait_until(lambda: len(processes_with(mark)) == 2)
        signal = {"signal": "KILL", "tree": True}
        answer = running.client.post(f"/v1/processes/{name}/signal", json=signal)
        assert answer.status_code == 204, answer.text
        assert wait_until(lambda: not processes_with(mark))


SHED = """
import os, sys
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/true", ["true"], {})
        os._exit(0)
os._exit(int(sys.argv[1]))
"""
COUNT = int(os.environ.get("SANDMAN_TEST_ORPHANS", "40"))
"""Commands of the next test; a thousand were run with each change to starting and waiting."""


@pytest.mark.parametrize("which", ["first", pytest.param("own", marks=runtime)])
@pytest.mark.timeout(1200)
def test_28_commands_that_leave_two_escaped_orphans_each(
    request: pytest.FixtureRequest, which: str
) -> None:
    running: Daemon = request.getfixturevalue(which)
    wrong: list[object] = []
    numbers = iter(range(COUNT))
    argv = [sys.executable, "-I", "-S", "-c", SHED]

    def work() -> None:
        for number in numbers:
            result = running.exec(argv=[*argv, str(number % 200)])
            if result.exit_code != number % 200:
                wrong.append((number, result))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert wait_until(lambda: not zombies_of(running.pid))


BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize("which", ["first", *NATIVE])
def test_61_orphans_count_to_what_their_command_used(
    request: pytest.FixtureRequest, which: str
) -> None:
    running: Daemon = request.getfixturevalue(which)
    # Its parent is the subshell, which ends at once: nobody but the daemon waits for it.
    orphan = f"{sys.executable} -I -S -c 'kept = bytearray(80 << 20)\n{BURN}'"
    script = f"pid=$({orphan} >/dev/null & echo $!); while kill -0 $pid; do sleep 0.02; done"
    result = running.sh(script)
    assert result.exit_code == 0
    assert result.cpu_s is not None
    assert result.cpu_s > 0.3
    assert result.peak_memory_bytes is not None
    assert 80 << 20 < result.peak_memory_bytes < 160 << 20


def test_61_what_a_kill_ended_counts_too(first: Daemon) -> None:
    script = f"{sys.executable} -I -S -c '{BURN}\nprint(1, flush=True)\ntime.sleep(60)' & wait"
    body = {"shell": script, "exec_id": "burns", "detached": True}
    assert first.client.post("/v1/processes", json=body).status_code in {200, 201}
    url = "/v1/processes/burns"
    assert wait_until(lambda: first.client.get(url).json()["stdout_bytes"] == 2, 20)
    assert first.client.delete(url).status_code == 204
    assert wait_until(lambda: first.client.get(url).json()["state"] == "ended")
    assert first.client.get(url).json()["result"]["cpu_s"] > 0.3


class TestMarks:
    """The number in the limit."""

    def test_a_mark_says_the_same_as_its_tag(self) -> None:
        tag = tree.make_tag("ab" * 16, 7)
        base = tree.base_of(tree.resource.getrlimit(tree.LIMIT)[1])
        assert tag == "ababab.fffff8"
        assert tree.mark_of(tag) == base + (0xABABAB << 24) + 2**24 - 8
        assert tree.make_tag("ab" * 16, 2**24 + 7) == tag

    def test_marks_of_a_daemon_within_a_command_are_others(self) -> None:
        outer = tree.base_of(tree.resource.RLIM_INFINITY)
        inner = tree.base_of(outer + 12345)
        assert outer + 2**48 > outer + 12345 > inner + 2**48
        assert inner == outer // 2
        assert tree.base_of(2**40) == 0

    def test_where_there_is_no_room_there_is_no_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tree, "_BASE", 0)
        assert tree.mark_of("ababab.7") == 0
        assert tree.tag_of(os.getpid()) is None
        monkeypatch.setattr(tree, "_read", lambda _: b"Max file locks    7    7    locks\n")
        assert tree.tag_of(os.getpid()) is None

    def test_a_mark_below_all_is_no_commands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tree, "_lowest", 0)
        first = tree.mark_of(tree.make_tag("ab" * 16, 1))
        last = tree.mark_of(tree.make_tag("ab" * 16, 2))
        assert last < first
        seen = []
        for hard in (b"0", b"%d" % (last - 1), b"%d" % last, b"%d" % first, b"unlimited", b""):
            text = b"Max file locks    0    " + hard
            monkeypatch.setattr(tree, "_read", lambda _, text=text: text)
            seen.append(tree.was_lowered(1))
        assert seen == [True, True, False, False, False, False]
