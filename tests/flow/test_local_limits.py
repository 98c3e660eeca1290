"""Local mode's limits, kept by the kernel: cpu, memory and processes of real sandboxes. CI runs as root, who may make
cgroups everywhere."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio

from gateway.provider.local import cgroups
from sandman import errors
from tests.flow.local_mode import running
from tests.flow.test_local import bare_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sandman.client import Sandbox
    from tests.flow.local_mode import Gateway, LocalBed

pytestmark = pytest.mark.timeout(120)
MIB = 2**20
HOG = f"x=b'x'*{200 * MIB}; print(len(x))"
THREADS = """
import os, threading
threading.stack_size(65536)
hold, made = threading.Event(), 0
try:
    while True:
        threading.Thread(target=hold.wait, daemon=True).start()
        made += 1
except RuntimeError as error:
    print(made, error, flush=True)
os._exit(0)
"""
SMALL = {"cpu": "250m", "memory": "96Mi"}


def tree() -> cgroups.Tree:
    """Where groups can be made here."""
    found = cgroups.find(cgroups.OWN.read_text(), cgroups.MOUNTS.read_text(), cgroups.may_make)
    if isinstance(found, str) and not os.environ.get("CI"):
        pytest.skip(found)
    assert isinstance(found, cgroups.Tree), found
    return found


def memory_limit() -> str:
    """The file's name."""
    return "memory.limit_in_bytes" if tree().version == 1 else "memory.max"


def groups() -> list[Path]:
    """Of all gateways of local mode here."""
    return sorted(tree().places["memory"].glob(f"{cgroups.PREFIX}*/*/"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Gateway]:
    tree()
    top = tmp_path_factory.mktemp("image")
    images = {"bare:1": str(bare_image(top / "bare"))}
    with running(tmp_path_factory.mktemp("state"), images=images, most=4) as one:
        yield one
        assert one.stop() == 0
        mine = f"{cgroups.PREFIX}{one.process.pid}-"
        assert [one for one in groups() if one.parent.name.startswith(mine)] == []


@pytest.fixture
async def bed(whole) -> AsyncIterator[LocalBed]:
    async with whole.bed() as one:
        yield one
        await one.release_all()


async def test_what_is_asked_for_is_what_it_has(bed):
    async with bed.sandman.sandbox() as box:
        assert box.info.isolation["cpu"] == f"limited: {len(os.sched_getaffinity(0))}"
        assert box.info.isolation["memory"].startswith("limited: ")
    async with bed.sandman.sandbox(resources=SMALL) as box:
        assert box.info.isolation["cpu"] == "limited: 250m"
        assert box.info.isolation["memory"] == "limited: 96Mi"
        spun = await box.exec(["python3", "-c", "while True: pass"], timeout_s=2)
        assert spun.timed_out
        # Of one processor a quarter, and what one period may be over.
        assert spun.cpu_s <= 0.25 * spun.wall_s + 0.1
        assert spun.throttled_s is not None


async def test_a_command_that_takes_too_much_memory_is_told_as_such(bed):
    async with bed.sandman.sandbox(resources=SMALL) as box:
        result = await box.exec(["python3", "-c", HOG])
        assert (result.signal, result.oom_killed) == (signal.SIGKILL, True)
        assert (await box.exec(["echo", "there"])).stdout == b"there\n"
    async with bed.sandman.sandbox() as box:
        assert (await box.exec(["python3", "-c", HOG])).stdout == b"%d\n" % (200 * MIB)


async def test_in_an_image_of_its_own_too(bed):
    async with bed.sandman.sandbox(image="bare:1", resources=SMALL) as box:
        fill = "x=x; while :; do x=$x$x; done"
        result = await box.exec(["sh", "-c", fill])
        assert (result.signal, result.oom_killed) == (signal.SIGKILL, True)
        # It reads its counters and writes none.
        below = "memory/" if tree().version == 1 else ""
        write = f"echo 1 >/sys/fs/cgroup/{below}{memory_limit()}"
        refused = await box.exec(["sh", "-c", write])
        assert b"Read-only file system" in refused.stderr


async def test_processes_are_bounded(bed):
    async with bed.sandman.sandbox() as box:
        result = await box.exec(["python3", "-c", THREADS], timeout_s=60)
        assert result.stdout.endswith(b"can't start new thread\n"), result
        assert cgroups.PROCESSES_MAX - 100 < int(result.stdout.split()[0]) < cgroups.PROCESSES_MAX


async def test_more_than_the_machine_has_is_refused(bed):
    with pytest.raises(errors.BadRequestError, match="this machine has no more than"):
        await bed.sandman.create(resources={"memory": "9Ti"})


async def wait_for_the_end(box: Sandbox) -> None:
    """Calls until one is refused."""
    with trio.fail_after(30):
        while True:
            await box.exec(["true"])
            await trio.sleep(0.1)


def test_the_end_of_memory_is_a_reason(tmp_path):
    """A first process that the kernel kills for want of memory."""
    with running(tmp_path, free=1) as one:

        async def die() -> None:
            async with one.bed() as bed:
                box = await bed.sandman.create(resources=SMALL)
                [group] = [
                    group
                    for group in groups()
                    if (group / memory_limit()).read_text() == f"{96 * MIB}\n"
                    and group.parent.name.startswith(f"{cgroups.PREFIX}{one.process.pid}-")
                ]
                result = await box.exec(["python3", "-c", HOG])
                assert result.oom_killed
                first = int((group / "cgroup.procs").read_text().split()[0])
                os.kill(first, signal.SIGKILL)
                with pytest.raises(errors.OomError):
                    await wait_for_the_end(box)

        trio.run(die)
        one.process.kill()
        one.process.wait()
        left = f"{cgroups.PREFIX}{one.process.pid}-"
        assert any(group.parent.name.startswith(left) for group in groups())
    with running(tmp_path, free=1):
        assert not any(group.parent.name.startswith(left) for group in groups())
