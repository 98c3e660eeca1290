"""What a result says it cost, and what it was killed for: points 49 and 61, in real control groups."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, serve_by, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for control groups")
runtime = [pytest.mark.runtime, pytest.mark.timeout(1200)]
MOUNT = Path("/sys/fs/cgroup")
MEMORY_BYTES = 128 * 2**20


class Group:
    """A control group of the test's own, in either version."""

    def __init__(self, controller: str) -> None:
        self.is_new = (MOUNT / "cgroup.controllers").exists()
        base = MOUNT if self.is_new else MOUNT / controller
        if self.is_new:
            (base / "cgroup.subtree_control").write_text(f"+{controller}")
        self.path = base / f"sandman-test-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()

    def set(self, old: str, new: str, value: str) -> None:
        """Set a limit, whose name and form differ between the versions."""
        (self.path / (new if self.is_new else old)).write_text(value)

    @property
    def entered(self) -> tuple[str, ...]:
        """The prefix of a command that shall run in it."""
        script = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        return ("sh", "-c", script, "sh")

    def remove(self) -> None:
        """Once all within have gone."""

        def gone() -> bool:
            try:
                self.path.rmdir()
            except OSError:
                return False
            return True

        assert wait_until(gone, 10)


@pytest.fixture
def group() -> Iterator[Callable[[str], Group]]:
    """Makes groups that are removed when the daemons in them have ended."""
    made: list[Group] = []

    def make(controller: str) -> Group:
        made.append(Group(controller))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture(params=["plain", pytest.param("native", marks=runtime)])
def tight(
    request: pytest.FixtureRequest,
    group: Callable[[str], Group],
    start: Callable[..., Daemon],
) -> Daemon:
    """A daemon, PID 1, in a group that may have 128 MiB."""
    limited = group("memory")
    limited.set("memory.limit_in_bytes", "memory.max", str(MEMORY_BYTES))
    program = None
    if request.param == "native":
        program = serve_by(request.getfixturevalue("native"))
    return start(*IN_ITS_OWN_NAMESPACE, *limited.entered, program=program)


EAT = f"{sys.executable} -I -S -c 'bytearray({4 * MEMORY_BYTES})'"


def test_49_a_kill_for_want_of_memory_is_told_from_any_other(tight: Daemon) -> None:
    result = tight.sh(f"exec {EAT}")
    assert (result.exit_code, result.signal, result.oom_killed) == (137, 9, True)
    result = tight.sh("kill -9 $$")
    assert (result.exit_code, result.signal, result.oom_killed) == (137, 9, False)
    # The first process lives on; its child was the victim.
    result = tight.sh(f"{EAT}; echo $?")
    assert (result.exit_code, result.signal, result.oom_killed) == (0, None, True)
    assert result.stdout == b"137\n"
    result = tight.sh("exit 137")
    assert (result.exit_code, result.signal, result.oom_killed) == (137, None, False)
    result = tight.sh("sleep 60", timeout_s=0.2)
    assert (result.timed_out, result.oom_killed) == (True, False)


def test_61_throttled_time_is_told(
    group: Callable[[str], Group], start: Callable[..., Daemon]
) -> None:
    limited = group("cpu")
    running = start(*IN_ITS_OWN_NAMESPACE, *limited.entered)
    assert running.sh("true").throttled_s == 0
    # So little that others on the machine cannot leave it less, which would not be throttling.
    if limited.is_new:
        (limited.path / "cpu.max").write_text("5000 100000")
    else:
        (limited.path / "cpu.cfs_period_us").write_text("100000")
        (limited.path / "cpu.cfs_quota_us").write_text("5000")
    result = running.sh("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    assert result.throttled_s is not None
    assert result.throttled_s > 0
    assert result.cpu_s is not None
    assert result.cpu_s < result.wall_s


@pytest.mark.parametrize("script", ["mount -t tmpfs none /sys/fs/cgroup", "umount -l /proc"])
def test_61_what_cannot_be_measured_is_null(start: Callable[..., Daemon], script: str) -> None:
    inside = ("sh", "-c", f'{script} && exec "$@"', "sh")
    running = start(*IN_ITS_OWN_NAMESPACE[:-1], "--mount", IN_ITS_OWN_NAMESPACE[-1], *inside)
    result = running.exec(argv=["/bin/sh", "-c", "exit 3"])
    assert result.exit_code == 3
    assert result.cpu_s is not None
    if "cgroup" in script:
        assert (result.oom_killed, result.throttled_s) == (None, None)


@pytest.mark.parametrize(
    "which", [pytest.param("own", marks=runtime), pytest.param("beside", marks=runtime)]
)
def test_61_a_large_request_before_does_not_hide_a_peak(
    request: pytest.FixtureRequest, which: str
) -> None:
    running: Daemon = request.getfixturevalue(which)
    assert running.exec(argv=["wc", "-c"], stdin="x" * 10_000_000).stdout.strip() == b"10000000"
    result = running.exec(argv=["dd", "if=/dev/zero", "of=/dev/null", "bs=20M", "count=1"])
    assert result.peak_memory_bytes is not None
    assert 20 * 2**20 < result.peak_memory_bytes < 30 * 2**20
    assert running.exec(argv=["true"]).peak_memory_bytes is None


def test_61_a_small_orphan_does_not_stand_for_its_command(first: Daemon) -> None:
    """How much its first process had is not known: it may be more than what the orphan had."""
    result = first.sh("(sh -c : &); sleep 0.3")
    assert result.exit_code == 0
    assert result.peak_memory_bytes is None
