"""Harbor on its environment, by import path: its template task with its agents, and what an environment must do.

Collected by a pytest of its own, in Harbor's virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path  # noqa: TC003 - pytest reads it

import pytest
from harbor.cli.main import app
from harbor.environments.base import SandboxBuildFailedError
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import EnvironmentConfig as Chosen
from harbor.models.trial.paths import TrialPaths
from typer.testing import CliRunner

from sandman import errors
from sandman.adapters.harbor import SandmanEnvironment
from sandman.sync import Client
from tests.adapters.inside import examples

IMAGE = os.environ.get("ADAPTERS_IMAGE", "task:1")
IMPORT_PATH = "sandman.adapters.harbor:SandmanEnvironment"


def harbor(*arguments: str) -> str:
    """Its command line."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    """Harbor's template task, filled in as the documentation has it."""
    place = tmp_path_factory.mktemp("tasks")
    harbor(
        "init",
        "example/answer",
        "--task",
        "--output-dir",
        str(place),
        "--no-pytest",
        "--verifier-mode",
        "shared",
    )
    one = place / "answer"
    (one / "instruction.md").write_text("Write 42 into /tmp/answer.\n")
    for name, language in (
        ("task.toml", "toml"),
        ("solution/solve.sh", "bash"),
        ("tests/test.sh", "sh"),
    ):
        text = examples.block("Harbor", language, IMAGE, named=name == "task.toml")
        (one / name).write_text(
            (one / name).read_text() + "\n" + text if name != "task.toml" else merged(one, text)
        )
    (one / "environment" / "Dockerfile").unlink()
    (one / "environment" / "given.txt").write_text("given\n")
    return one


def merged(one: Path, text: str) -> str:
    """The template's settings, with the example's line in its section."""
    line = text.strip().splitlines()[-1]
    told = (one / "task.toml").read_text()
    assert told.count("[environment]\n") == 1
    return told.replace("[environment]\n", f"[environment]\n{line}\n")


def run(task: Path, place: Path, *arguments: str) -> dict:
    """One trial; its result."""
    harbor(
        "run",
        "--path",
        str(task),
        "--env",
        IMPORT_PATH,
        "--jobs-dir",
        str(place),
        "--job-name",
        "job",
        "--yes",
        "--quiet",
        *arguments,
    )
    (trial,) = (place / "job").glob("*/result.json")
    return json.loads(trial.read_text())


def test_the_template_task_with_the_oracle(task, tmp_path) -> None:
    result = run(task, tmp_path, "--agent", "oracle", "--ek", "workdir=/tmp")
    assert result["exception_info"] is None
    assert result["verifier_result"]["rewards"]["reward"] == 1.0


def test_the_template_task_with_nop(task, tmp_path) -> None:
    result = run(task, tmp_path, "--agent", "nop", "--ek", "workdir=/tmp")
    assert result["exception_info"] is None
    assert result["verifier_result"]["rewards"]["reward"] == 0.0
    with Client() as client:
        assert [box for box in client.list() if box.info.labels.get("framework") == "harbor"] == []


def test_a_trial_without_a_sandbox_is_an_error_and_no_reward(task, tmp_path) -> None:
    result = run(task, tmp_path, "--agent", "oracle", "--ek", "image=no-such-image")
    assert result["exception_info"]["exception_type"] == "SandboxBuildFailedError"
    assert result["verifier_result"] is None


def environment(
    place: Path,
    task_env: EnvironmentConfig | None = None,
    policy: NetworkPolicy | None = None,
    **kwargs,
):
    """As a trial makes one."""
    directory = place / "environment"
    directory.mkdir(exist_ok=True)
    paths = TrialPaths(place / "trial")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        Chosen(import_path=IMPORT_PATH, kwargs={"workdir": "/tmp", **kwargs}),
        environment_dir=directory,
        environment_name="one",
        session_id="one__env",
        trial_paths=paths,
        task_env_config=task_env or EnvironmentConfig(docker_image=IMAGE, env={"OF_TASK": "1"}),
        network_policy=policy,
        auto_mounts=[
            {"type": "bind", "source": str(place), "target": f"/logs/{name}"}
            for name in ("agent", "verifier", "artifacts")
        ],
    )


def within(place: Path, body, **options):
    """Run it in an environment that is started, and stopped afterwards."""

    async def main():
        one = environment(place, **options)
        assert isinstance(one, SandmanEnvironment)
        await one.start(force_build=False)
        try:
            return await body(one)
        finally:
            await one.stop(delete=True)
            await one.stop(delete=True)

    return asyncio.run(main())


def test_commands(tmp_path) -> None:
    async def body(one):
        told = await one.exec("echo $OF_TASK $ONE; pwd; echo b >&2; exit 3", env={"ONE": "2"})
        assert (told.stdout, told.stderr, told.return_code) == ("1 2\n/tmp\n", "b\n", 3)
        assert (await one.exec("pwd", cwd="/usr")).stdout == "/usr\n"
        assert (await one.exec("id -un", user="nobody")).stdout == "nobody\n"
        with one.with_default_user(65534):
            assert (await one.exec("id -un")).stdout == "nobody\n"
        with one.scoped_exec_env({"ONE": "3"}):
            assert (await one.exec("echo $ONE", env={"ONE": "2"})).stdout == "3\n"
        assert (await one.exec("cat")).stdout == ""
        await one.exec("sleep 300 & echo $! > /tmp/pid")
        assert (await one.exec("kill -0 $(cat /tmp/pid)")).return_code == 0

    within(tmp_path, body)


def test_a_timeout_is_a_return_code(tmp_path) -> None:
    async def body(one):
        told = await one.exec("sleep 77 & echo so far; sleep 77", timeout_sec=1)
        assert (told.stdout, told.return_code) == ("so far\n", 124)
        assert "timed out after 1 seconds" in told.stderr
        assert (await one.exec("pgrep -cf 'sleep 7[7]'")).stdout == "0\n"

    within(tmp_path, body)


def test_files(tmp_path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (source / "below" / "run.sh").chmod(0o755)
    (source / "bytes").write_bytes(b"\0\xff\r\n")

    async def body(one):
        await one.upload_dir(source, "/solution/new")
        await one.upload_file(source / "bytes", "/solution/other/bytes")
        assert (await one.exec("/solution/new/below/run.sh")).stdout == "it runs\n"
        await one.exec("mkfifo /solution/new/pipe; ln -s /etc/passwd /solution/new/link")
        await one.download_dir("/solution/new", tmp_path / "back")
        await one.download_file("/solution/other/bytes", tmp_path / "one")
        assert await one.is_dir("/solution")
        assert await one.is_file("/solution/new/bytes")
        assert not await one.is_file("/solution")
        await one.exec("rm /solution/new/link")  # Harbor's own way with exclusions stumbles over it
        await one.download_dir_with_exclusions(
            source_dir="/solution/new", target_dir=tmp_path / "part", exclude=["bytes"]
        )

    within(tmp_path, body)
    assert (
        (tmp_path / "back" / "bytes").read_bytes()
        == (tmp_path / "one").read_bytes()
        == b"\0\xff\r\n"
    )
    assert stat.S_IMODE((tmp_path / "back" / "below" / "run.sh").stat().st_mode) == 0o755
    assert not (tmp_path / "back" / "pipe").exists()
    assert not (tmp_path / "part" / "bytes").exists()
    assert (tmp_path / "part" / "below" / "run.sh").exists()


def test_directories_of_logs_are_writable_by_all(tmp_path) -> None:
    async def body(one):
        for path in ("/logs/agent", "/logs/verifier", "/logs/artifacts"):
            assert (await one.exec(f"touch {path}/x", user="nobody")).return_code == 0, path

    within(tmp_path, body)


def test_a_sandbox_that_is_lost_is_raised_and_no_result(tmp_path) -> None:
    async def body(one):
        with Client() as client:
            client.release(one._box.id)
        with pytest.raises(errors.ReleasedError):
            await one.exec("true")

    within(tmp_path, body)


def test_without_delete_it_stays(tmp_path) -> None:
    async def main():
        one = environment(tmp_path, run="kept")
        await one.start(force_build=False)
        await one.stop(delete=False)

    asyncio.run(main())
    with Client() as client:
        assert client.release_run("kept") == 1


def test_networks(tmp_path) -> None:
    closed = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    one = environment(tmp_path, policy=closed, network="open")
    assert one._wanted()["network"] == "none"
    assert environment(tmp_path, network="open")._wanted()["network"] == "open"
    assert environment(tmp_path)._wanted()["network"] is None
    listed = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.org"])
    with pytest.raises(ValueError, match="allowlist"):
        environment(tmp_path, policy=listed)

    async def body(one):
        await one.set_network_policy(closed)
        with pytest.raises(ValueError, match="--ek network"):
            await one.set_network_policy(NetworkPolicy())

    within(tmp_path, body)


def test_resources(tmp_path) -> None:
    wanted = EnvironmentConfig(docker_image=IMAGE, cpus=2, memory_mb=4096, workdir="/usr")
    options = environment(tmp_path, wanted)._wanted()
    assert options["resources"] == {"cpu": 2, "memory": "4096Mi"}
    assert options["workdir"] == "/usr"


def test_what_cannot_be(tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="docker_image"):
        environment(tmp_path, EnvironmentConfig())
    one = environment(tmp_path)
    with pytest.raises(RuntimeError, match="not started"):
        asyncio.run(one.exec("true"))
    with pytest.raises(ValueError, match="Unknown option"):
        environment(tmp_path, imagee=IMAGE)
    (tmp_path / "environment" / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(SandboxBuildFailedError, match="force-build"):
        asyncio.run(one.start(force_build=True))
    SandmanEnvironment.preflight({})
    monkeypatch.delenv("SANDMAN_LOCAL_STATE", raising=False)
    monkeypatch.delenv("SANDMAN_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="SANDMAN_URL"):
        SandmanEnvironment.preflight({})
