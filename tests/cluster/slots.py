"""A node with one slot, a pool whose sandboxes take it, and a pod that is worth more than any of them."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import trio

from tests.cluster import pools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cluster.deployed import Deployed

SLOT = "sandman.test/slot"
POOL = "slot"
PREEMPTOR = "preemptor"
_NODE = ("node", "sandman-node", "--subresource=status", "--type=json")
_PATH = "/status/capacity/sandman.test~1slot"
_ASKED = {"cpu": "10m", "memory": "64Mi", SLOT: "1"}
_HIGH = {
    "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000,
    "metadata": {"name": "sandman-test-high"},
}  # fmt: skip


@contextlib.asynccontextmanager
async def one_slot(deployed: Deployed) -> AsyncIterator[None]:
    """There is the slot, and the pool; afterwards neither."""
    try:
        await trio.to_thread.run_sync(_make, deployed)
        yield
    finally:
        _take_away(deployed)


def _make(deployed: Deployed) -> None:
    patch = json.dumps([{"op": "add", "path": _PATH, "value": "1"}])
    deployed.kubectl("patch", *_NODE, "-p", patch)
    pools.make(deployed, POOL, {"requests": _ASKED, "limits": {**_ASKED, "cpu": "1"}})
    pools.apply(deployed, _HIGH)


def _take_away(deployed: Deployed) -> None:
    gone = json.dumps([{"op": "remove", "path": _PATH}])
    leave(deployed)
    pools.remove(deployed, POOL)
    deployed.kubectl("delete", "priorityclass", "sandman-test-high", "--ignore-not-found")
    deployed.kubectl("patch", *_NODE, "-p", gone)


def preempt(deployed: Deployed) -> None:
    """Take the slot from whoever has it."""
    container = {
        "name": "x", "image": deployed.image("busybox"), "command": ["sleep", "600"],
        "resources": {"requests": _ASKED, "limits": _ASKED},
    }  # fmt: skip
    spec = {
        "priorityClassName": "sandman-test-high",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    meta = {"name": PREEMPTOR}
    pools.apply(deployed, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def leave(deployed: Deployed) -> None:
    """Give it back."""
    deployed.kubectl("delete", "pod", PREEMPTOR, "--ignore-not-found", "--wait=false")
