"""Another network for a sandbox, over the real gateway and a real daemon that tries real sockets. In place of a
network plugin a task listens at an address, or not, as the pod's label says."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import trio

from sandman.probes import Target
from tests.fakes.cluster import BASE
from tests.flow.conftest import RealDaemonCluster, made_bed
from tests.flow.test_certificates import certified_by
from tests.flow.test_version_skew import skewed
from tests.unit.gateway.test_profiles import policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx


class Canary:
    """An address that answers when the sandbox's profile is `open`."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.target = Target(*server.getsockname())
        self.delay_s = 0.0
        """Seconds from what is written to what is so."""
        self.is_stuck = False

    async def run(self, cluster) -> None:
        server: socket.socket | None = None
        try:
            while True:
                await trio.sleep(0.02)
                is_open = any(one.network == "open" for one in cluster.pods.values())
                if is_open != (server is not None) and not self.is_stuck:
                    await trio.sleep(self.delay_s)
                    if server is None:
                        server = socket.create_server(("127.0.0.1", self.target.port))
                    else:
                        server.close()
                        server = None
        finally:
            if server is not None:
                server.close()


@pytest.fixture
async def bed(daemon) -> AsyncIterator:
    cluster, canary = RealDaemonCluster(daemon), Canary()
    cluster.policies["ns"] = [policy("open", str(canary.target)), policy("dark", None)]
    async with (
        made_bed(cluster, daemon, sandbox_namespaces=("ns",)) as one,
        trio.open_nursery() as nursery,
    ):
        cluster.pool(networks=frozenset({"open", "dark"}))
        one.canary = canary
        nursery.start_soon(canary.run, cluster)
        yield one
        nursery.cancel_scope.cancel()


async def change(bed, made: dict, tenant: str = "acme", **body) -> httpx.Response:
    path = f"/v1/sandboxes/{made['id']}/network"
    return await bed.client.put(path, json=body, headers=bed.as_(tenant))


async def test_widened_and_closed_again_each_with_a_probed_acknowledgement(bed):
    bed.canary.delay_s = 0.4
    made = await bed.allocate(image=BASE)
    assert made["network"] == "none"
    applied = await change(bed, made, network="open")
    assert applied.status_code == 200, applied.text
    told = applied.json()
    assert (told["id"], told["network"], told["applied"]) == (made["id"], "open", True)
    assert {"what": str(bed.canary.target), "expected": "open", "outcome": "reachable"} in told[
        "probes"
    ]
    assert told["took_ms"] >= 400
    shown = await bed.client.get(f"/v1/sandboxes/{made['id']}", headers=bed.as_("acme"))
    assert shown.json()["network"] == "open"
    closed = await change(bed, made, network="none")
    assert closed.status_code == 200, closed.text
    assert {"what": "what another profile opens", "expected": "closed", "outcome": "refused"} in (
        closed.json()["probes"]
    )
    assert [what for what, _ in bed.cluster.writes].count("network") == 2


async def test_what_is_not_enforced_is_never_said_to_be(bed):
    made = await bed.allocate(image=BASE)
    await change(bed, made, network="open")
    bed.canary.is_stuck = True
    answer = await change(bed, made, network="none", wait_s=0.5)
    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (503, "network_not_applied")
    assert "should be closed: reachable" in problem["detail"]
    assert problem["cause"] == "infrastructure"
    # It stays written: with the next try it may be so.
    bed.canary.is_stuck = False
    assert (await change(bed, made, network="none")).status_code == 200


async def test_an_allocation_that_waits_for_its_network(bed):
    bed.canary.delay_s = 0.3
    made = await bed.allocate(image=BASE, network="open", network_wait=True)
    assert made["network"] == "open"
    assert made["timings"]["ready_ms"] >= 300


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"network": "nonsense"}, 422, "network_unsupported"),
        ({"network": "dark"}, 422, "network_unsupported"),
        ({"network": {"allow": ["packages.example:443"]}}, 422, "network_unsupported"),
        ({"network": "a b"}, 400, "bad_request"),
    ],
)
async def test_what_nobody_can_have(bed, body, status, reason):
    refused = await bed.client.post(
        "/v1/sandboxes", json={"image": BASE, **body}, headers=bed.as_("acme")
    )
    assert (refused.status_code, refused.json()["reason"]) == (status, reason)
    made = await bed.allocate(image=BASE)
    refused = await change(bed, made, **body)
    # To a pool what is no profile is one that it does not let be had.
    expected = (403, "network_denied") if body == {"network": "nonsense"} else (status, reason)
    assert (refused.status_code, refused.json()["reason"]) == expected


async def test_what_the_pool_does_not_let_be_had(bed):
    bed.cluster.pool(networks=frozenset())
    made = await bed.allocate(image=BASE)
    refused = await change(bed, made, network="open")
    assert (refused.status_code, refused.json()["reason"]) == (403, "network_denied")
    refused = await bed.client.post(
        "/v1/sandboxes", json={"image": BASE, "network": "open"}, headers=bed.as_("acme")
    )
    assert (refused.status_code, refused.json()["reason"]) == (403, "network_denied")
    assert (await change(bed, made, network="none", wait_s=0.1)).json().get(
        "reason"
    ) != "network_denied"


async def test_another_tenant_and_the_token_of_a_sandbox_change_nothing(bed):
    made = await bed.allocate(image=BASE)
    assert (await change(bed, made, tenant="zeta", network="open")).status_code == 404
    path = f"/v1/sandboxes/{made['id']}"
    narrow = {"may": ["exec", "files", "ports", "look", "renew"]}
    given = await bed.client.post(f"{path}/tokens", json=narrow, headers=bed.as_("acme"))
    for token in (made["token"], given.json()["token"]):
        own = {"authorization": f"Bearer {token}"}
        refused = await bed.client.put(f"{path}/network", json={"network": "open"}, headers=own)
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
        refused = await bed.client.get("/v1/networks", headers=own)
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
    assert ("network", "pod-1") not in bed.cluster.writes


async def test_nobody_probes_through_the_gateway_or_from_inside(bed):
    made = await bed.allocate(image=BASE)
    path = f"/v1/sandboxes/{made['id']}/probe"
    body = {"targets": ["127.0.0.1:1"], "timeout_s": 1}
    answer = await bed.client.post(path, json=body, headers=bed.as_("acme"))
    assert answer.status_code == 404
    # A command inside finds the daemon's port, and has no token for it.
    code = (
        "import urllib.request as r, urllib.error\n"
        f"q = r.Request('http://127.0.0.1:{bed.daemon.port}/v1/probe', data=b'{{}}', method='POST')\n"
        "try: r.urlopen(q)\n"
        "except urllib.error.HTTPError as e: print(e.code)"
    )
    ran = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec",
        json={"argv": ["python3", "-c", code]},
        headers=bed.as_("acme"),
    )
    assert ran.json()["stdout"].strip() == "401"


async def test_a_daemon_from_before_there_were_probes_cannot_tell():
    async with skewed("0.0.7", sandbox_namespaces=("ns",)) as bed:
        await bed.vetted(1)
        bed.pool.networks.closed = {Target("127.0.0.1", 1): "something"}
        made = await bed.allocate(image=BASE)
        answer = await change(bed, made, network="none")
        assert (answer.status_code, answer.json()["reason"]) == (422, "network_unsupported")
        assert "older than probes" in answer.json()["detail"]


async def test_the_list_of_profiles(bed):
    answer = await bed.client.get("/v1/networks", headers=bed.as_("acme"))
    told = answer.json()
    assert told["enforced"] is None
    by_name = {one["name"]: one for one in told["networks"]}
    assert sorted(by_name) == ["dark", "none", "open"]
    assert by_name["open"] == {"name": "open", "usable": True, "fault": None}
    assert "canary" in by_name["dark"]["fault"]
    bed.pool.networks.enforced["ns"] = False
    answer = await bed.client.get("/v1/networks", headers=bed.as_("acme"))
    assert answer.json()["enforced"] is False
    bed.pool.networks.enforced["ns"] = True
    answer = await bed.client.get("/v1/networks", headers=bed.as_("acme"))
    assert answer.json()["enforced"] is True


async def test_a_network_that_was_open_is_in_the_certificate_though_it_is_closed_by_then(bed):
    made = await bed.allocate(image=BASE, purpose="eval")
    assert (await change(bed, made, network="open")).status_code == 200
    path = f"/v1/sandboxes/{made['id']}/exec"
    ran = await bed.client.post(path, json={"shell": "exit 0"}, headers=bed.as_("acme"))
    assert ran.json()["exit_code"] == 0
    assert (await change(bed, made, network="none")).status_code == 200
    found = await certified_by(bed, made)
    told = found.document["api"]["network"]
    assert (told["profile"], told["in_force"], told["before"]) == ("none", True, ["none", "open"])
    [reason] = [one for one in found.reasons if one.code == "network"]
    assert reason.detail == (
        f"its egress profile was changed, at {told['changed_at']} last: before it was none, open"
    )


async def test_one_that_was_never_changed_is_no_reason(bed):
    made = await bed.allocate(image=BASE, purpose="eval", network="none")
    assert (await change(bed, made, network="none")).status_code == 200
    found = await certified_by(bed, made)
    told = found.document["api"]["network"]
    assert (told["in_force"], told["changed_at"], told["before"]) == (True, None, [])
    assert "network" not in {one.code for one in found.reasons}
