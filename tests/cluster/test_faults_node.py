"""A node that is lost, on the real cluster: its kubelet stands still, so nothing else can run beside it."""

from __future__ import annotations

import contextlib

import pytest
import trio

import sandman as sdk
from sandman import names
from sandman.errors import NodeLostError, OutcomeUnknownError, UnreachableError
from tests.cluster import faults

TOLD_S = 30.0
"""Seconds within which it is told that the sandbox is out of reach."""
LOST_S = 90.0
"""Seconds within which it is told why."""


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    sandman.wait_nothing_leased(60)


@pytest.mark.slow
async def test_a_lost_node_is_unreachable_and_then_lost(sandman):
    """Its kubelet is silent and the sandbox too; another one there answers and lives on."""
    made = sandman.installation
    [address, *_] = faults.gateway_addresses(sandman)
    async with sdk.Client(
        f"https://{address}:{names.GATEWAY_PORT}", made.token, ca=made.ca,
        server_name=made.server_name,
    ) as client:  # fmt: skip
        box = await client.create(image=sandman.image("busybox"), ttl_s=600)
        other = await client.create(image=sandman.image("busybox"), ttl_s=600)
        pid = faults.first_process(sandman, faults.pod_of(box.id))
        with faults.kubelet_stopped(sandman), faults.network_cut(pid):
            begun = trio.current_time()
            with pytest.raises((UnreachableError, OutcomeUnknownError)):
                await box.files.read("/etc/passwd")
            first = trio.current_time() - begun
            with pytest.raises(NodeLostError) as caught:
                await until_lost(box)
            assert caught.value.cause == "infrastructure"
            lost = trio.current_time() - begun
            print(f"unreachable after {first:.1f} s, node_lost after {lost:.1f} s")
            assert first < TOLD_S
            assert lost < LOST_S
            assert (await other.exec(["true"])).ok
        await trio.to_thread.run_sync(
            faults.wait, "the node is back", lambda: node_is_ready(sandman), 60
        )
        await other.release()
        await box.release()


async def until_lost(box) -> None:
    """Read until that is refused for another reason than that it cannot be reached."""
    with trio.fail_after(120):
        while True:
            with contextlib.suppress(UnreachableError):
                await box.files.read("/etc/passwd")
            await trio.sleep(1)


def node_is_ready(deployed) -> bool:
    query = "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}"
    return deployed.kubectl("get", "nodes", "-o", query) == "True"
