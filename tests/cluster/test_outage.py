"""One outage of all gateways on the real cluster, and what it does to sandboxes of each kind: three of the four ends
come without any gateway, each on sandboxes that have no other, and a grace that is longer ends nothing."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from sandman import names
from sandman.errors import BadRequestError, ExpiredError, SandmanError
from tests.cluster import faults

if TYPE_CHECKING:
    from sandman import sync

GRACE_S = 10
"""Of those whose daemons shall end them. The others have the default of ten minutes."""
TTL_S = 30
MAX_S = 20
CLOCKS_S = 60
"""Added by the claim to what the kubelet is told, for clocks (`gateway.provider.patches`)."""
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "trainer"},
    "spec": {
        # Suspended: it has no pod, and is there all the same.
        "suspend": True,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [{"name": "x", "image": "registry.example/none:1"}],
            }
        },
    },
}


@dataclass
class Outage:
    """What was there before it, and what was seen during it."""

    client: sync.Client
    kept: list[sync.Sandbox] = field(default_factory=list)
    """Their leases ran out meanwhile; the grace did not."""
    by_daemon: list[sync.Sandbox] = field(default_factory=list)
    by_kubelet: list[sync.Sandbox] = field(default_factory=list)
    """Their daemons stand still."""
    by_owner: list[sync.Sandbox] = field(default_factory=list)
    seen: dict[str, dict] = field(default_factory=dict)
    """Each pod as it was last seen before the gateways came back, by sandbox; {}: it was gone."""
    began: float = 0.0
    ended_after: dict[str, float] = field(default_factory=dict)
    """Seconds from the outage's begin until a pod was first seen to have ended, by sandbox."""

    def look(self, deployed) -> None:
        """Look at all pods once."""
        for box in (*self.by_daemon, *self.by_kubelet, *self.by_owner, *self.kept):
            pod = self.seen[box.id] = faults.document(deployed, faults.pod_of(box.id)) or {}
            if not pod or pod["status"].get("phase") == "Failed":
                self.ended_after.setdefault(box.id, time.monotonic() - self.began)

    def has_ended(self, boxes: list[sync.Sandbox]) -> bool:
        return all(box.id in self.ended_after for box in boxes)


@pytest.fixture(scope="module")
def outage(sandman, tmp_path_factory):
    job = tmp_path_factory.mktemp("outage") / "job.json"
    job.write_text(json.dumps(JOB))
    sandman.kubectl("apply", "-f", str(job))
    with ExitStack() as stack:
        stack.callback(sandman.kubectl, "delete", "job", "trainer", "--ignore-not-found")
        made = Outage(stack.enter_context(sandman.sync_client()))
        _fill(sandman, made, stack)
        with faults.gateways_stopped(sandman):
            # So that those which come back have it no more.
            faults.unset(sandman, "OUTAGE_GRACE_S")
            made.began = time.monotonic()
            sandman.kubectl("delete", "job", "trainer", "--cascade=background")
            ends = [*made.by_daemon, *made.by_kubelet, *made.by_owner]

            def all_ended() -> bool:
                made.look(sandman)
                return made.has_ended(ends)

            faults.wait("all have ended", all_ended, MAX_S + CLOCKS_S + 20)
            # Longer than any lease of those that stay.
            time.sleep(max(0.0, made.began + TTL_S - time.monotonic()))
            made.look(sandman)
        print({box: round(after) for box, after in made.ended_after.items()})
        yield made
        for box in (*made.kept, *made.by_daemon, *made.by_kubelet):
            box.release()
        sandman.wait_nothing_leased(60)


def _fill(sandman, made: Outage, stack: ExitStack) -> None:
    create, image = made.client.create, sandman.image("busybox")
    made.kept = [
        create(image=image, ttl_s=15, run="outage"),
        create(image=image, ttl_s=90, heartbeat=False, run="outage"),
    ]
    for box in made.kept:
        box.files.write("/tmp/kept", b"x")
    made.by_owner = [create(image=image, owner="trainer", heartbeat=False) for _ in range(2)]
    assert all(box.run("true").ok for box in made.by_owner)
    stack.enter_context(faults.set_once(sandman, "OUTAGE_GRACE_S", GRACE_S))
    # Heartbeats keep them until there is nobody to take any.
    made.by_daemon = [create(ttl_s=TTL_S, run="daemons") for _ in range(3)]
    # Last, for it is short. Warm: nothing is added for a start. A minute is, for clocks.
    last = create(max_s=MAX_S, heartbeat=False)
    assert last.info.tier == "warm"
    made.by_kubelet = [last]
    stack.enter_context(faults.frozen(faults.first_process(sandman, faults.pod_of(last.id))))


@pytest.mark.slow
def test_the_daemons_end_their_sandboxes(outage):
    for box in outage.by_daemon:
        [status] = outage.seen[box.id]["status"]["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == names.EXIT_EXPIRED
        assert GRACE_S < outage.ended_after[box.id] < TTL_S + GRACE_S + 15
        with pytest.raises(ExpiredError):
            box.run("true")


@pytest.mark.slow
def test_the_kubelet_ends_one_whose_daemon_is_frozen(outage):
    [box] = outage.by_kubelet
    assert outage.seen[box.id]["status"]["reason"] == "DeadlineExceeded"
    assert outage.ended_after[box.id] >= MAX_S
    with pytest.raises(ExpiredError):
        box.run("true")


@pytest.mark.slow
def test_a_job_takes_its_sandboxes_along(outage):
    for box in outage.by_owner:
        assert outage.seen[box.id] == {}
        assert outage.ended_after[box.id] < 60
    with pytest.raises(SandmanError) as caught:
        outage.by_owner[0].run("true")
    assert caught.value.status in {404, 410}
    with pytest.raises(BadRequestError, match=r"owner\.name|no Job"):
        outage.client.create(owner="trainer")


@pytest.mark.slow
def test_an_outage_shorter_than_the_grace_ends_nothing(outage):
    box, own = outage.kept
    for one in outage.kept:
        assert outage.seen[one.id]["status"]["phase"] == "Running"
        assert one.id not in outage.ended_after
    assert box.files.read("/tmp/kept") == b"x"
    # A new allocator gives its callers time; this one uses it.
    assert own.run("true").ok
    time.sleep(30)
    assert box.files.read("/tmp/kept") == b"x"
    assert own.files.read("/tmp/kept") == b"x"
