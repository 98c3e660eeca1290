"""NeMo Gym's public sandbox on our provider, as its entry point gives it: the contract of `providers/base.py`, point by point.

Collected by a pytest of its own, in an environment that holds NeMo Gym.
"""

from __future__ import annotations

import os

import pytest
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec
from nemo_gym.sandbox.providers import SandboxStatus, list_providers
from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxHandle
from nemo_gym.sandbox.providers.registry import create_provider
from pydantic import ValidationError

from sandman import errors
from sandman.adapters import nemo_gym as adapter
from sandman.client import Client, SandboxInfo
from tests.adapters.inside import examples

IMAGE = os.environ.get("ADAPTERS_IMAGE", "task:1")


@pytest.fixture(scope="session")
async def shared():
    async with AsyncSandbox(
        {"sandman": {"workdir": "/tmp"}}, SandboxSpec(image=IMAGE, env={"OF": "spec"})
    ) as one:
        yield await one.start()


def test_it_is_found_by_its_entry_point() -> None:
    assert "sandman" in list_providers()
    assert isinstance(create_provider({"sandman": {}}), adapter.SandmanProvider)
    with pytest.raises(ValidationError):
        create_provider({"sandman": {"imagee": IMAGE}})


async def test_the_example_runs() -> None:
    result = await examples.namespace("NeMo Gym", IMAGE)["main"]()
    assert (result.stdout, result.return_code) == ("hello\n", 0)


def test_the_synchronous_sandbox() -> None:
    with Sandbox(
        {"sandman": None}, SandboxSpec(image=IMAGE, files={"/data/in.txt": "given\n"})
    ) as one:
        one.start()
        assert one.status() is SandboxStatus.RUNNING
        assert one.exec("cat /data/in.txt").stdout == "given\n"
    assert one.status() is SandboxStatus.STOPPED


async def test_results(shared) -> None:
    told = await shared.exec("echo $OF $ONE; echo b >&2; exit 3", env={"ONE": "1"})
    assert (told.stdout, told.stderr, told.return_code, told.error_type) == (
        "spec 1\n",
        "b\n",
        3,
        None,
    )
    assert (await shared.exec("pwd")).stdout == "/tmp\n"
    assert (await shared.exec("pwd", cwd="/usr")).stdout == "/usr\n"
    assert (await shared.exec("id -un", user="nobody")).stdout == "nobody\n"
    assert (await shared.exec("id -u", user=65534)).stdout == "65534\n"
    assert (await shared.exec("no-such-program")).return_code == 127


async def test_a_timeout(shared) -> None:
    told = await shared.exec("sleep 77 & echo so far; sleep 77", timeout_s=0.5)
    assert (told.stdout, told.return_code, told.error_type) == ("so far\n", 125, "timeout")
    assert (await shared.exec("pgrep -cf 'sleep 7[7]'")).stdout == "0\n"


async def test_files(shared, tmp_path) -> None:
    (tmp_path / "bytes").write_bytes(b"\0\xff\r\n" * 100_000)
    await shared.upload(tmp_path / "bytes", "/tmp/new/bytes")
    await shared.download("/tmp/new/bytes", tmp_path / "new" / "back")
    assert (tmp_path / "new" / "back").read_bytes() == (tmp_path / "bytes").read_bytes()
    with pytest.raises(errors.PathNotFoundError):
        await shared.download("/tmp/no", tmp_path / "no")


async def test_what_is_wanted_of_several_who_say_it() -> None:
    asked = SandboxSpec(
        image="a", ttl_s=60, ready_timeout_s=5, metadata={"one": "1"}, resources={"cpu": 2, "memory_mib": 512},
        provider_options={"image": "b", "network": "none"},
    )  # fmt: skip
    assert adapter._wanted({"image": "c", "pool": "p"}, asked).options() == {
        "image": "a", "max_s": 60, "wait_s": 5, "labels": {"one": "1"}, "network": "none", "pool": "p",
        "resources": {"cpu": 2, "memory": "512Mi"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"entrypoint": ["sh"]},
        {"resources": {"gpu": 1}},
        {"resources": {"disk_gib": 1}},
        {"provider_options": {"x": 1}},
    ],
)
async def test_what_cannot_be_is_refused_and_not_ignored(more) -> None:
    with pytest.raises(SandboxCreateError):
        await create_provider({"sandman": {}}).create(SandboxSpec(image=IMAGE, **more))


async def test_one_that_cannot_be_had() -> None:
    with pytest.raises(SandboxCreateError, match="image_not_found") as caught:
        await AsyncSandbox({"sandman": {}}, SandboxSpec(image="no-such-image")).start()
    assert isinstance(caught.value.__cause__, errors.ImageNotFoundError)


async def test_a_sandbox_that_is_lost_is_raised_and_no_result() -> None:
    provider = create_provider({"sandman": {}})
    handle = await provider.create(SandboxSpec(image=IMAGE))
    assert (handle.provider_name, await provider.status(handle)) == (
        "sandman",
        SandboxStatus.RUNNING,
    )
    async with Client() as client:
        await client.release(handle.sandbox_id)
    with pytest.raises(errors.ReleasedError):
        await provider.exec(handle, "true")
    assert await provider.status(handle) is SandboxStatus.STOPPED
    await provider.close(handle)
    await provider.close(handle)
    await provider.aclose()


class Told:
    """Stands where a sandbox is, and says what a gateway says of one."""

    def __init__(self, answer) -> None:
        self.box, self.answer = self, answer

    async def refresh(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (errors.NotFoundError("gone"), SandboxStatus.STOPPED),
        (errors.ExpiredError("over"), SandboxStatus.STOPPED),
        (errors.NodeLostError("over"), SandboxStatus.ERROR),
        (errors.UnreachableError("away"), SandboxStatus.UNKNOWN),
        (errors.InternalError("x"), SandboxStatus.UNKNOWN),
    ],
)
async def test_status_never_raises(answer, status) -> None:
    handle = SandboxHandle("x", "sandman", Told(answer))
    assert await create_provider({"sandman": {}}).status(handle) is status


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("ended", "expired", SandboxStatus.STOPPED),
        ("ended", "node_lost", SandboxStatus.ERROR),
        ("ended", "oom", SandboxStatus.ERROR),
        ("ending", None, SandboxStatus.STOPPED),
        (None, None, SandboxStatus.UNKNOWN),
    ],
)
async def test_states(state, reason, status) -> None:
    told = SandboxInfo(id="x", state=state, ended={"reason": reason} if reason else None)
    handle = SandboxHandle("x", "sandman", Told(told))
    assert await create_provider({"sandman": {}}).status(handle) is status
