"""The four ends of a sandbox on the real cluster, each with the others out of the way, and what ends nothing."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
import pytest

import sandman as sdk
from sandman import names
from sandman.errors import BadRequestError, ExpiredError, SandmanError
from tests.cluster import faults

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


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    sandman.wait_nothing_leased(60)


def client_of(deployed) -> sdk.SyncClient:
    made = deployed.installation
    return sdk.SyncClient(made.url, made.token, ca=made.ca, server_name=made.server_name)


def leases(deployed, run: str) -> list[dict]:
    text = faults.system(deployed, "get", "leases", "-l", f"{names.LABEL_RUN}={run}", "-o", "json")
    return json.loads(text)["items"]


@pytest.mark.slow
def test_what_a_killed_trainer_held_is_gone_soon_and_its_quota_free(sandman):
    environment = {**sandman.installation.environment(), "PATH": "/usr/bin:/bin"}
    words = [
        sys.executable,
        "-c",
        TRAINER,
        sandman.image("busybox"),
        "killed",
        str(TTL_S),
        str(HELD),
    ]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == b"held\n"
            time.sleep(TTL_S + 10)
            assert len(sandman.leased()) == HELD
            assert len(leases(sandman, "killed")) == 1
        finally:
            trainer.send_signal(signal.SIGKILL)
    took = faults.wait("all are gone", lambda: not sandman.leased(), TTL_S + 15)
    print(f"{HELD} sandboxes gone {took:.1f} s after their trainer, ttl {TTL_S} s")
    with client_of(sandman) as client:
        assert client.list("killed") == []
        ended = [box.info.ended["reason"] for box in client.list("killed", ended=True)]
        assert ended == ["expired"] * HELD


def test_without_gateways_the_daemons_end_their_sandboxes(sandman):
    with ExitStack() as stack:
        stack.enter_context(faults.setting(sandman, "OUTAGE_GRACE_S", 10))
        client = stack.enter_context(client_of(sandman))
        # Heartbeats keep them until there is nobody to take any.
        boxes = [client.create(ttl_s=30, run="daemons") for _ in range(3)]
        pods = [faults.pod_of(box.id) for box in boxes]
        with faults.gateways_stopped(sandman):
            faults.wait(
                "all have ended",
                lambda: all(
                    (faults.document(sandman, pod) or {}).get("status", {}).get("phase") == "Failed"
                    for pod in pods
                ),
                30 + 10 + 15,
            )
            for pod in pods:
                [status] = faults.document(sandman, pod)["status"]["containerStatuses"]
                assert status["state"]["terminated"]["exitCode"] == names.EXIT_EXPIRED
        for box in boxes:
            with pytest.raises(ExpiredError):
                box.run("true")
            box.release()


def test_without_gateways_and_with_a_frozen_daemon_the_kubelet_ends_it(sandman):
    max_s = 20
    with ExitStack() as stack:
        client = stack.enter_context(client_of(sandman))
        # Warm: nothing is added for a start. A minute is, for clocks.
        box = client.create(max_s=max_s, heartbeat=False)
        assert box.info.tier == "warm"
        begun = time.monotonic()
        pod = faults.pod_of(box.id)
        stack.enter_context(faults.frozen(faults.first_process(sandman, pod)))
        with faults.gateways_stopped(sandman):
            faults.wait(
                "the kubelet has ended it",
                lambda: faults.document(sandman, pod)["status"].get("reason") == "DeadlineExceeded",
                max_s + 60 + 20,
            )
            assert time.monotonic() - begun >= max_s
        with pytest.raises(ExpiredError):
            box.run("true")
        box.release()


def test_an_outage_of_the_gateways_shorter_than_the_grace_ends_nothing(sandman):
    with client_of(sandman) as client:
        image = sandman.image("busybox")
        box = client.create(image=image, ttl_s=15, run="outage")
        own = client.create(image=image, ttl_s=90, heartbeat=False, run="outage")
        box.files.write("/tmp/kept", b"x")
        with faults.gateways_stopped(sandman):
            time.sleep(25)
        assert box.files.read("/tmp/kept") == b"x"
        # A new allocator gives its callers time; this one uses it.
        assert own.run("true").ok
        time.sleep(30)
        assert box.files.read("/tmp/kept") == b"x"
        box.release()
        own.release()


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


def test_a_job_takes_its_sandboxes_along_without_any_gateway(sandman, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps(JOB))
    sandman.kubectl("apply", "-f", str(file))
    try:
        with client_of(sandman) as client:
            image = sandman.image("busybox")
            boxes = [client.create(image=image, owner="trainer", heartbeat=False) for _ in range(2)]
            assert all(box.run("true").ok for box in boxes)
            with faults.gateways_stopped(sandman):
                sandman.kubectl("delete", "job", "trainer", "--cascade=background")
                faults.wait("its sandboxes are gone", lambda: not sandman.leased(), 60)
            with pytest.raises(SandmanError) as caught:
                boxes[0].run("true")
            assert caught.value.status in {404, 410}
            with pytest.raises(BadRequestError, match=r"owner\.name|no Job"):
                client.create(owner="trainer")
    finally:
        sandman.kubectl("delete", "job", "trainer", "--ignore-not-found")


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


def test_an_idle_sandbox_goes_and_one_that_works_stays(sandman):
    with client_of(sandman) as client:
        image = sandman.image("busybox")
        idle, busy = (client.create(image=image, idle_s=10, run="idle") for _ in range(2))
        busy.start(["sleep", "100"])
        name = faults.pod_of(idle.id)
        took = faults.wait("it is gone", lambda: name not in sandman.leased(), 10 + 15)
        print(f"idle after {took:.1f} s")
        assert faults.pod_of(busy.id) in sandman.leased()
        [gone] = client.list("idle", ended=True)
        assert (gone.id, gone.info.ended["reason"]) == (idle.id, "idle")
        busy.release()
