"""Users' own workloads on the real cluster: they run as before with the daemon and again without it, and take
commands through the gateway. Meanwhile the webhook's certificate is rotated (`rotating`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from sandman.errors import ForbiddenError, SandmanError
from tests.cluster import services
from tests.cluster.admissions import Api
from tests.cluster.audit import AuditLog
from tests.cluster.bed import kubectl, reference
from tests.cluster.bed.shell import wait_until
from tests.cluster.install import WORKLOADS
from tests.cluster.other_injector import Injector
from tests.cluster.shop import (
    ENFORCE,
    PATIENCE_S,
    RESTRICTED,
    Shop,
    is_injected,
    nginx,
    opened,
    restarts,
    serves,
    workload,
)
from tests.unit.webhook.workload_pods import CASES, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

Json = dict[str, Any]
GATEWAY = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"
SERVICES = {"nginx": "Deployment", "redis": "Deployment", "postgres": "StatefulSet"}
END_SERVICE = """
for status in /proc/[0-9]*/status; do
    pid=${status#/proc/}; pid=${pid%/status}
    [ "$pid" = $$ ] && continue
    grep -q "^PPid:[[:space:]]*1$" $status && kill -TERM $pid
done
"""


@pytest.fixture(scope="module")
def shop(sandman: Deployed, rotating: object) -> Iterator[Shop]:
    services.publish(sandman.bed)
    with opened(sandman, WORKLOADS) as made:
        yield made


# --- services ------------------------------------------------------------------------------------


def test_services_serve_restart_and_stop_as_before_and_take_commands(shop: Shop) -> None:
    """nginx with entrypoint and arguments, Redis with arguments alone, PostgreSQL with an entrypoint."""
    with ThreadPoolExecutor(len(SERVICES)) as at_once:
        done = {name: at_once.submit(_live, shop, name) for name in SERVICES}
    for name, one in done.items():
        assert one.result() == "as before", name


def _live(shop: Shop, name: str) -> str:
    kind = SERVICES[name]
    shop.create(workload(kind, name, reference(shop.sandman.bed, name)))
    before = shop.one_ready(name, injected=False)
    assert serves(name, before)

    shop.inject(f"{kind.lower()}/{name}")
    pod = shop.one_ready(name, injected=True)
    assert serves(name, pod)
    assert pod["status"]["qosClass"] == before["status"]["qosClass"]
    _command_and_restart(shop, name)

    started = time.monotonic()
    shop.inject(f"{kind.lower()}/{name}", "--remove")
    after = shop.one_ready(name, injected=False)
    assert serves(name, after)
    assert after["spec"].get("initContainers", []) == []
    # It stopped on its signal and not by KILL: the grace is ten seconds of each of two roll-outs at most.
    assert time.monotonic() - started < PATIENCE_S
    shop.kubectl("delete", kind.lower(), name, "--wait=false")
    return "as before"


def _command_and_restart(shop: Shop, name: str) -> None:
    with shop.client() as client:
        box = shop.attach(client, name)
        shown = box.exec(["cat", "/proc/1/cmdline"]).stdout
        assert names.DAEMON_COMMAND[0].encode() in shown
        box.files.write("/tmp/note", b"from outside")
        assert box.exec(["cat", "/tmp/note"]).stdout == b"from outside"
        # The service is the daemon's child: when it ends so does the container, and the call with it.
        with contextlib.suppress(SandmanError):
            box.exec(["sh", "-c", END_SERVICE])
        box.release()
    wait_until(f"{name} was restarted", lambda: restarts(shop.pods(name)[0]) == 1, PATIENCE_S, 0.5)

    def serves_again() -> bool:
        with contextlib.suppress(OSError):
            return serves(name, shop.one_ready(name, injected=True))
        return False

    # Ready is what the kubelet said before the restart, for a second.
    wait_until(f"{name} serves again", serves_again, PATIENCE_S, 0.5)


# --- jobs ----------------------------------------------------------------------------------------

ENDS = {
    0: "echo out; echo err >&2; exit 0",
    3: "echo out; exit 3",
    # $$ is one $ to Kubernetes. What process 1 does not handle it is not sent, by itself.
    143: "trap 'echo term; exit 143' TERM; echo out; kill -TERM $$$$; sleep 9",
}


def _job(shop: Shop, code: int, *, labelled: bool) -> Json:
    name = _job_name(code, labelled=labelled)
    labels = {"app": name} | ({names.LABEL_INJECT: names.INJECT_WORKLOAD} if labelled else {})
    main = {
        "name": "main", "image": reference(shop.sandman.bed, "debian"), "command": ["sh", "-c", ENDS[code]],
        "securityContext": RESTRICTED,
    }  # fmt: skip
    template = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [main]},
    }
    spec = {"backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _job_name(code: int, *, labelled: bool) -> str:
    return f"job-{code}-{'with' if labelled else 'without'}"


def _outcome(shop: Shop, code: int, *, labelled: bool) -> tuple[int, list[str]]:
    name = _job_name(code, labelled=labelled)

    def has_ended() -> bool:
        found = shop.pods(name)
        return bool(found) and found[0]["status"].get("phase") in {"Succeeded", "Failed"}

    wait_until(f"{name} has ended", has_ended, PATIENCE_S, 0.5)
    [pod] = shop.pods(name)
    assert is_injected(pod) is labelled
    [status] = pod["status"]["containerStatuses"]
    log = shop.kubectl("logs", pod["metadata"]["name"])
    return status["state"]["terminated"]["exitCode"], sorted(log.splitlines())


def test_a_jobs_exit_code_and_logs_are_those_without_the_daemon(shop: Shop) -> None:
    shop.create(*(_job(shop, code, labelled=one) for code in ENDS for one in (False, True)))
    for code in ENDS:
        plain, labelled = (_outcome(shop, code, labelled=one) for one in (False, True))
        assert labelled == plain
        assert labelled[0] == code
        assert "out" in labelled[1]


# --- who may, and where --------------------------------------------------------------------------


def test_only_who_may_exec_there_may_attach_and_no_pod_is_written(shop: Shop) -> None:
    shop.create(workload("Deployment", "private", reference(shop.sandman.bed, "nginx")))
    shop.inject("deployment/private")
    pod = shop.one_ready("private", injected=True)["metadata"]["name"]
    with shop.client(other=True) as stranger, pytest.raises(ForbiddenError):
        stranger.attach_workload(WORKLOADS, pod)
    log = AuditLog(shop.sandman.bed.state / "audit.log")
    with shop.client() as client:
        box = shop.attach(client, "private")
        assert [one["pod"] for one in client.workloads(WORKLOADS) if one["attached"]] == [pod]
        assert box.exec(["true"]).exit_code == 0
        box.release()
        assert [one["pod"] for one in client.workloads(WORKLOADS) if one["attached"]] == []
    written = [one for one in log.writes() if one.user == GATEWAY]
    assert "create leases by sandman-gateway" in {str(one) for one in written}
    assert [str(one) for one in written if one.namespace == WORKLOADS] == []
    shop.kubectl("delete", "deployment", "private", "--wait=false")


@pytest.mark.parametrize("standard", ["restricted", "baseline"])
def test_both_ways_in_under_the_pod_security_standards(shop: Shop, standard: str) -> None:
    enforce = ("label", "--overwrite", "namespace", WORKLOADS)
    kubectl(shop.sandman.bed, *enforce, f"{ENFORCE}={standard}")
    try:
        found = {}
        for delivery in (names.DELIVERY_INIT, names.DELIVERY_IMAGE):
            name = f"psa-{standard}-{delivery}"
            found[delivery] = document = nginx(shop, name)
            template = document["spec"]["template"]["metadata"]
            template["annotations"] = {names.ANNOTATION_DELIVERY: delivery}
        shop.create(*found.values())
        for delivery, document in found.items():
            pod = shop.one_ready(document["metadata"]["name"], injected=True)
            assert serves("nginx", pod)
            assert _way_in(pod) == delivery
            shop.kubectl("delete", "deployment", document["metadata"]["name"], "--wait=false")
    finally:
        kubectl(shop.sandman.bed, *enforce, f"{ENFORCE}=baseline")


def _way_in(pod: Json) -> str:
    [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == "sandman"]
    return names.DELIVERY_IMAGE if "image" in volume else names.DELIVERY_INIT


@pytest.mark.parametrize("place", ["aaa", "zzz"])
def test_another_injector_before_and_after_ours(shop: Shop, place: str) -> None:
    """Webhooks are asked in the order of their configurations' names."""
    with Injector(shop.sandman.bed, f"{place}-other", WORKLOADS):
        labels = {names.LABEL_INJECT: names.INJECT_WORKLOAD, "app": place}
        main = {
            "name": "main", "image": reference(shop.sandman.bed, "debian"), "command": ["sleep", "600"],
            "securityContext": RESTRICTED,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {
                "name": place, "labels": labels, "annotations": {names.ANNOTATION_CONTAINER: "main"},
            },
            "spec": {"containers": [main]},
        }  # fmt: skip
        shop.create(pod)
        made = shop.get("pod", place)
        by_name = {one["name"]: one for one in made["spec"]["containers"]}
        assert set(by_name) == {"main", "other-sidecar"}
        assert {"name": "OTHER", "value": "1"} in by_name["main"]["env"]
        assert by_name["main"]["command"] == [*names.DAEMON_COMMAND, "--", "sleep", "600"]
        assert by_name["other-sidecar"]["command"] == ["sleep", "600"]
        shop.kubectl("delete", "pod", place, "--grace-period=1", "--wait=false")


# --- the table -----------------------------------------------------------------------------------


def test_patched_pods_pass_the_api_servers_own_validation(shop: Shop) -> None:
    """Each pod of the table that the server takes as it is it takes with the daemon, too; by dry run."""
    with Api(shop.sandman.bed) as api:
        accepted = sum(_is_taken(api, index, case) for index, case in enumerate(CASES))
    print(f"\n{len(CASES)} pods in the table, {accepted} taken with and without the daemon")
    assert accepted >= 60


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (
            "LimitRange",
            {"limits": [{"type": "Container", "max": {"cpu": "20m", "memory": "32Mi"}}]},
        ),
        ("LimitRange", {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]}),
        ("ResourceQuota", {"hard": {"limits.cpu": "20m", "requests.memory": "32Mi"}}),
    ],
    ids=["max", "ratio", "quota"],
)
def test_limits_of_a_namespace_take_a_pod_with_the_daemon_as_without(
    sandman: Deployed, kind: str, spec: Json
) -> None:
    """In a namespace of its own: a quota that lags behind deletions would be in others' way."""
    name = f"sandman-test-limits-{kind.lower()}-{len(json.dumps(spec))}"
    opted_in = {names.LABEL_INJECT: names.INJECT_NAMESPACE_WORKLOADS}
    version = {"apiVersion": "v1"}
    space = {"kind": "Namespace", "metadata": {"name": name, "labels": opted_in}}
    limits = {"kind": kind, "metadata": {"name": "x", "namespace": name}, "spec": spec}
    (case,) = [one for one in CASES if one.name == "limits of the whole pod"]
    document = json.loads(json.dumps(case.pod))
    document["metadata"] |= {"name": "tight", "namespace": name}
    try:
        for one in (space, limits):
            kubectl(sandman.bed, "create", "-f", "-", input=json.dumps(version | one))
        with Api(sandman.bed) as api:
            # Until the API server knows of the limits it would take anything.
            wide = json.loads(json.dumps(document).replace('"20m"', '"30m"'))
            words = ("exceeded quota", "per Container is")
            wait_until(
                "limits that hold",
                lambda: any(word in str(api.create(wide).body) for word in words),
            )
            made = api.create(document)
        assert made.object is not None, made.body
        assert is_injected(made.object)
    finally:
        kubectl(sandman.bed, "delete", "namespace", name, "--wait=false")


def _is_taken(api: Api, index: int, case: Case) -> bool:
    document = json.loads(json.dumps(case.pod))
    document["metadata"] |= {"name": f"case-{index}", "namespace": "default"}
    document["metadata"].pop("generateName", None)
    plain = api.create(document).object
    document["metadata"]["namespace"] = WORKLOADS
    labelled = api.create(document)
    if plain is None or (labelled.object is None and _is_of_the_namespace(case.pod)):
        return False
    assert labelled.object is not None, (case.name, labelled.body)
    assert is_injected(labelled.object) is (case.patch is not None), case.name
    return True


def _is_of_the_namespace(pod: Json) -> bool:
    """What its pod security standard refuses, with a daemon or without."""
    text = json.dumps(pod)
    words = (
        "hostPath",
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "hostPort",
        '"privileged": true',
        "NET_ADMIN",
    )
    return any(word in text for word in words)


# --- the doctor ----------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_on_a_sound_installation(shop: Shop) -> None:
    made = shop.sandman.installation
    environ = {**os.environ, **made.environment(), "KUBECONFIG": str(shop.sandman.bed.kubeconfig)}
    environ["PATH"] = f"{shop.sandman.bed.bin}:{environ['PATH']}"
    command = [sys.executable, "-m", "sandman.cli", "doctor", "--trial", "--json"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    found = json.loads(done.stdout)
    print("\n" + "\n".join(f"{one['level']} {one['hop']}: {one['text']}" for one in found))
    hops = {one["hop"] for one in found}
    assert {
        "API server",
        "injection",
        "delivery",
        "processes",
        "rights",
        "certificate",
        "gateway → pod",
        "network",
    } <= hops
    assert [one for one in found if one["level"] == "failure"] == []


def test_the_registry_is_there() -> None:
    """What `inject` asks; a failure here is the bed's and not ours."""
    with urllib.request.urlopen("http://127.0.0.1:5000/v2/", timeout=5) as answer:
        assert answer.status == 200
