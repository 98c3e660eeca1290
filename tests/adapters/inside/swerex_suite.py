"""SWE-ReX's deployment: what SWE-agent calls, as it calls it (a new event loop each time), and the dialect's corners.

Collected by a pytest of its own, in SWE-ReX's virtual environment. SWE-ReX's own tests of a runtime run in tests/conformance.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest
from swerex import exceptions
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from sandman import errors
from sandman.adapters import swerex as adapter
from sandman.sync import Client
from tests.adapters.inside import examples

IMAGE = os.environ.get("ADAPTERS_IMAGE", "task:1")


def call(coroutine):
    """As SWE-agent does it."""
    return asyncio.run(coroutine)


@pytest.fixture(scope="module")
def deployment():
    one = adapter.SandmanDeploymentConfig(image=IMAGE, workdir="/tmp").get_deployment()
    call(one.start())
    yield one
    call(one.stop())


@pytest.fixture
def runtime(deployment):
    return deployment.runtime


@pytest.fixture
def bash(runtime):
    call(runtime.create_session(CreateBashSessionRequest()))
    yield lambda command, **more: call(
        runtime.run_in_session(
            BashAction(command=command, **{"timeout": 25, "check": "silent"} | more)
        )
    )
    call(runtime.close_session(CloseBashSessionRequest()))


def test_the_example_runs() -> None:
    namespace = examples.namespace("SWE-ReX", IMAGE)
    assert asyncio.run(namespace["main"]()).output == "hello\n"
    with Client() as client:
        assert examples.soon(lambda: client.list("swerex-example")) == []


def test_the_calls_of_swe_agent(tmp_path) -> None:
    steps = []
    one = adapter.SandmanDeployment(image=IMAGE, workdir="/tmp")
    one.add_hook(Steps(steps))
    with pytest.raises(exceptions.DeploymentNotStartedError):
        call(one.is_alive())
    call(one.start())
    assert steps == ["Allocating a sandbox"]
    assert call(one.is_alive(timeout=1))
    runtime = one.runtime
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "sum.py").write_text("def sum(a, b):\n    return a - b\n")
    call(
        runtime.create_session(
            CreateBashSessionRequest(startup_source=["/root/.bashrc"], startup_timeout=10)
        )
    )

    def communicate(command, **more):
        return call(
            runtime.run_in_session(BashAction(command=command, timeout=25, check="silent", **more))
        )

    assert communicate("export LANG=C.UTF-8 && export LC_ALL=C.UTF-8").exit_code == 0
    call(runtime.upload(UploadRequest(source_path=str(tmp_path / "repo"), target_path="/tmp/repo")))
    base = "git -c user.name=a -c user.email=a@b commit -qam base --allow-empty"
    assert communicate(f"cd /tmp/repo && git init -q . && git add -A && {base}").exit_code == 0
    assert communicate("pwd && echo $LANG").output == "/tmp/repo\nC.UTF-8\n"
    text = call(
        runtime.read_file(ReadFileRequest(path="/tmp/repo/sum.py", encoding="utf-8"))
    ).content
    call(
        runtime.write_file(
            WriteFileRequest(path="/tmp/repo/sum.py", content=text.replace("-", "+"))
        )
    )
    told = communicate("python3 -c 'import sum; print(sum.sum(1, 2))'")
    assert (told.output, told.exit_code) == ("3\n", 0)
    with pytest.raises(exceptions.CommandTimeoutError):
        call(runtime.run_in_session(BashAction(command="sleep 60", timeout=0.5, check="silent")))
    call(runtime.run_in_session(BashInterruptAction()))
    assert communicate("git add -A && git diff --cached > /tmp/patch").exit_code == 0
    assert (
        "+    return a + b" in call(runtime.read_file(ReadFileRequest(path="/tmp/patch"))).content
    )
    call(runtime.execute(Command(command="rm -rf /tmp/repo", shell=True, check=True)))
    call(runtime.close())
    call(one.stop())
    call(one.stop())
    with pytest.raises(exceptions.DeploymentNotStartedError):
        _ = one.runtime


class Steps(DeploymentHook):
    def __init__(self, steps: list[str]) -> None:
        self.on_custom_step = steps.append


def test_sessions(runtime, bash) -> None:
    with pytest.raises(exceptions.SessionExistsError):
        call(runtime.create_session(CreateBashSessionRequest()))
    with pytest.raises(exceptions.SessionDoesNotExistError):
        call(runtime.run_in_session(BashAction(command="true", session="other")))
    assert bash("false", check="ignore").exit_code is None
    assert bash("(exit 3)").exit_code == 3
    with pytest.raises(exceptions.NonZeroExitCodeError, match="it broke"):
        bash("false", check="raise", error_msg="it broke")
    with pytest.raises(exceptions.BashIncorrectSyntaxError) as caught:
        bash("if true")
    assert "bash_stderr" in caught.value.extra_info
    told = bash("echo so far; sleep 60", expect=["far"])
    assert (told.output, told.expect_string) == ("so ", "far")
    call(runtime.run_in_session(BashInterruptAction()))
    assert bash("echo back").output == "back\n"


def test_interactive_programs(bash) -> None:
    bash("python3 -q", is_interactive_command=True, expect=[">>> "])
    assert (
        bash("print(6 * 7)", is_interactive_command=True, expect=[">>> "])
        .output.strip()
        .endswith("42")
    )
    bash("exit()", is_interactive_quit=True)
    assert bash("echo back").output == "back\n"


def test_commands_by_themselves(runtime) -> None:
    def run(command, **more):
        return call(runtime.execute(Command(command=command, **more)))

    told = run(["sh", "-c", "echo a; echo b >&2; exit 3"])
    assert (told.stdout, told.stderr, told.exit_code) == ("a\n", "b\n", 3)
    assert run("echo a; echo b >&2", shell=True, merge_output_streams=True).stdout == "a\nb\n"
    assert run(["/usr/bin/env"], env={"ONE": "1"}).stdout.startswith("ONE=1\nSANDMAN_EXEC=")
    assert run("pwd", shell=True, cwd="/usr").stdout == "/usr\n"
    assert run("cat", shell=True).stdout == ""
    with pytest.raises(exceptions.NonZeroExitCodeError, match="it broke"):
        run(["false"], check=True, error_msg="it broke")
    with pytest.raises(exceptions.CommandTimeoutError):
        run(["sleep", "60"], timeout=0.5)


def test_files(runtime, tmp_path) -> None:
    def read(path, **more):
        return call(runtime.read_file(ReadFileRequest(path=path, **more))).content

    (tmp_path / "bytes").write_bytes(b"\xff\r\n")
    call(
        runtime.upload(
            UploadRequest(source_path=str(tmp_path / "bytes"), target_path="/tmp/new/bytes")
        )
    )
    with pytest.raises(UnicodeDecodeError):
        read("/tmp/new/bytes")
    assert read("/tmp/new/bytes", errors="replace") == "\ufffd\r\n"
    assert read("/tmp/new/bytes", encoding="latin-1") == "ÿ\r\n"
    with pytest.raises(FileNotFoundError):
        read("/tmp/no")
    with pytest.raises(IsADirectoryError):
        read("/tmp")
    with pytest.raises(NotADirectoryError):
        call(runtime.write_file(WriteFileRequest(path="/etc/passwd/x", content="")))


def test_a_call_that_is_cancelled_ends_its_command(runtime) -> None:
    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(runtime.execute(Command(command=["sleep", "77"])), 1)

    async def count():
        for _ in range(100):
            told = await runtime.execute(Command(command="pgrep -cf 'sleep 7[7]'", shell=True))
            if told.stdout == "0\n":
                return told.stdout
            await asyncio.sleep(0.1)
        return told.stdout

    call(impatient())
    assert call(count()) == "0\n"


def test_a_sandbox_that_is_lost_is_raised_and_no_result() -> None:
    one = adapter.SandmanDeployment(image=IMAGE, run="lost")
    call(one.start())
    call(one.runtime.create_session(CreateBashSessionRequest()))
    with Client() as client:
        client.release_run("lost")
    with pytest.raises(adapter.SandboxError, match="released") as caught:
        call(one.runtime.execute(Command(command=["true"])))
    assert isinstance(caught.value, exceptions.SwerexException)
    assert isinstance(caught.value.__cause__, errors.ReleasedError)
    with pytest.raises(adapter.SandboxError):
        call(one.runtime.run_in_session(BashAction(command="true")))
    assert not call(one.is_alive())
    call(one.stop())


def test_one_that_cannot_be_had() -> None:
    one = adapter.SandmanDeployment(image="no-such-image")
    with pytest.raises(exceptions.DeploymentStartupError, match="image_not_found"):
        call(one.start())
    with pytest.raises(exceptions.DeploymentNotStartedError):
        _ = one.runtime
    call(one.stop())


def test_a_start_that_is_cancelled_as_it_ends_loses_no_sandbox(monkeypatch) -> None:
    one = adapter.SandmanDeployment(image=IMAGE, run="cancelled")
    acquire, allocated, go = adapter.Holding.acquire, threading.Event(), threading.Event()

    async def late(options):
        holding = await acquire(options)
        allocated.set()
        assert go.wait(
            20
        )  # so long its loop does nothing else: the cancellation comes when it is done already
        return holding

    async def cancelled() -> None:
        starting = asyncio.create_task(one.start())
        assert await asyncio.to_thread(allocated.wait, 20)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        go.set()
        await one.stop()

    monkeypatch.setattr(adapter.Holding, "acquire", late)
    call(cancelled())
    with Client() as client:
        assert client.list("cancelled") == []


def test_one_that_is_forgotten_is_released() -> None:
    one = adapter.SandmanDeployment(image=IMAGE, run="forgotten")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(one.start())
    with Client() as client:
        assert len(client.list("forgotten")) == 1
        del one
        gc.collect()
        assert client.list("forgotten") == []
    loop.close()
    asyncio.set_event_loop(None)
