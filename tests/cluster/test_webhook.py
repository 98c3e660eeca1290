"""The webhook against a real API server and kubelet: what it patches runs, what it refuses says why.

The program runs on this machine, two replicas of it, registered by URL; the configuration is the one
of the manifests, narrowed to a namespace of this test's own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sandman import grants, names
from scripts import images
from tests.cluster.bed import Bed, BedError, kubectl, reference
from tests.cluster.bed.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SYSTEM, BOXES, CONFIGURATION = "wh-test-system", "wh-test-boxes", "wh-test-webhook"
DAEMON_IMAGE = "SANDMAN_TEST_DAEMON_IMAGE"
"""Reference of a daemon's image to test with, instead of building the present one."""
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class Webhook:
    """Two replicas, the first of which the API server calls."""

    bed: Bed
    daemon_image: str
    ports: tuple[int, int]

    def kubectl(self, *arguments: str, stdin: object = None) -> str:
        text = json.dumps(stdin) if stdin is not None else None
        return kubectl(self.bed, "-n", BOXES, *arguments, input=text)

    def get(self, replica: int, path: str) -> str:
        """What a replica answers; its certificate is checked as the API server does."""
        context = ssl.create_default_context(cadata=self.bundle())
        url = f"https://127.0.0.1:{self.ports[replica]}{path}"
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return answer.read().decode()

    def bundle(self) -> str:
        query = "jsonpath={.webhooks[0].clientConfig.caBundle}"
        text = kubectl(self.bed, "get", "mutatingwebhookconfiguration", CONFIGURATION, "-o", query)
        return base64.b64decode(text).decode()

    def reviews(self) -> dict[str, float]:
        found = re.findall(r'reviews_total\{outcome="(\w+)"\} (\S+)', self.get(0, "/metrics"))
        return {outcome: float(count) for outcome, count in found}

    def is_ready(self, replica: int) -> bool:
        try:
            return self.get(replica, "/readyz") == "ok"
        except (OSError, ssl.SSLError):
            return False

    def create(self, document: dict[str, Any], *options: str) -> dict[str, Any]:
        return json.loads(self.kubectl("create", "-f", "-", "-o", "json", *options, stdin=document))

    def secret(self, name: str) -> dict[str, bytes]:
        data = json.loads(kubectl(self.bed, "-n", SYSTEM, "get", "secret", name, "-o", "json"))[
            "data"
        ]
        return {key: base64.b64decode(value) for key, value in data.items()}

    def token(self, document: dict[str, Any]) -> str:
        """What the gateway would send to this pod."""
        annotations = document["metadata"]["annotations"]
        key = self.secret(names.KEYS_SECRET)[f"daemon-{annotations[names.ANNOTATION_KEY_ID]}"]
        return grants.daemon_token(key, BOXES, annotations[names.ANNOTATION_NONCE])

    def running(self, name: str) -> dict[str, Any]:
        wait_until(f"pod {name} runs", lambda: self._phase(name) not in {"", "Pending"}, limit=90)
        return json.loads(self.kubectl("get", "pod", name, "-o", "json"))

    def _phase(self, name: str) -> str:
        return self.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")


def pod(name: str, image: str, **spec: object) -> dict[str, Any]:
    """A pod that asks for injection and is fit for it."""
    base: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "securityContext": RESTRICTED,
        "containers": [
            {
                "name": "sandbox",
                "image": image,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    labels = {names.LABEL_INJECT: names.INJECT_POOL, names.LABEL_POOL: "wh-test"}
    metadata: dict[str, Any] = {"name": name, "labels": labels, "annotations": {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": base | spec}


@pytest.fixture(scope="module")
def webhook(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    daemon = os.environ.get(DAEMON_IMAGE) or _build_daemon(bed)
    logs = tmp_path_factory.mktemp("webhook")
    with contextlib.ExitStack() as stack:
        ports = (_free_port(), _free_port())
        stack.callback(_remove, bed)
        _remove(bed)
        _create_objects(bed, ports[0])
        for port in ports:
            stack.enter_context(_replica(bed, daemon, port, logs / f"{port}.log"))
        made = Webhook(bed, daemon, ports)
        wait_until(
            "both replicas are ready", lambda: made.is_ready(0) and made.is_ready(1), limit=30
        )
        yield made


def _build_daemon(bed: Bed) -> str:
    target = images.Target(bed.registry, reference(bed, "python"))
    return images.publish(target, [images.DAEMON])["daemon"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _create_objects(bed: Bed, port: int) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    for name in (SYSTEM, BOXES):
        meta = {"name": name, "labels": labels if name == BOXES else {}}
        _apply(bed, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    for name in (names.WEBHOOK_TLS_SECRET, names.KEYS_SECRET):
        meta = {"name": name, "namespace": SYSTEM}
        _apply(bed, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque"})
    configuration = yaml.safe_load((ROOT / "manifests/base/webhook-configuration.yaml").read_text())
    configuration["metadata"]["name"] = CONFIGURATION
    here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [BOXES]}
    for hook in configuration["webhooks"]:
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/mutate"}
        hook["namespaceSelector"] = {"matchExpressions": [here]}
    _apply(bed, configuration)
    wait_until("the default account is there", lambda: bool(_default_account(bed)))


def _default_account(bed: Bed) -> str:
    return kubectl(bed, "-n", BOXES, "get", "sa", "default", "--ignore-not-found", "-o", "name")


def _apply(bed: Bed, document: object) -> None:
    kubectl(bed, "create", "-f", "-", input=json.dumps(document))


def _remove(bed: Bed) -> None:
    kubectl(bed, "delete", "mutatingwebhookconfiguration", CONFIGURATION, "--ignore-not-found")
    kubectl(bed, "delete", "namespace", SYSTEM, BOXES, "--ignore-not-found")


@contextlib.contextmanager
def _replica(bed: Bed, daemon: str, port: int, log: Path) -> Iterator[None]:
    settings = {
        "DAEMON_IMAGE": daemon,
        "NAMESPACE": SYSTEM,
        "CONFIGURATION": CONFIGURATION,
        "ADDRESSES": "127.0.0.1",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "DRAIN_S": "0",
    }
    environment = {f"SANDMAN_WEBHOOK_{name}": value for name, value in settings.items()}
    environment = os.environ | environment | {"KUBECONFIG": str(bed.kubeconfig)}
    command = [sys.executable, "-m", "webhook"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            code = process.wait(timeout=30)
    assert code == 0, log.read_text()


def test_two_replicas_that_started_together_serve_one_certificate(webhook):
    assert webhook.bundle().count("BEGIN CERTIFICATE") == 1
    assert sorted(webhook.secret(names.WEBHOOK_TLS_SECRET)) == ["ca.crt", "tls.crt", "tls.key"]
    leaves = {ssl.get_server_certificate(("127.0.0.1", port)) for port in webhook.ports}
    assert len(leaves) == 1


@pytest.mark.parametrize("image", ["debian", "empty"])
@pytest.mark.parametrize("delivery", ["image", "init"])
def test_the_daemon_runs_and_knows_its_caller(webhook, delivery, image):
    """Both ways, under the restricted standard, with and without anything in the image."""
    document = pod(f"wh-test-{delivery}-{image}", reference(webhook.bed, image))
    document["metadata"]["annotations"][names.ANNOTATION_DELIVERY] = delivery
    made = webhook.create(document)
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["labels"][names.LABEL_STATE] == names.STATE_FREE
    assert ("initContainers" in made["spec"]) is (delivery == "init")
    running = webhook.running(made["metadata"]["name"])
    assert running["status"]["phase"] == "Running", running["status"]
    assert running["status"]["qosClass"] == ("Burstable" if delivery == "init" else "BestEffort")
    url = f"http://{running['status']['podIP']}:{names.DAEMON_PORT}/v1/info"
    assert _info(url, webhook.token(made))["boot_id"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _info(url, "x" * 43)


def _info(url: str, token: str) -> dict[str, Any]:
    """What the daemon answers, as soon as it listens."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_a_guaranteed_pod_stays_guaranteed(webhook):
    document = pod("wh-test-guaranteed", reference(webhook.bed, "empty"))
    document["metadata"]["annotations"][names.ANNOTATION_DELIVERY] = "init"
    document["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "256Mi"}}
    made = webhook.create(document, "--dry-run=server")
    assert made["status"]["qosClass"] == "Guaranteed"


def test_a_copied_nonce_is_worth_nothing(webhook):
    image = reference(webhook.bed, "empty")
    victim = webhook.create(pod("wh-test-victim", image))
    thief = pod("wh-test-thief", image)
    thief["metadata"]["annotations"] = victim["metadata"]["annotations"]
    thief["spec"]["containers"][0]["env"] = victim["spec"]["containers"][0]["env"]
    made = webhook.create(thief)
    nonce = names.ANNOTATION_NONCE
    assert made["metadata"]["annotations"][nonce] != victim["metadata"]["annotations"][nonce]
    assert made["spec"]["containers"][0]["env"] == [
        {"name": names.ENV_TOKEN_SHA256, "value": grants.token_digest(webhook.token(made))},
        {"name": names.ENV_PORT, "value": str(names.DAEMON_PORT)},
    ]


REFUSED = {
    "host network": ({"hostNetwork": True}, "remove hostNetwork from the pod"),
    "account token": (
        {"automountServiceAccountToken": True},
        "set automountServiceAccountToken: false in the template",
    ),
    "mount": (
        {"volumes": [{"name": "sandman", "configMap": {"name": "x"}}]},
        "the name is reserved, rename yours or remove it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_kubectl_shows_why_a_pod_is_refused_and_what_to_do(webhook, case):
    spec, text = REFUSED[case]
    document = pod("wh-test-refused", reference(webhook.bed, "empty"), **spec)
    with pytest.raises(BedError) as caught:
        webhook.create(document)
    assert 'admission webhook "pods.sandman.dev" denied the request: not injected: ' in str(
        caught.value
    )
    assert text in str(caught.value)


def test_a_dry_run_shows_the_patch_and_makes_nothing(webhook):
    document = pod("wh-test-dry", reference(webhook.bed, "empty"))
    made = webhook.create(document, "--dry-run=server")
    assert made["spec"]["containers"][0]["command"] == list(names.DAEMON_COMMAND)
    assert webhook.kubectl("get", "pod", "wh-test-dry", "--ignore-not-found") == ""


def test_pods_that_do_not_ask_are_not_even_seen(webhook):
    document = pod("wh-test-plain", reference(webhook.bed, "empty"))
    document["metadata"]["labels"] = {}
    before = webhook.reviews()
    made = webhook.create(document, "--dry-run=server")
    assert "volumes" not in made["spec"]
    assert webhook.reviews() == before


def test_a_replica_set_makes_injected_pods_and_tells_of_refusals(webhook):
    template = pod("", reference(webhook.bed, "empty"))
    del template["metadata"]["name"]
    good = _deployment("wh-test-pool", template)
    webhook.create(good)
    bad = _deployment("wh-test-bad", template)
    bad["spec"]["template"]["spec"]["hostPID"] = True
    webhook.create(bad)
    selector = ["-l", f"{names.LABEL_STATE}=free,app=wh-test-pool"]
    wait_until(
        "the pool's pod is there",
        lambda: bool(webhook.kubectl("get", "pod", *selector, "-o", "name")),
    )
    (made,) = json.loads(webhook.kubectl("get", "pod", *selector, "-o", "json"))["items"]
    assert made["spec"]["restartPolicy"] == "Never"
    wait_until("the refusal is an event", lambda: "remove hostPID" in _failures(webhook))
    webhook.kubectl("delete", "deployment", "wh-test-pool", "wh-test-bad")


def _deployment(name: str, template: dict[str, Any]) -> dict[str, Any]:
    own = json.loads(json.dumps({part: template[part] for part in ("metadata", "spec")}))
    own["metadata"]["labels"]["app"] = name
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": own}
    meta = {"name": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def _failures(webhook: Webhook) -> str:
    return webhook.kubectl("get", "events", "--field-selector", "reason=FailedCreate", "-o", "json")


def test_asked_twice_in_one_admission_it_gives_one_consistent_pod(webhook):
    """A policy that changes the pod once more after us makes the API server call again."""
    objects = _late_policy()
    for document in objects:
        kubectl(webhook.bed, "create", "-f", "-", input=json.dumps(document))
    try:
        image = reference(webhook.bed, "empty")
        wait_until(
            "the policy is in force", lambda: _is_late(webhook, image), limit=30, interval=0.5
        )
        before = webhook.reviews()["injected"]
        made = webhook.create(pod("wh-test-twice", image))
        assert webhook.reviews()["injected"] == before + 2
    finally:
        for document in objects:
            kubectl(webhook.bed, "delete", document["kind"], document["metadata"]["name"])
    spec = made["spec"]
    assert [volume["name"] for volume in spec["volumes"]].count(names.VOLUME) == 1
    assert spec["containers"][0]["env"] == [
        {"name": names.ENV_TOKEN_SHA256, "value": grants.token_digest(webhook.token(made))},
        {"name": names.ENV_PORT, "value": str(names.DAEMON_PORT)},
    ]


def _is_late(webhook: Webhook, image: str) -> bool:
    made = webhook.create(pod("wh-test-probe", image), "--dry-run=server")
    return made["metadata"]["labels"].get("wh-test-late") == "again"


def _late_policy() -> list[dict[str, Any]]:
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": BOXES}}
    value = '"wh-test-late" in object.metadata.labels ? "again" : "once"'
    expression = f'[JSONPatch{{op: "add", path: "/metadata/labels/wh-test-late", value: {value}}}]'
    policy = {
        "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    meta = {"name": "wh-test-late"}
    return [
        {"apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": meta, "spec": policy},
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": "wh-test-late"},
        },
    ]


def test_secret_and_bundle_wiped_together_are_back_within_half_a_minute(webhook):
    """The worst that an operator's slip can do: nothing verifies any more, until the next look."""
    wipe = json.dumps([{"op": "remove", "path": "/data"}])
    kubectl(
        webhook.bed,
        "-n",
        SYSTEM,
        "patch",
        "secret",
        names.WEBHOOK_TLS_SECRET,
        "--type=json",
        "-p",
        wipe,
    )
    empty = json.dumps([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}])
    kubectl(
        webhook.bed,
        "patch",
        "mutatingwebhookconfiguration",
        CONFIGURATION,
        "--type=json",
        "-p",
        empty,
    )
    wait_until(
        "both replicas are ready again",
        lambda: webhook.is_ready(0) and webhook.is_ready(1),
        limit=30,
    )
    assert webhook.create(pod("wh-test-after", reference(webhook.bed, "empty")), "--dry-run=server")
