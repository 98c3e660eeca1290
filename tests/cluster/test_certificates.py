"""Certificates on the real cluster: what the API server and the kernel say is what stands in them."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from sandman import certificates, names
from sandman.errors import OomError
from tests.cluster import faults, pools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman import Certificate, Client, Sandbox
    from tests.cluster.deployed import Deployed

POOL, TIGHT = "test-certified", "test-tight"
EXACT = {"cpu": "1", "memory": "128Mi"}
"""A whole processor: of a part of one nobody knows here who had the rest, for this kernel tells of no pressure."""
LITTLE = {"cpu": "50m", "memory": "128Mi"}
"""So little cpu that a machine which is busy otherwise gives it more, and the limit is what holds it."""
BUSY = "while :; do :; done & while :; do :; done"
HOG = "tail /dev/zero"


@pytest.fixture
def pool(sandman: Deployed) -> Iterator[str]:
    """One for evaluations, whose pods are Guaranteed. It goes with its pods, that others have the processor again."""
    pools.make(sandman, POOL, {"requests": EXACT, "limits": EXACT}, purpose="eval")
    yield POOL
    pools.remove(sandman, POOL)
    sandman.wait_nothing_leased()
    query = ("get", "pods", "-l", f"{names.LABEL_POOL}={POOL}", "-o", "name")
    faults.wait("its placeholders are gone", lambda: not sandman.kubectl(*query).split(), 60)


@pytest.fixture(scope="module")
def tight(sandman: Deployed) -> Iterator[str]:
    """The same with next to no cpu."""
    pools.make(sandman, TIGHT, {"requests": LITTLE, "limits": LITTLE})
    yield TIGHT
    pools.remove(sandman, TIGHT)
    sandman.wait_nothing_leased()


async def verified(client: Client, made: Certificate) -> Certificate:
    """As somebody reads it who got it as a file."""
    kept = json.loads(json.dumps(made.to_json()))
    return certificates.verify(kept, await client.certificate_keys())


def pod_of(deployed: Deployed, box: Sandbox) -> dict[str, Any]:
    name = box.id.rpartition("-")[0]
    found: dict[str, Any] = json.loads(deployed.kubectl("get", "pod", name, "-o", "json"))
    return found


async def test_a_controlled_one_says_what_the_cluster_says(sandman: Deployed, pool: str) -> None:
    image = sandman.image("debian")
    async with (
        sandman.client() as client,
        client.sandbox(image=image, pool=pool, purpose="eval") as box,
    ):
        await box.run("seq 1 100000; sleep 1; exit 3", exec_id="tests", output_limit=100)
        found = await verified(client, await box.certificate(["tests"]))
        pod = pod_of(sandman, box)
    assert (found.reasons, found.verdict) == ((), "controlled")
    api, [tests] = found.document["api"], found.commands
    [status] = pod["status"]["containerStatuses"]
    node = json.loads(sandman.kubectl("get", "node", pod["spec"]["nodeName"], "-o", "json"))
    info = node["status"]["nodeInfo"]
    assert api["image_digest"] == status["imageID"]
    assert "@sha256:" in api["image_digest"]
    assert api["pod"]["uid"] == pod["metadata"]["uid"]
    assert (api["qos"], pod["status"]["qosClass"]) == ("Guaranteed", "Guaranteed")
    assert api["node"]["name"] == pod["spec"]["nodeName"]
    assert api["node"]["kernel"] == info["kernelVersion"] == os.uname().release
    assert (api["node"]["runtime"], api["node"]["kubelet"]) == (
        info["containerRuntimeVersion"],
        info["kubeletVersion"],
    )
    assert api["limits"] == api["requests"] == {"cpu_m": 1000, "memory_bytes": 128 * 2**20}
    assert (api["restarts"], api["restarts_usual"]) == (1, 1)
    assert api["network"]["in_force"] is True
    assert (api["network"]["changed_at"], api["network"]["before"]) == (None, [])
    assert {one["expected"] for one in api["network"]["probes"]} == {"closed"}
    # Placeholders of the usual pools.
    assert api["neighbours"]["pods"] >= 1
    assert api["neighbours"]["requests"]["cpu_m"] >= 10
    whole = b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert (tests["exit_code"], tests["stdout_sha256"]) == (3, hashlib.sha256(whole).hexdigest())
    assert tests["throttled_s"] is not None


async def test_what_was_throttled_or_killed_says_so(sandman: Deployed, tight: str) -> None:
    async with (
        sandman.client() as client,
        client.sandbox(image=sandman.image("debian"), pool=tight, purpose="eval") as box,
    ):
        await box.run(BUSY, timeout_s=3, exec_id="busy")
        found = await verified(client, await box.certificate(["busy"]))
        assert found.verdict == "uncontrolled"
        throttled = [one for one in found.reasons if str(one).startswith("throttled: busy stood")]
        assert throttled, found.reasons
        assert found.commands[0]["throttled_s"] > 0.02 * found.commands[0]["wall_s"]
        try:
            hog = await box.run(HOG, exec_id="hog")
        except OomError:
            # Of cgroups v2 the kernel kills the whole container: then there is no sandbox to certify.
            assert found.document["inside"]["cgroup"] == 2
            with pytest.raises(OomError):
                await box.certificate(["hog"])
        else:
            assert hog.oom_killed
            killed = await verified(client, await box.certificate(["hog"]))
            assert {one.code for one in killed.reasons} >= {"oom"}
            assert killed.document["inside"]["memory"]["oom_kills"] >= 1


async def test_of_the_usual_pool_it_says_why_not(sandman: Deployed) -> None:
    async with (
        sandman.client() as client,
        client.sandbox(image=sandman.image("debian"), pool="root") as box,
    ):
        found = await verified(client, await box.certificate())
    assert {one.code for one in found.reasons} == {"purpose", "qos", "commands"}
    assert found.document["api"]["qos"] == "Burstable"
