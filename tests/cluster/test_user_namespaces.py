"""Pods with a user namespace of their own: root inside is a number outside that owns nothing on the node."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from tests.cluster import pools
from tests.cluster.bed import kubectl, model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

RUNTIME = model.NEW_RUNC.parent.name + "-runc"
RESOURCES = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "1", "memory": "128Mi"},
}
DELIVERIES = (names.DELIVERY_INIT, names.DELIVERY_IMAGE)
USERS = 65_536
"""A pod has so many, and Kubernetes gives none of them below this number to a pod."""
SLEEP = "98765.4321"
"""Seconds, by which a command is found from outside."""


def make(deployed: Deployed, delivery: str) -> None:
    """As the component `user-namespaces` makes pools."""
    annotations = {names.ANNOTATION_DELIVERY: delivery}
    fields = {"hostUsers": False, "runtimeClassName": RUNTIME}
    pools.make(deployed, f"users-{delivery}", RESOURCES, annotations=annotations, **fields)


@pytest.fixture(scope="module")
def deployed(sandman: Deployed) -> Iterator[Deployed]:
    """With a pool for each way of delivery."""
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME},
        "handler": RUNTIME,
    }
    kubectl(sandman.bed, "apply", "-f", "-", input=json.dumps(runtime))
    try:
        with ThreadPoolExecutor(len(DELIVERIES)) as threads:
            list(threads.map(lambda delivery: make(sandman, delivery), DELIVERIES))
        yield sandman
    finally:
        for delivery in DELIVERIES:
            pools.remove(sandman, f"users-{delivery}")
        kubectl(sandman.bed, "delete", "runtimeclass", RUNTIME)


def owners_outside(word: str) -> set[int]:
    """Who on this machine runs programs with this argument."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.add(process.stat().st_uid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_root_inside_is_nobody_outside(deployed: Deployed, delivery: str) -> None:
    async with (
        deployed.client() as client,
        client.sandbox(image=deployed.image("nonroot"), pool=f"users-{delivery}") as box,
    ):
        told = await box.exec(["sh", "-c", "id -u; cat /proc/self/uid_map"], user="root")
        uid, inside, outside, count = map(int, told.stdout_text.split())
        assert (uid, inside, count) == (0, 0, USERS)
        assert outside >= USERS
        assert outside % USERS == 0
        # The daemon is root there and gives commands and files to whom it is told to.
        assert (await box.exec(["id", "-u"], user="agent")).stdout_text == "1000\n"
        await box.files.write("/home/agent/mine", b"x", user="agent")
        told = await box.exec(["stat", "-c", "%u", "/home/agent/mine", "/etc/passwd"], user="root")
        assert told.stdout_text == "1000\n0\n"
        for user, number in (("root", outside), ("agent", outside + 1000)):
            sleeping = await box.start(["sleep", SLEEP], user=user)
            with trio.fail_after(20):
                while owners_outside(SLEEP) != {number}:
                    await trio.sleep(0.1)
            await sleeping.kill()
            await sleeping.wait()
