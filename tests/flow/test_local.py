"""Local mode with what this machine can keep apart: from the program's start to its end, by the client.

Where the kernel gives no namespaces these tests fail: local mode would be less than it says in the documents.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from gateway.provider.local import cgroups
from gateway.provider.local.images import platform
from sandman import errors, local
from tests.fakes import oci
from tests.flow.local_mode import Gateway, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.flow.local_mode import LocalBed


# Whole programs start here, and on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(120)


def bare_image(top: Path) -> Path:
    """A directory with sh, cat and what they load of this machine, and nothing else."""
    for program in ("sh", "cat", "id"):
        path = Path(shutil.which(program)).resolve()
        _put(top, Path("/bin") / program, path)
        loaded = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for word in loaded.split():
            if word.startswith("/"):
                _put(top, Path(word), Path(word).resolve())
    (top / "etc").mkdir()
    top.chmod(0o755)
    (top / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nsomebody:x:1234:1234::/:/bin/sh\n")
    return top


def _put(top: Path, where: Path, path: Path) -> None:
    place = top / where.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


def archived(top: Path, path: Path) -> Path:
    """The directory as an OCI archive; its second layer takes a program away."""
    first = io.BytesIO()
    with tarfile.open(fileobj=first, mode="w") as whole:
        whole.add(top, ".")
    second = oci.layer(oci.file("bin/.wh.id"), oci.directory("work", 0o777))
    configuration = {
        "os": "linux",
        "architecture": platform().architecture,
        "config": {"Env": ["GREETING=hello"], "WorkingDir": "/work"},
    }
    return oci.Layout([first.getvalue(), second], configuration).write(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Gateway]:
    top = tmp_path_factory.mktemp("image")
    images = {"bare:1": str(bare_image(top / "bare"))}
    images["team/archive"] = str(archived(top / "bare", top / "archive.tar"))
    (top / "broken.tar").write_bytes(b"no tar")
    images["broken"] = str(top / "broken.tar")
    with running(tmp_path_factory.mktemp("state"), images=images, most=6) as one:
        yield one


@pytest.fixture
async def bed(whole) -> AsyncIterator[LocalBed]:
    async with whole.bed() as one:
        yield one
        await one.release_all()


async def test_a_directory_is_an_image_and_each_sandbox_writes_for_itself(bed):
    async with (
        bed.sandman.sandbox(image="bare:1") as one,
        bed.sandman.sandbox(image="bare:1") as two,
    ):
        assert one.info.isolation["files"] == "own"
        await one.files.write("/etc/mark", b"one's")
        assert (await one.run("cat /etc/mark; id -u")).stdout_text == "one's0\n"
        with pytest.raises(errors.PathNotFoundError):
            await two.files.read("/etc/mark")
        # Nothing of this machine is there, its Python neither.
        found = {Path(entry.path).name for entry in await one.files.list("/")}
        assert found <= {"bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr"}
        assert (await one.exec(["python3"])).exit_code == 127


async def test_an_archive_is_an_image_with_its_layers_and_variables(bed):
    async with bed.sandman.sandbox(image="team/archive:latest") as box:
        told = await box.run("pwd; echo $GREETING; cat /etc/passwd")
        assert told.stdout_text.splitlines()[:2] == ["/work", "hello"]
        assert (await box.exec(["id"])).exit_code == 127
        assert box.info.image_digest.startswith("sha256:")
    with pytest.raises(errors.ImageNotFoundError, match="broken"):
        await bed.sandman.create(image="broken")


async def test_an_evaluation_has_its_environment_and_is_told_that_nobody_controls_it(bed):
    async with bed.sandman.sandbox(image="bare:1", purpose="eval") as box:
        told = await box.run("echo $TZ $LC_ALL $PYTHONHASHSEED")
        assert told.stdout_text == "UTC C.UTF-8 0\n"
        found = box.info.conditions
        assert (found["dedicated"], found["network_acknowledged"], found["qos"]) == (
            False,
            False,
            None,
        )


async def test_the_machines_own_root_is_read_only_and_its_homes_are_hidden(bed, tmp_path):
    (tmp_path / "secret").write_text("x")
    async with bed.sandman.sandbox(image="host") as box:
        assert box.info.isolation["files"].startswith("read-only")
        refused = await box.run("echo x > /usr/mark")
        assert (refused.exit_code != 0, "Read-only" in refused.stderr_text) == (True, True)
        with pytest.raises(errors.PathNotFoundError):
            await box.files.read(tmp_path / "secret")
        assert (await box.run("cat /proc/1/environ")).stdout_text == ""
        # As root with all that is left to him.
        for attempt in ("mount -o remount,rw /", "umount /tmp", "echo 1 > /proc/sys/vm/swappiness"):
            assert (await box.run(attempt)).exit_code != 0, attempt
        assert (await box.run("echo well > /tmp/own && cat /tmp/own")).stdout_text == "well\n"


async def test_processes_and_network_are_its_own(bed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with bed.sandman.sandbox(image="host") as box:
            assert box.info.isolation["network"] == "own: none"
            told = await box.exec(["sh", "-c", "echo /proc/[0-9]*; cat /proc/net/dev"])
            first, *_, last = told.stdout_text.splitlines()
            # The daemon, and the shell.
            assert len(first.split()) == 2
            assert "lo:" in told.stdout_text
            assert "eth" not in last
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
            assert "refused" in (await box.exec(["python3", "-c", code])).stderr_text


@pytest.mark.parametrize("user", ["somebody", 1234])
async def test_commands_run_as_any_user_where_the_machine_gives_them(bed, user):
    async with bed.sandman.sandbox(image="bare:1") as box:
        if os.geteuid() == 0:
            assert (await box.exec(["id", "-u"], user=user)).stdout_text == "1234\n"
        else:
            with pytest.raises(errors.UserUnsupportedError):
                await box.exec(["id", "-u"], user=user)


async def test_who_is_one_too_many_waits_until_somebody_goes(bed):
    async with trio.open_nursery() as nursery:
        held = [await bed.sandman.create(image="host") for _ in range(6)]
        with pytest.raises(errors.CapacityError):
            await bed.sandman.create(image="host", wait_s=0.5)

        async def release() -> None:
            await trio.sleep(0.3)
            await held[0].release()

        nursery.start_soon(release)
        box = await bed.sandman.create(image="host", wait_s=20)
        assert (await box.exec(["true"])).exit_code == 0


async def test_the_end_has_its_reason(bed):
    box = await bed.sandman.create(image="bare:1", max_s=1.0)
    with trio.fail_after(20):
        while (await box.refresh()).state == "ready":
            await trio.sleep(0.2)
    with pytest.raises(errors.ExpiredError):
        await box.exec(["true"])


async def test_a_death_is_final_and_told_at_once(bed, whole):
    async with bed.sandman.sandbox(image="bare:1") as box:
        process = await box.start(["sh", "-c", "while :; do :; done"])
        whole.daemon.kill()
        with trio.fail_after(10), pytest.raises(errors.DiedError) as caught:
            await process.wait()
        assert caught.value.sandbox == box.id
    async with bed.sandman.sandbox(image="bare:1", wait_s=20) as box:
        assert (await box.exec(["cat"])).exit_code == 0


@pytest.mark.parametrize("name", ["nothing:1", "bare:2", "etc/passwd"])
async def test_an_image_that_nobody_named_is_none(bed, name):
    with pytest.raises(errors.ImageNotFoundError, match="no image is named so"):
        await bed.sandman.create(image=name)


async def test_what_a_machine_cannot_give_is_refused(bed):
    with pytest.raises(errors.NetworkUnsupportedError):
        await bed.sandman.create(image="host", network="internet")
    with pytest.raises(errors.SandmanError) as caught:
        await bed.sandman.create(image="host", owner={"kind": "Job", "name": "j"})
    assert caught.value.reason == "bad_request"
    answer = await bed.client.get("/v1/sandboxes?attachable", headers=bed.as_("acme"))
    assert (answer.status_code, answer.json()) == (200, {"attachable": []})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_with_the_gateway_all_is_gone(tmp_path, number):
    """Also where it has no time to say so: its files go with the next start."""
    with running(tmp_path) as one:
        assert local.connection_file(one.environ).stat().st_mode & 0o777 == 0o600
        deadline = time.monotonic() + 20
        while not (keepers := one.daemon.keepers()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert keepers
        assert one.stop(number) == {signal.SIGKILL: -9}.get(number, 0)
        while any(Path(f"/proc/{pid}").exists() for pid in keepers):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    if number != signal.SIGKILL:
        assert local.read(one.environ) is None
    else:
        with running(tmp_path):
            pass
    assert [*(tmp_path / "runs").iterdir()] == []


def test_two_shells_and_nothing_else(tmp_path):
    """As the documents have it: one command serves, another finds it."""
    environ = {**os.environ, local.ENV_STATE: str(tmp_path)}
    sandman = [sys.executable, "-m", "sandman.cli"]
    serving = subprocess.Popen(
        [*sandman, "serve", "--local", "--offline", "--free=1"], env=environ, stderr=subprocess.PIPE
    )
    try:
        # The program's own clock, which ends what does not know of it, is not handed on.
        assert b"local mode at" in serving.stderr.readline()
        deadline = time.monotonic() + 20
        while local.read(environ) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        done = subprocess.run(
            [*sandman, "run", "--", "sh", "-c", "echo well; exit 7"],
            env=environ, capture_output=True, text=True, check=False, timeout=25,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (7, "well\n")
        # Of cpu and memory that depends on whether control groups can be made here.
        tree = cgroups.find(cgroups.OWN.read_text(), cgroups.MOUNTS.read_text(), cgroups.may_make)
        shared = "cpu, memory, kernel" if isinstance(tree, str) else "kernel"
        assert f"shares with this machine its {shared}" in done.stderr
    finally:
        serving.send_signal(signal.SIGINT)
        serving.stderr.close()
        assert serving.wait(20) == 0
