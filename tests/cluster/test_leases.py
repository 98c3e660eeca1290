"""Leases on the real cluster, with gateways that sweep: what nobody holds goes soon, what is in use stays."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
import time

import httpx
import pytest

from sandman import names
from tests.cluster import faults
from tests.cluster.together import Cases

TTL_S = 20
HELD = 50
TRAINER = """
import sys, time
import sandman
from concurrent.futures import ThreadPoolExecutor
with sandman.SyncClient() as client:
    make = lambda _: client.create(image=sys.argv[1], run=sys.argv[2], ttl_s=float(sys.argv[3]), wait_s=300)
    with ThreadPoolExecutor(10) as pool:
        boxes = list(pool.map(make, range(int(sys.argv[4]))))
    for box in boxes:
        # What it left running does not keep them.
        box.start(["sleep", "100000"])
    print("held", flush=True)
    time.sleep(100000)
"""
CASES = Cases()


@pytest.fixture(scope="module")
def outcomes(sandman, request):
    yield CASES.run(sandman, request)
    sandman.wait_nothing_leased(60)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_lease(outcomes, name):
    outcomes.check(name)


def leases(deployed, run: str) -> list[str]:
    query = ("get", "leases", "-l", f"{names.LABEL_RUN}={run}", "-o", "name")
    return faults.system(deployed, *query).split()


@CASES.add
def what_a_killed_trainer_held_is_gone_soon_and_its_quota_free(deployed):
    environment = {**deployed.installation.environment(), "PATH": "/usr/bin:/bin"}
    image = deployed.image("busybox")
    words = [sys.executable, "-c", TRAINER, image, "killed", str(TTL_S), str(HELD)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == b"held\n"
            time.sleep(TTL_S + 10)
            assert len(deployed.leased("killed")) == HELD
            assert len(leases(deployed, "killed")) == 1
        finally:
            trainer.send_signal(signal.SIGKILL)
    took = faults.wait("all are gone", lambda: not deployed.leased("killed"), TTL_S + 15)
    print(f"{HELD} sandboxes gone {took:.1f} s after their trainer, ttl {TTL_S} s")
    with deployed.sync_client() as client:
        assert client.list("killed") == []
        ended = [box.info.ended["reason"] for box in client.list("killed", ended=True)]
        assert ended == ["expired"] * HELD


@CASES.add
def an_idle_sandbox_goes_and_one_that_works_stays(deployed):
    with deployed.sync_client() as client:
        image = deployed.image("busybox")
        idle, busy = (client.create(image=image, idle_s=10, run="idle") for _ in range(2))
        busy.start(["sleep", "100"])
        name = faults.pod_of(idle.id)
        took = faults.wait("it is gone", lambda: name not in deployed.leased("idle"), 10 + 15)
        print(f"idle after {took:.1f} s")
        assert faults.pod_of(busy.id) in deployed.leased("idle")
        [gone] = client.list("idle", ended=True)
        assert (gone.id, gone.info.ended["reason"]) == (idle.id, "idle")
        busy.release()


def test_an_owner_in_another_namespace_is_refused(sandman):
    """The client cannot say such a thing."""
    made = sandman.installation
    trust = ssl.create_default_context(cafile=str(made.ca))
    with httpx.Client(verify=trust) as plain:
        answer = plain.post(
            f"{made.url}/v1/sandboxes",
            json={"owner": {"name": "x", "namespace": "default"}},
            headers={"authorization": f"Bearer {made.token}"},
            extensions={"sni_hostname": made.server_name},
        )
    assert (answer.status_code, answer.json()["field"]) == (400, "owner.namespace")
