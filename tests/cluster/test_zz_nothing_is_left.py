"""After all others on the installation, by its name: nothing is left that nobody holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from gateway.runs import KEEP_S
from sandman import names
from tests.cluster import faults

SWEEPS_S = 60.0
"""Beyond what a Lease is kept: for sweeps, a change of the allocator and a busy machine."""


def test_no_pod_is_held_by_nobody(sandman):
    """Also none that is being deleted, once its kubelet has had time for it."""
    sandman.wait_nothing_leased(60)
    selector = f"{names.LABEL_STATE}!=free,{names.LABEL_TENANT}"
    query = ("get", "pods", "-l", selector, "-o", "name")
    faults.wait("no pod is anybody's", lambda: not sandman.kubectl(*query).split(), 60)


def test_no_process_of_a_sandbox_outlives_its_pod(sandman):
    def beside() -> list[int]:
        pods = json.loads(sandman.kubectl("get", "pods", "-o", "json"))["items"]
        over = {"Failed", "Succeeded"}
        alive = [pod for pod in pods if pod["status"].get("phase") not in over]
        return faults.daemons_beside({pod["metadata"]["uid"] for pod in alive})

    faults.wait("only pods have daemons", lambda: not beside(), 60)


def test_no_lease_of_a_run_is_older_than_it_is_kept(sandman):
    """With no sandbox left each goes after its last heartbeat, or after the allocator's start: each counts
    from what it has seen itself."""
    now = datetime.now(UTC)
    query = "jsonpath={.items[*].status.startTime}"
    gateways = faults.system(
        sandman, "get", "pods", "-l", "app.kubernetes.io/name=sandman-gateway", "-o", query
    )
    begun = max(datetime.fromisoformat(one) for one in gateways.split())
    text = faults.system(sandman, "get", "leases", "-l", names.LABEL_RUN, "-o", "json")
    old = [
        lease["metadata"]["labels"][names.LABEL_RUN]
        for lease in json.loads(text)["items"]
        if (now - max(begun, datetime.fromisoformat(lease["spec"]["renewTime"]))).total_seconds()
        > KEEP_S + SWEEPS_S
    ]
    assert old == []
