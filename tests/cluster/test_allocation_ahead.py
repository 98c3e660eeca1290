"""Prepared ahead, on the real cluster: reservations, steps, and pools that are kept in size."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import time
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from sandman.errors import NotFoundError, PrepareFailedError
from tests.cluster.bed import build_image
from tests.cluster.test_main_job import wait_free

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cluster.deployed import Deployed

COUNT = 20
STEPS = [
    {"file": {"path": "/prepared", "content": "yes"}},
    {"exec": {"argv": ["sh", "-c", "sleep 3; echo made >>/prepared"], "timeout_s": 60}},
]
ALLOCATION_S = 0.05
"""What the hand-over of a prepared sandbox may take, as its caller sees it."""
BARE_CALLS = 15
"""The same in bare calls to the gateway, of which each takes 2 to 4 ms where nothing else runs: the measure on a machine
that is busy with other tests, taken in the same moments."""
MEDIAN_CALLS = 8
"""The same for the median: 27 to 43 ms on a quiet machine, 62 where a bare call took 10.5."""
IN_TIME = 14
"""How many must be in time: all 20 are on a machine that is busy (load average 25), 15 on one with a load of 54, where
one or the other waits for a processor, at the API server or in its daemon."""


@pytest.fixture(autouse=True)
def nothing_is_left(sandman: Deployed):
    yield
    sandman.wait_nothing_leased()
    deadline = time.monotonic() + 30
    while reserved(sandman):
        assert time.monotonic() < deadline, "reserved pods leaked"
        time.sleep(0.25)
    leases = sandman.kubectl("get", "leases", "-l", names.LABEL_RESERVATION, "-o", "name")
    assert leases.strip() == ""


def reserved(sandman: Deployed) -> list[str]:
    selector = f"{names.LABEL_STATE}={names.STATE_RESERVED}"
    return sandman.kubectl("get", "pods", "-l", selector, "-o", "name").split()


def unseen_image(sandman: Deployed, folder: Path) -> str:
    """An image that no node can have: its last layer was made just now."""
    (folder / "mark").write_text(secrets.token_hex(16))
    recipe = folder / "Containerfile"
    recipe.write_text(f"FROM {sandman.image('busybox')}\nCOPY mark /mark\n")
    return build_image(sandman.bed, "sandman-test/ahead", folder, recipe)


def told(took: list[float], bare: list[float], timings: list[Mapping[str, float]]) -> str:
    """How long each took, and where the slowest one's time went."""
    each = ", ".join(f"{1e3 * one:.0f}" for one in sorted(took))
    slowest = max(range(COUNT), key=took.__getitem__)
    return (
        f"{sum(one <= ALLOCATION_S for one in took)} of {COUNT} within {1e3 * ALLOCATION_S:.0f} ms: {each}; a bare "
        f"call {1e3 * statistics.mean(bare):.1f}; the slowest: {dict(timings[slowest])}; load {os.getloadavg()[0]:.1f}"
    )


async def test_after_a_reservation_each_allocation_takes_no_time(sandman, tmp_path):
    image = unseen_image(sandman, tmp_path)
    async with sandman.client() as client:
        reservation = await client.reserve(
            image=image, count=COUNT, for_s=300, prepare=STEPS, run="ahead"
        )
        begun = time.monotonic()
        info = await reservation.wait(120)
        print(f"{COUNT} prepared in {time.monotonic() - begun:.1f} s; failed {info.failed}")
        assert len(reserved(sandman)) == COUNT
        assert await client.list() == []
        boxes, took, bare = [], [], []
        for _ in range(COUNT):
            before = time.monotonic()
            await client.list("bare")
            begun = time.monotonic()
            box = await client.create(image=image, prepare=STEPS, run="ahead", env={"A": "1"})
            took.append(time.monotonic() - begun)
            bare.append(begun - before)
            boxes.append(box)
        shown = told(took, bare, [box.info.timings for box in boxes])
        print(shown)
        assert {box.info.tier for box in boxes} == {"warm"}
        assert len({box.id for box in boxes}) == COUNT
        assert (await boxes[0].files.read("/prepared")) == b"yesmade\n"
        assert (await boxes[-1].exec(["sh", "-c", "echo $A"])).stdout == b"1\n"
        assert (await client.release_run("ahead")) == COUNT
        await trio.sleep(2)
        assert (await reservation.refresh()).used == COUNT
        await reservation.cancel()
        assert statistics.median(took) <= max(ALLOCATION_S, MEDIAN_CALLS * statistics.mean(bare)), (
            shown
        )
        bar = max(ALLOCATION_S, BARE_CALLS * statistics.mean(bare))
        assert sum(one <= bar for one in took) >= IN_TIME, shown
        assert max(took) < 3.0, "nothing is prepared anew"


async def test_a_reservation_outlives_its_allocator_and_what_is_unused_is_released(sandman):
    async with sandman.client() as client:
        reservation = await client.reserve(image=sandman.image("busybox"), count=2, for_s=120)
        await reservation.wait(60)
        before = set(reserved(sandman))
        lease = json.loads(
            sandman.kubectl(
                "-n", names.SYSTEM_NAMESPACE, "get", "lease", names.ALLOCATOR_LEASE, "-o", "json"
            )
        )
        holder = lease["spec"]["holderIdentity"].partition("_")[0]
        sandman.kubectl(
            "-n", names.SYSTEM_NAMESPACE, "delete", "pod", holder, "--force", "--grace-period=0"
        )
        await reservation.wait(60)
        assert set(reserved(sandman)) == before
        async with client.sandbox(image=sandman.image("busybox")) as box:
            assert box.info.tier == "warm"
        await reservation.cancel()
        with pytest.raises(NotFoundError):
            await reservation.refresh()


async def test_a_step_that_fails_is_told_with_its_output(sandman):
    wait_free(sandman, 1)
    async with sandman.client() as client:
        with pytest.raises(PrepareFailedError) as caught:
            await client.create(
                image=sandman.image("busybox"),
                prepare=[{"exec": {"argv": ["sh", "-c", "echo why; exit 3"]}}],
            )
    facts = caught.value.facts
    assert (facts["step"], facts["exit_code"], facts["output"]) == (0, 3, "why\n")


def test_a_pool_with_both_numbers_is_kept_in_size(sandman):
    pool = "deployment/sandman-pool-readonly"

    def replicas() -> int:
        return int(sandman.kubectl("get", pool, "-o", "jsonpath={.spec.replicas}"))

    before = replicas()
    sandman.kubectl("annotate", pool, "--overwrite", f"{names.ANNOTATION_POOL_MIN}={before + 1}")
    try:
        deadline = time.monotonic() + 20
        while replicas() != before + 1:
            assert time.monotonic() < deadline, "not scaled"
            time.sleep(0.25)
    finally:
        sandman.kubectl("annotate", pool, f"{names.ANNOTATION_POOL_MIN}-")
        sandman.kubectl("scale", pool, f"--replicas={before}")
