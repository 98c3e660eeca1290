"""Resources on the real cluster: resized in place without a restart, by the kernel's own word; choice of a
pool; a node without room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from sandman.errors import BadRequestError
from tests.cluster.audit import AuditLog
from tests.cluster.test_main_job import wait_free

if TYPE_CHECKING:
    from sandman import Sandbox
    from tests.cluster.deployed import Deployed

MI = 1024**2
LIMITS = """
cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max
cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max
"""


@pytest.fixture(autouse=True)
def nothing_is_left(sandman: Deployed):
    yield
    sandman.wait_nothing_leased()


def pod(deployed: Deployed, box: Sandbox) -> dict:
    return json.loads(deployed.kubectl("get", "pod", box.id.rpartition("-")[0], "-o", "json"))


async def limits(box: Sandbox) -> list[int]:
    """Bytes and microseconds of processor in each 100,000, as the kernel enforces them on the sandbox."""
    result = await box.run(LIMITS)
    assert result.ok, result
    return [int(line) for line in result.stdout.split()]


async def test_a_sandbox_is_resized_in_place(sandman: Deployed) -> None:
    cpu, memory = "1500m", "768Mi"
    wait_free(sandman, 1)
    log = AuditLog(sandman.bed.audit_log)
    wanted = {"cpu": cpu, "memory": memory}
    async with (
        sandman.client() as client,
        client.sandbox(image=sandman.image("debian"), pool="root", resources=wanted) as box,
    ):
        assert (box.info.tier, box.info.resources) == ("swap", wanted)
        millicores, mebibytes = int(cpu.removesuffix("m")), int(memory.removesuffix("Mi"))
        assert await limits(box) == [mebibytes * MI, millicores * 100]
        now = pod(sandman, box)
        [status] = now["status"]["containerStatuses"]
        # The one restart is the swap's.
        assert (status["restartCount"], now["status"]["qosClass"]) == (1, "Burstable")
        name = now["metadata"]["name"]
        await trio.sleep(1)
        gateway = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"
        written = [
            f"{one.verb} {one.resource}"
            for one in log.writes()
            if one.user == gateway and one.name == name
        ]
        assert written == ["patch pods", "patch pods/resize"]


async def test_one_that_has_more_than_asked_is_handed_over_and_shrinks_when_its_kubelet_can(
    sandman: Deployed,
) -> None:
    """A kubelet makes memory smaller only after it has measured the container, which was just started."""
    wait_free(sandman, 1)
    wanted = {"cpu": "250m", "memory": "256Mi"}
    async with (
        sandman.client() as client,
        client.sandbox(image=sandman.image("debian"), pool="root", resources=wanted) as box,
    ):
        assert box.info.tier == "swap"
        [container] = pod(sandman, box)["spec"]["containers"]
        assert container["resources"]["limits"] == wanted
        assert box.info.resources in (wanted, {"cpu": "1", "memory": "512Mi"})
        memory, cpu = await limits(box)
        assert (memory, cpu) in {(256 * MI, 25_000), (512 * MI, 100_000)}


async def test_what_no_node_can_give_comes_as_a_typed_error_and_leaves_nothing(
    sandman: Deployed,
) -> None:
    """A placeholder that cannot be resized is given up, and a new pod of that size has no node."""
    wait_free(sandman, 2)
    async with sandman.client() as client:
        with pytest.raises(Exception, match=r"unschedulable|capacity") as caught:
            await client.create(
                image=sandman.image("debian"),
                pool="root",
                resources={"memory": "50Ti"},
                wait_s=20,
            )
        assert getattr(caught.value, "reason", None) in {"unschedulable", "capacity"}


async def test_the_pool_is_chosen_or_the_error_says_what_there_is(sandman: Deployed) -> None:
    wait_free(sandman, 1)
    async with sandman.client() as client:
        async with client.sandbox(image=sandman.image("debian"), resources={"cpu": 1}) as box:
            assert (box.info.pool, box.info.resources["cpu"]) == ("root", "1")
        with pytest.raises(BadRequestError) as caught:
            await client.create(image=sandman.image("debian"), node_class="none-has-this")
        assert caught.value.field == "node_class"
