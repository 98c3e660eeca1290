"""Sessions: faults of the daemon itself, and want of room."""

from __future__ import annotations

import functools
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from daemon.init import Reaper
from daemon.processes import Processes
from daemon.pty import Terminal
from daemon.shells import Shells, Ways
from daemon.state import Sandbox
from daemon.usage import Meter
from tests.unit.daemon.harness import Daemon, problem, processes_with, wait_until
from tests.unit.daemon.shells import Shell, alive, shell_of
from tests.unit.daemon.test_faults import broken

if TYPE_CHECKING:
    from collections.abc import Callable

NO_MARK = """
from daemon import command
command.MARK_S = 0.3
command.Command.put_mark = lambda self, terminal: None
"""


def test_27_a_close_while_the_last_output_of_an_ended_shell_is_awaited_ends_its_jobs(
    start: Callable[..., Daemon], tmp_path: Path, mark: str
) -> None:
    fresh = start(program=broken(tmp_path, NO_MARK))
    shell = Shell(fresh, shell="bash")
    job = f"setsid bash -c 'trap \"\" TERM HUP; : ready; exec -a {mark} sleep 60'"
    with ThreadPoolExecutor() as pool:
        last = pool.submit(shell.run, f"{job} & sleep 0.1; exit 3")
        assert wait_until(lambda: not alive(shell.info.pid))
        assert processes_with(mark)
        shell.close()
        assert last.result(10).exit_code == 3
    assert wait_until(lambda: not processes_with(mark))


NO_THREAD_FOR_SURVIVORS = """
import threading
from daemon import stop
start = threading.Thread.start
def refuse(self):
    if self._target is stop.end_survivors:
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = refuse
"""


def test_27_jobs_of_an_ended_session_go_with_it_though_there_is_no_room_for_a_thread(
    start: Callable[..., Daemon], tmp_path: Path, mark: str
) -> None:
    fresh = start(program=broken(tmp_path, NO_THREAD_FOR_SURVIVORS))
    shell = Shell(fresh, shell="bash")
    shell.run(f"setsid bash -c 'exec -a {mark} sleep 60' & exit 3")
    assert wait_until(lambda: processes_with(mark))
    shell.close()
    assert not processes_with(mark)


FAULTY_SESSION = """
from daemon import dialogue
begin = dialogue.Dialogue.begin
def fail(self, spec):
    begin(self, spec)
    if spec.data == b"boom":
        raise MemoryError("boom")
dialogue.Dialogue.begin = fail
"""


def test_27_a_fault_in_a_session_leaves_no_caller_waiting(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=broken(tmp_path, FAULTY_SESSION))
    shell = Shell(fresh)
    found = problem(shell.post("run", command="boom"))
    assert (found["reason"], found["detail"]) == (
        "internal",
        "the session failed: MemoryError: boom",
    )
    assert wait_until(lambda: shell.told().state == "ended")
    assert wait_until(lambda: not alive(shell.info.pid))


STUCK_START = """
import os, time
from daemon import shells
plan_shell = shells.plan_shell
def plan(wanted, *rest):
    while os.path.exists(wanted.cwd + "/stuck"):
        open(wanted.cwd + "/begun", "w").close()
        time.sleep(0.01)
    return plan_shell(wanted, *rest)
shells.plan_shell = plan
"""


def test_27_a_start_that_hangs_holds_up_no_other_session(
    start: Callable[..., Daemon], tmp_path: Path, mark: str
) -> None:
    fresh = start(program=broken(tmp_path, STUCK_START))
    other = Shell(fresh, cwd="/")
    (tmp_path / "stuck").touch()
    stuck = {"name": "stuck", "rc": False, "cwd": str(tmp_path), "key": "k"}
    open_ = functools.partial(fresh.client.post, "/v1/sessions", timeout=20)

    begun, link = tmp_path / "begun", tmp_path / mark
    link.symlink_to(shell_of("bash", tmp_path))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(open_, json=stuck)
        assert wait_until(begun.exists)
        taken = problem(open_(json={"name": "stuck"}))
        assert (taken["reason"], taken["field"]) == ("conflict", "name")
        again = pool.submit(open_, json=stuck)  # the same call: it gets the same session
        assert other.out("echo on") == "on\n"
        assert len(fresh.client.get("/v1/sessions").json()["sessions"]) == 1
        assert not again.done()
        (tmp_path / "stuck").unlink()
        assert first.result().json()["pid"] == again.result().json()["pid"]

        begun.unlink()
        (tmp_path / "stuck").touch()
        late = pool.submit(open_, json={**stuck, "name": "late", "shell": str(link)})
        assert wait_until(begun.exists)
        assert fresh.client.delete("/v1/sessions/late").status_code == 204
        (tmp_path / "stuck").unlink()
        assert "closed while it started" in str(problem(late.result())["detail"])
        assert fresh.client.get("/v1/sessions/late").status_code == 404
    assert wait_until(lambda: not processes_with(mark))
    other.close()


def test_27_a_start_that_fails_closes_its_own_session_alone() -> None:
    shells = Shells(Processes(Sandbox({}), Reaper(), Meter()))
    ended: list[object] = []
    session = SimpleNamespace(is_over=False, close=lambda: ended.append(session))
    mine, other = (SimpleNamespace(session=session, spec=SimpleNamespace(key=key)) for key in "ab")
    shells._shells["name"] = other  # type: ignore[assignment]
    shells.close("name", only=mine)  # type: ignore[arg-type]
    shells.close("name", "a")
    assert (shells.all(), ended) == ([other], [])
    shells.close("name", only=other)  # type: ignore[arg-type]
    assert (shells.all(), ended) == ([], [session])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Terminal(24, 80).close(),
        lambda: [os.close(fd) for fd in set(chain(*vars(Ways(by_pipe=True)).values()))],
        lambda: [os.close(fd) for fd in set(chain(*vars(Ways(by_pipe=False)).values()))],
    ],
    ids=["terminal", "pipe", "socket"],
)
def test_what_a_session_is_connected_by_is_whole_or_not_there(make: Callable[[], object]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = list(Path("/proc/self/fd").iterdir())
    failures = 0
    for most in range(3, max(int(one.name) for one in before) + 10):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        try:
            make()
        except OSError:
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert failures >= 4
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_12_sessions_that_cannot_be_started_leave_no_descriptors(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start()
    broken_shell = tmp_path / "bash"
    broken_shell.write_text("#!/no/such/interpreter\n")
    broken_shell.chmod(0o755)

    def refused(shell: str) -> int:
        assert fresh.client.post("/v1/sessions", json={"shell": shell}).status_code == 404
        return len(list(Path(f"/proc/{fresh.pid}/fd").iterdir()))

    first = refused("no-such-shell")
    assert refused(str(broken_shell)) == first
    assert refused("no-such-shell") == first
