"""inspect_ai's own checks of a provider, and tasks run by inspect_ai, on the provider as its entry point gives it.

Collected by a pytest of its own, in inspect_ai's virtual environment.
"""

from __future__ import annotations

import errno
import os

import anyio
import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import exact
from inspect_ai.solver import solver
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    sandbox,
)
from inspect_ai.util._sandbox.limits import _max_exec_output_size_var, _max_read_file_size_var
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - how inspect_ai hands them out
from pydantic import ValidationError

from sandman import errors
from sandman.adapters import inspect_ai as adapter
from sandman.client import Client, ConfigurationError
from sandman.sync import Client as SyncClient
from tests.adapters.inside import examples

DELETE_POD = os.environ.get("ADAPTERS_DELETE_POD", "")
"""A command line, to which a pod's name is added."""
IMAGE = os.environ.get("ADAPTERS_IMAGE", "task:1")
# Root may read and write whatever a mode says; a sandbox of local mode has the users of its image's files alone.
AS_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
Provider = registry_find_sandboxenv("sandman")
CONFIG = Provider.config_deserialize({"image": IMAGE})


async def kept() -> list:
    """Sandboxes of tasks that ran, beside the one that is shared."""

    def found() -> list:
        mine = [box for box in client.list() if box.info.labels.get("framework") == "inspect_ai"]
        return [box for box in mine if box.info.labels.get("name") != "shared"]

    with SyncClient() as client:
        return await anyio.to_thread.run_sync(examples.soon, found)


@pytest.fixture(scope="session")
async def shared():
    config = Provider.config_deserialize(
        {"image": IMAGE, "workdir": "/tmp", "labels": {"name": "shared"}}
    )
    await Provider.task_init("check", config)
    environments = await Provider.sample_init("check", config, {})
    yield environments["default"]
    await Provider.sample_cleanup("check", config, environments, False)


@pytest.fixture
async def sandbox_env(request, shared):
    if request.node.originalname in AS_ROOT:
        request.applymarker(pytest.mark.xfail(strict=True, reason="root may"))
    return shared


async def test_the_example_of_the_documentation_runs_to_its_end() -> None:
    write = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "echo 42 > answer"})
    said = ModelOutput.from_content("mockllm/model", "Done.")
    write.usage = said.usage = (
        ModelUsage()
    )  # else it counts them, by a table that it would download
    model = get_model("mockllm/model", custom_outputs=[write, said, said])
    (log,) = await eval_async(
        examples.namespace("inspect_ai", IMAGE)["write_it"](), model=model, log_dir="."
    )
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert log.eval.sandbox.config.image == IMAGE
    (other,) = await eval_async(
        examples.namespace("inspect_ai", IMAGE)["write_it"](),
        model=get_model("mockllm/model", custom_outputs=[said, said]),
        log_dir=".",
    )
    assert other.results.scores[0].metrics["accuracy"].value == 0, (
        "another sandbox, without the file"
    )
    assert await kept() == []


async def test_a_sandbox_that_is_lost_is_an_error_and_no_score() -> None:
    @solver
    def lose():
        async def solve(state, generate):
            async with Client() as client:
                await client.release(sandbox().as_type(Provider)._sandbox.id)
            await sandbox().exec(["true"])
            return state

        return solve

    task = Task(
        [Sample("x", target="x")],
        solver=lose(),
        scorer=exact(),
        sandbox=SandboxEnvironmentSpec("sandman", CONFIG),
    )
    (log,) = await eval_async(task, model="mockllm/model", log_dir=".")
    assert log.status == "error"
    assert "ReleasedError" in log.samples[0].error.message
    assert not log.samples[0].scores


@pytest.mark.skipif(not DELETE_POD, reason="for a cluster alone: `select` leaves it out elsewhere")
async def test_a_pod_that_is_deleted_is_an_error_and_no_score() -> None:
    @solver
    def lose():
        async def solve(state, generate):
            box = sandbox().as_type(Provider)._sandbox
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox().exec, ["sleep", "120"])
                await anyio.run_process([*DELETE_POD.split(), box.id.rpartition("-")[0]])
            return state

        return solve

    task = Task(
        [Sample("x", target="x")],
        solver=lose(),
        scorer=exact(),
        sandbox=SandboxEnvironmentSpec("sandman", CONFIG),
    )
    (log,) = await eval_async(task, model="mockllm/model", log_dir=".")
    assert log.status == "error"
    assert "DeletedError" in log.samples[0].error.message, log.samples[0].error.message
    assert not log.samples[0].scores


async def test_what_cannot_be_allocated_is_an_error_and_no_score() -> None:
    config = SandboxEnvironmentSpec(
        "sandman", Provider.config_deserialize({"image": "no-such-image"})
    )
    task = Task([Sample("x", target="x")], scorer=exact(), sandbox=config)
    (log,) = await eval_async(task, model="mockllm/model", log_dir=".")
    assert log.status == "error"
    assert "ImageNotFoundError" in log.samples[0].error.message
    assert not log.samples[0].scores


def test_faults_of_the_infrastructure_pass_as_they_are() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    faults = [kind for kind in kinds if issubclass(kind, errors.InfrastructureError)]
    assert len(faults) > 10
    for kind in faults:
        with pytest.raises(errors.SandmanError) as caught, adapter.translated():
            raise kind("x")
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    "fault",
    [
        errors.DiedError("it went"),
        errors.OomError("it went"),
        errors.EvictedError("it went", cause=errors.SANDBOX),
    ],
)
def test_what_a_sandbox_did_to_itself_is_told_to_the_model(fault) -> None:
    with pytest.raises(SandboxUnavailableError, match="it went"), adapter.translated():
        raise fault


def test_a_full_disk_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="full") as caught, adapter.translated("/x"):
        raise errors.NoSpaceError("full")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/x")


async def test_output_over_the_limit_is_raised_with_its_head_and_tail(shared) -> None:
    token = _max_exec_output_size_var.set(1024)
    try:
        for stream in ("1", "2"):
            with pytest.raises(OutputLimitExceededError, match="limit of 1 KiB was") as caught:
                await shared.exec(["sh", "-c", f"seq 1 9999 >&{stream}"])
            assert caught.value.truncated_output.startswith("1\n2\n")
            assert caught.value.truncated_output.endswith("9999\n")
        exact_limit = await shared.exec(["head", "-c", "1024", "/dev/zero"])
        assert len(exact_limit.stdout) == 1024
    finally:
        _max_exec_output_size_var.reset(token)


async def test_a_file_over_the_limit_is_refused(shared) -> None:
    await shared.write_file("file", "x" * 1025)
    token = _max_read_file_size_var.set(1024)
    try:
        with pytest.raises(OutputLimitExceededError, match="limit of 1 KiB was"):
            await shared.read_file("file")
    finally:
        _max_read_file_size_var.reset(token)
    assert len(await shared.read_file("file")) == 1025


async def test_what_was_written_before_a_timeout_comes_with_it(shared) -> None:
    with pytest.raises(TimeoutError) as caught:
        await shared.exec(["sh", "-c", "echo so far; sleep 60"], timeout=1)
    assert caught.value.truncated_output == "so far\n"


async def test_text_that_is_none(shared) -> None:
    await shared.write_file("bytes", b"\xff\r\n")
    with pytest.raises(UnicodeDecodeError):
        await shared.read_file("bytes")
    assert await shared.read_file("bytes", text=False) == b"\xff\r\n"
    await shared.write_file("text", "a\r\nb")
    assert await shared.read_file("text") == "a\r\nb"


async def test_connection(shared) -> None:
    connection = await shared.connection(user="nobody")
    assert connection.command == f"sandman shell --user nobody {connection.container}"
    assert (await shared.connection()).command == f"sandman shell {connection.container}"


async def test_a_sandbox_that_has_ended_has_no_connection() -> None:
    environments = await Provider.sample_init("check", CONFIG, {})
    one = environments["default"]
    await Provider.cli_cleanup(one._sandbox.id)
    with pytest.raises(ConnectionError):
        await one.connection()
    await Provider.sample_cleanup("check", CONFIG, environments, True)


async def test_cleanup_of_all_takes_only_what_is_of_inspect(shared) -> None:
    async with Client() as client, client.sandbox(image=IMAGE) as other:
        await Provider.sample_init("check", CONFIG, {})
        await Provider.cli_cleanup(None)
        assert other.id in [box.id for box in await client.list()]
        assert await kept() == []
    with pytest.raises(errors.ReleasedError):
        await shared.exec(["true"])


def test_configurations(tmp_path) -> None:
    given = {"image": IMAGE, "env": {"A": "1"}, "resources": {"cpu": "2"}, "network": "none"}
    one, other = Provider.config_deserialize(given), Provider.config_deserialize(given)
    assert hash(one) == hash(other)
    assert one == other
    assert one.options() == {**given, "wait_s": 600.0}
    with pytest.raises(ValidationError):
        Provider.config_deserialize({"compose": "compose.yaml"})
    file = tmp_path / "sandman.yaml"
    file.write_text('{"image": "a", "resources": {"cpu": 2}}')
    assert adapter._spec(str(file)).options() == {
        "image": "a",
        "resources": {"cpu": 2},
        "wait_s": 600.0,
    }
    file.write_text("")
    assert adapter._spec(str(file)) == adapter._spec(None)
    assert Provider.config_files() == ["sandman.yaml"]
    with pytest.raises(TypeError, match="SandmanConfig"):
        adapter._spec(Sample("x"))


async def test_without_a_gateway_no_sample_is_begun(monkeypatch) -> None:
    monkeypatch.delenv("SANDMAN_LOCAL_STATE", raising=False)
    monkeypatch.delenv("SANDMAN_URL", raising=False)
    with pytest.raises(ConfigurationError, match="SANDMAN_URL"):
        await Provider.task_init("check", None)
