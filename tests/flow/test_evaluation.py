"""An evaluation over the real gateway and a real daemon: what its commands find, and what its caller is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.model import Amounts, Bounds
from tests.fakes.cluster import BASE
from tests.flow.conftest import RealDaemonCluster, made_bed
from tests.unit.gateway.test_profiles import policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GI = 1024**3
WHOLE = Bounds(Amounts(2000, GI), Amounts(2000, GI))
SHOW = "echo $TZ $LC_ALL $PYTHONHASHSEED $OMP_NUM_THREADS $MINE; date +%Z"


@pytest.fixture
async def bed(daemon) -> AsyncIterator:
    """The pool `root`; what the profile `open` opens is closed to whoever has none: nobody listens there."""
    cluster = RealDaemonCluster(daemon)
    cluster.policies["ns"] = [policy("open", "127.0.0.1:9")]
    async with made_bed(cluster, daemon, sandbox_namespaces=("ns",)) as one:
        cluster.pool(bounds=WHOLE)
        yield one


async def said(bed, sandbox: str, **command) -> list[str]:
    answer = await bed.client.post(
        f"/v1/sandboxes/{sandbox}/exec", json={"shell": SHOW, **command}, headers=bed.as_("acme")
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["stdout"].split()


async def test_commands_find_the_same_everywhere_unless_they_say_otherwise(bed):
    made = await bed.allocate(image=BASE, purpose="eval", env={"MINE": "m", "LC_ALL": "C"})
    assert await said(bed, made["id"]) == ["UTC", "C", "0", "2", "m", "UTC"]
    other = {"TZ": "EST5", "OMP_NUM_THREADS": "7"}
    assert await said(bed, made["id"], env=other) == ["EST5", "C", "0", "7", "m", "EST"]
    told = made["conditions"]
    assert (told["dedicated"], told["network_acknowledged"]) == (False, True)
    assert told["env"]["PYTHON_CPU_COUNT"] == "2"
    assert "LC_ALL" not in told["env"]
    shown = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
    assert shown.json()["conditions"] == told


async def test_a_rollout_finds_what_its_image_has(bed):
    made = await bed.allocate(image=BASE, env={"MINE": "m"})
    assert "conditions" not in made
    assert (await said(bed, made["id"]))[-2] == "m"
    assert "0" not in await said(bed, made["id"])


async def test_a_pool_for_evaluations_is_no_rollouts(bed):
    bed.cluster.pool("eval", bounds=WHOLE, evaluates=True)
    await bed.client.get("/healthz")
    answer = await bed.client.post(
        "/v1/sandboxes", json={"image": BASE, "pool": "eval"}, headers=bed.as_("acme")
    )
    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (400, "bad_request")
    assert problem["field"] == "pool"
    pools = await bed.client.get("/v1/pools", headers=bed.as_("acme"))
    assert {one["name"]: one["purpose"] for one in pools.json()["pools"]} == {
        "root": None,
        "eval": "eval",
    }
