"""The test cluster itself: what other tests take for granted of it."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.cluster.bed import Bed, BedError, build_image, kubectl, reference
from tests.cluster.bed.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PORT = 8080
SERVE = f"mkdir -p /tmp/w; hostname > /tmp/w/index.html; exec httpd -f -p {PORT} -h /tmp/w"


@pytest.fixture
def namespace(bed: Bed) -> Iterator[str]:
    name = f"bed-{uuid.uuid4().hex[:8]}"
    kubectl(bed, "create", "namespace", name)
    wait_until(
        "the namespace's ServiceAccount exists",
        lambda: "default" in kubectl(bed, "get", "serviceaccounts", "-n", name, "-o", "name"),
    )
    yield name
    kubectl(bed, "delete", "namespace", name, "--wait=false")


def pod(
    name: str, image: str, command: list[str] | None = None, **spec: object
) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": image}
    container |= {"command": command} if command else {}
    container |= {"volumeMounts": spec.pop("mounts")} if "mounts" in spec else {}
    defaults = {"terminationGracePeriodSeconds": 0, "enableServiceLinks": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**defaults, **spec, "containers": [container]},
    }


def server(bed: Bed, name: str) -> dict[str, object]:
    return pod(name, reference(bed, "busybox"), ["/bin/sh", "-c", SERVE])


def apply(bed: Bed, namespace: str, value: dict[str, object]) -> None:
    kubectl(bed, "apply", "-n", namespace, "-f", "-", input=json.dumps(value))


def wait_ready(bed: Bed, namespace: str, name: str) -> str:
    """Wait for the pod, return its address."""
    kubectl(bed, "wait", "-n", namespace, "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    return kubectl(bed, "get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.podIP}")


def get(address: str, port: int = PORT) -> str:
    with urllib.request.urlopen(f"http://{address}:{port}/", timeout=2) as answer:
        body: bytes = answer.read()
    return body.decode().strip()


def answers(address: str, port: int = PORT) -> bool:
    try:
        return bool(get(address, port))
    except OSError:
        return False


def reaches(bed: Bed, namespace: str, name: str, address: str) -> bool:
    """True when the pod gets an answer of the address within a second.

    By nc: the wget of Debian's static busybox crashes in its resolver, in any network.
    """
    request = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 {address} {PORT}"
    try:
        answer = kubectl(bed, "exec", "-n", namespace, name, "--", "/bin/sh", "-c", request)
    except BedError:
        return False
    return "200 OK" in answer


def seconds_until(condition: Callable[[], bool], limit: float) -> float:
    began = time.monotonic()
    wait_until("the condition holds", condition, limit)
    return time.monotonic() - began


def test_the_node_is_ready_and_of_the_wanted_version(bed: Bed) -> None:
    node = json.loads(kubectl(bed, "get", "node", bed.node_name, "-o", "json"))
    conditions = {entry["type"]: entry["status"] for entry in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.2.9"


def test_kubectl_raises_with_what_went_wrong(bed: Bed) -> None:
    with pytest.raises(BedError, match="not found"):
        kubectl(bed, "get", "pod", "there-is-no-such-pod")


def test_a_pod_answers_the_host_at_its_address(bed: Bed, namespace: str) -> None:
    apply(bed, namespace, server(bed, "web"))
    assert get(wait_ready(bed, namespace, "web")) == "web"


@pytest.mark.parametrize(
    ("image", "check", "expected"),
    [
        ("debian", ["python3", "-c", "import ssl, sqlite3; print('ok')"], "ok"),
        ("python", ["git", "--version"], "git version"),
        ("nonroot", ["sh", "-c", "id -u; id -un; pwd; touch here"], "1000\nagent\n/home/agent"),
        ("busybox", ["sh", "-c", "test ! -e /lib && echo bare"], "bare"),
    ],
)
def test_base_images_hold_what_they_promise(
    bed: Bed, namespace: str, image: str, check: list[str], expected: str
) -> None:
    apply(bed, namespace, pod("job", reference(bed, image), check, restartPolicy="Never"))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl(bed, "wait", "-n", namespace, done, "pod/job", "--timeout=90s")
    assert kubectl(bed, "logs", "-n", namespace, "job").startswith(expected)


def test_an_image_volume_brings_a_program_into_an_empty_image(bed: Bed, namespace: str) -> None:
    image = {"reference": reference(bed, "busybox"), "pullPolicy": "IfNotPresent"}
    value = pod(
        "volume",
        reference(bed, "empty"),
        ["/tools/bin/busybox", "httpd", "-f", "-p", str(PORT), "-h", "/tools/etc"],
        volumes=[{"name": "tools", "image": image}],
        mounts=[{"name": "tools", "mountPath": "/tools"}],
    )
    apply(bed, namespace, value)
    address = wait_ready(bed, namespace, "volume")
    wait_until("it answers", lambda: _status(f"http://{address}:{PORT}/passwd") == 200, 10)


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except OSError:
        return 0


def test_a_network_policy_cuts_pods_apart_until_it_goes(bed: Bed, namespace: str) -> None:
    for name in ("one", "two"):
        apply(bed, namespace, server(bed, name))
    wait_ready(bed, namespace, "one")
    address = wait_ready(bed, namespace, "two")
    wait_until("traffic flows", lambda: reaches(bed, namespace, "one", address), 20)
    deny: dict[str, object] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }
    apply(bed, namespace, deny)
    assert seconds_until(lambda: not reaches(bed, namespace, "one", address), 15) < 10
    assert answers(address), "the node reaches its own pods whatever the policy"
    kubectl(bed, "delete", "networkpolicy", "deny", "-n", namespace)
    assert seconds_until(lambda: reaches(bed, namespace, "one", address), 15) < 10


def test_services_answer_by_cluster_address_and_node_port(bed: Bed, namespace: str) -> None:
    for name in ("web", "caller"):
        apply(bed, namespace, server(bed, name))
    kubectl(bed, "expose", "pod", "web", "-n", namespace, "--type=NodePort", f"--port={PORT}")
    wait_ready(bed, namespace, "web")
    wait_ready(bed, namespace, "caller")
    service = json.loads(kubectl(bed, "get", "service", "web", "-n", namespace, "-o", "json"))
    address, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]["nodePort"]
    wait_until("the host gets an answer at the cluster address", lambda: answers(address), 10)
    wait_until("the host gets an answer at the node port", lambda: answers("127.0.0.1", port), 10)
    wait_until("a pod gets an answer", lambda: reaches(bed, namespace, "caller", address), 10)


def test_a_pod_reaches_the_api_server_through_its_service(bed: Bed, namespace: str) -> None:
    script = (
        "import ssl, urllib.request as u;"
        "d='/var/run/secrets/kubernetes.io/serviceaccount/';"
        "c=ssl.create_default_context(cafile=d+'ca.crt');"
        "r=u.Request('https://10.96.0.1/version',headers={'Authorization':'Bearer '+open(d+'token').read()});"
        "print(u.urlopen(r,context=c,timeout=5).read().decode())"
    )
    image = reference(bed, "python")
    apply(bed, namespace, pod("job", image, ["python3", "-c", script], restartPolicy="Never"))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl(bed, "wait", "-n", namespace, done, "pod/job", "--timeout=60s")
    assert "v1.36.3" in kubectl(bed, "logs", "-n", namespace, "job")


def test_the_audit_log_has_every_write(bed: Bed, namespace: str) -> None:
    apply(bed, namespace, server(bed, "audited"))
    with bed.audit_log.open() as log:
        entries = [json.loads(line) for line in log if f'"{namespace}"' in line]
    writes = [(entry["verb"], entry["objectRef"]["resource"]) for entry in entries]
    assert ("create", "pods") in writes


def test_pod_security_is_enforced(bed: Bed, namespace: str) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubectl(bed, "label", "namespace", namespace, label)
    with pytest.raises(BedError, match="violates PodSecurity"):
        apply(bed, namespace, server(bed, "refused"))


def test_an_image_is_built_on_a_base_and_runs(bed: Bed, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text("ARG BASE\nFROM $BASE\nCOPY note /note\n")
    note = uuid.uuid4().hex
    (tmp_path / "note").write_text(note)
    arguments = {"BASE": reference(bed, "busybox")}
    image = build_image(bed, "bed-test/note", tmp_path, tmp_path / "Containerfile", arguments)
    apply(bed, namespace, pod("job", image, ["cat", "/note"], restartPolicy="Never"))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl(bed, "wait", "-n", namespace, done, "pod/job", "--timeout=60s")
    assert kubectl(bed, "logs", "-n", namespace, "job") == note
