"""Images that fail and pools that break, on the real cluster: typed as said, and nothing is flooded."""

from __future__ import annotations

import collections
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio

from sandman import names
from sandman.errors import ImageDeniedError, ImageNotFoundError, ImagePullError, SandmanError
from tests.cluster.bed.shell import wait_until
from tests.cluster.registry_front import Front, front

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

BURST = 200


def pods(sandman: Deployed, pool: str) -> dict[str, Any]:
    """A pool's pods by uid."""
    listing = json.loads(
        sandman.kubectl("get", "pods", "-l", f"{names.LABEL_POOL}={pool}", "-o", "json")
    )
    return {one["metadata"]["uid"]: one for one in listing["items"]}


def free(sandman: Deployed, pool: str) -> set[str]:
    """Its placeholders."""
    return {
        uid
        for uid, one in pods(sandman, pool).items()
        if one["metadata"]["labels"][names.LABEL_STATE] == names.STATE_FREE
        and "deletionTimestamp" not in one["metadata"]
    }


async def ready(client: Any, pool: str, count: int) -> None:
    """Wait until so many placeholders are free."""
    with trio.fail_after(60):
        while next(one.free for one in await client.pools() if one.name == pool) < count:
            await trio.sleep(0.2)


@pytest.fixture(scope="module")
def registry(bed) -> Iterator[Front]:
    with front(bed) as one:
        yield one


async def refused(client: Any, image: str, **options: Any) -> SandmanError:
    """How an allocation that cannot succeed ends."""
    with pytest.raises(SandmanError) as caught:
        await client.create(image=image, **options)
    return caught.value


async def test_a_burst_for_a_misspelt_image_burns_one_placeholder(sandman, registry):
    image = registry.reference("open", "sandman-test/bussybox:1")
    ends: list[SandmanError] = []
    async with sandman.client() as client:
        await ready(client, "root", 4)
        before = free(sandman, "root")

        async def one() -> None:
            ends.append(await refused(client, image, wait_s=30))

        begun = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(BURST):
                nursery.start_soon(one)
        print(f"{BURST} told in {time.monotonic() - begun:.2f} s")
        assert collections.Counter(type(one) for one in ends) == {ImageNotFoundError: BURST}
        assert all(one.facts["pull"] == "missing" for one in ends)
        assert registry.pulls(image) == 1
        await ready(client, "root", 4)
        after = free(sandman, "root")
        assert len(before - after) <= 1
        assert len(after - before) <= 1
    sandman.wait_nothing_leased()


async def test_an_image_that_is_denied_is_said_to_be(sandman, registry):
    async with sandman.client() as client:
        error = await refused(client, registry.reference("private"), wait_s=30)
        assert type(error) is ImageDeniedError
        assert error.facts["pull"] == "denied"


async def test_a_registry_that_throttles_twice_costs_time_and_nothing_else(sandman, registry):
    image = registry.reference("twice")
    async with sandman.client() as client:
        await ready(client, "root", 4)
        async with client.sandbox(image=image, wait_s=60) as box:
            assert (await box.exec(["/bin/sh", "-c", "echo in"])).stdout_text == "in\n"
            assert box.info.image == image
            with trio.fail_after(20):
                while (await box.refresh()).image_digest is None:
                    await trio.sleep(0.2)
            assert "@sha256:" in (box.info.image_digest or "")
    assert registry.pulls(image) >= 3


async def test_one_that_throttles_for_long_is_retryable(sandman, registry):
    image = registry.reference("always")
    async with sandman.client() as client:
        await ready(client, "root", 4)
        error = await refused(client, image, wait_s=13)
        assert type(error) is ImagePullError
        assert (error.retryable, error.cause) == (True, "infrastructure")
        assert error.facts["pull"] == "throttled"
        assert error.retry_after
    assert registry.pulls(image) <= 4


def broken_pool(sandman: Deployed, name: str, **changes: Any) -> dict[str, Any]:
    """A Deployment like that of `root`, with something in its container changed."""
    made = json.loads(sandman.kubectl("get", "deployment", "sandman-pool-root", "-o", "json"))
    made["metadata"] = {
        "name": f"sandman-pool-{name}",
        "labels": {names.LABEL_POOL: name},
        "annotations": {names.ANNOTATION_POOL_SWAP: "true"},
    }
    del made["status"]
    made["spec"]["replicas"] = 4
    made["spec"]["selector"]["matchLabels"][names.LABEL_POOL] = name
    made["spec"]["template"]["metadata"]["labels"][names.LABEL_POOL] = name
    made["spec"]["template"]["spec"]["containers"][0].update(changes)
    return made


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        # It cannot be started, as a daemon that is broken: the pod fails at once, and is replaced at once.
        ("dying", {"workingDir": "/dev/null/nowhere"}),
        ("missing", {"image": "127.0.0.1:5000/sandman-test/nothing:1"}),
    ],
)
def test_a_pool_of_which_nothing_comes_up_is_stopped_and_starts_again_when_mended(
    sandman, kind, changes, tmp_path
):
    deployment = f"sandman-pool-{kind}"
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(broken_pool(sandman, kind, **changes)))
    made: set[str] = set()

    def now() -> dict[str, Any]:
        made.update(pods(sandman, kind))
        return dict(json.loads(sandman.kubectl("get", "deployment", deployment, "-o", "json")))

    def is_stopped() -> bool:
        return names.ANNOTATION_BROKEN in now()["metadata"].get("annotations", {})

    def is_full() -> bool:
        return now()["status"].get("readyReplicas") == 4

    sandman.kubectl("apply", "-f", str(file))
    try:
        wait_until("the pool to be stopped", is_stopped)
        for _ in range(10):
            assert now()["spec"]["replicas"] == 0
            time.sleep(0.3)
        assert len(made) <= 8, "twice its size"
        told = sandman.kubectl("describe", "deployment", deployment)
        assert "PoolStopped" in told
        assert f"annotate deployment {deployment} {names.ANNOTATION_BROKEN}-" in told
        file.write_text(json.dumps(broken_pool(sandman, kind)))
        sandman.kubectl("apply", "-f", str(file))
        wait_until("the mended pool to be full", lambda: not is_stopped() and is_full())
    finally:
        sandman.kubectl("delete", "deployment", deployment, "--wait=false")
