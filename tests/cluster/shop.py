"""A user's namespace on the test cluster, with workloads of real services in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import sandman as sdk
from sandman import names
from tests.cluster import services
from tests.cluster.bed import kubectl, reference
from tests.cluster.bed.shell import wait_until
from tests.cluster.install import WORKLOADS_USER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.deployed import Deployed

Json = dict[str, Any]
PATIENCE_S = 120.0
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
ENFORCE = "pod-security.kubernetes.io/enforce"


@dataclasses.dataclass
class Shop:
    """A namespace of a user's, open to the daemon."""

    sandman: Deployed
    namespace: str

    def kubectl(self, *arguments: str, stdin: object = None) -> str:
        text = json.dumps(stdin) if stdin is not None else None
        return kubectl(self.sandman.bed, "-n", self.namespace, *arguments, input=text)

    def get(self, *arguments: str) -> Json:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def create(self, *documents: Json) -> None:
        whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("create", "-f", "-", stdin=whole)

    def pods(self, app: str) -> list[Json]:
        found = self.get("pods", "-l", f"app={app}")["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def one_ready(self, app: str, *, injected: bool | None = None) -> Json:
        """Its one pod, once it serves, with the daemon or without."""
        found: list[Json] = []

        def is_so() -> bool:
            found[:] = self.pods(app)
            return (
                len(found) == 1 and is_ready(found[0]) and injected in {None, is_injected(found[0])}
            )

        wait_until(f"{app} is ready (injected: {injected})", is_so, PATIENCE_S, 0.5)
        return found[0]

    def inject(self, *arguments: str) -> None:
        """The verb, as its user calls it."""
        environ = {**os.environ, "KUBECONFIG": str(self.sandman.bed.kubeconfig)}
        environ["PATH"] = f"{self.sandman.bed.bin}:{environ['PATH']}"
        command = [sys.executable, "-m", "sandman.cli", "inject", "-n", self.namespace, *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def client(self, *, other: bool = False) -> Iterator[sdk.SyncClient]:
        made = self.sandman.installation
        token = made.other_token if other else made.token
        with sdk.SyncClient(made.url, token, ca=made.ca, server_name=made.server_name) as client:
            yield client

    def attach(self, client: sdk.SyncClient, app: str) -> sdk.SyncSandbox:
        """Attach by label, once the gateway has heard of the pod: it was given the right to look a moment ago."""

        def is_told() -> bool:
            return any(_labels(one).get("app") == app for one in client.workloads(self.namespace))

        wait_until(f"the gateway knows {app}", is_told, PATIENCE_S, 0.2)
        return client.attach_workload(self.namespace, selector={"app": app})


def _labels(shown: Mapping[str, object]) -> Mapping[str, object]:
    found = shown["labels"]
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def opened(sandman: Deployed, namespace: str) -> Iterator[Shop]:
    """The namespace, made anew, and the rights of gateway and user in it."""
    made = Shop(sandman, namespace)
    kubectl(sandman.bed, "delete", "namespace", namespace, "--ignore-not-found")
    labels = {names.LABEL_INJECT: names.INJECT_NAMESPACE_WORKLOADS, ENFORCE: "baseline"}
    space = {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels},
    }  # fmt: skip
    kubectl(sandman.bed, "create", "-f", "-", input=json.dumps(space))
    account = f"{names.SYSTEM_NAMESPACE}:sandman-gateway"
    bind = ("create", "rolebinding")
    made.kubectl(*bind, "gateway", "--clusterrole=sandman-workloads", f"--serviceaccount={account}")
    made.kubectl("create", "role", "exec", "--verb=create", "--resource=pods/exec")
    made.kubectl(*bind, "exec", "--role=exec", f"--user={WORKLOADS_USER}")
    wait_until("the default account", lambda: "default" in made.kubectl("get", "sa"), 30)
    yield made
    # The pods first, and soon: the tests after these look for daemons that are nobody's.
    kinds = "deployments,statefulsets,jobs,pods"
    made.kubectl("delete", kinds, "--all", "--grace-period=1", "--ignore-not-found")
    kubectl(sandman.bed, "delete", "namespace", namespace, "--wait=false")


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def is_injected(pod: Json) -> bool:
    return names.ANNOTATION_INJECTED in pod["metadata"].get("annotations", {})


def restarts(pod: Json) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))


def workload(kind: str, name: str, image: str, **container: Any) -> Json:
    """A Deployment or StatefulSet of one pod that is probed."""
    probe = {"tcpSocket": {"port": services.PORT}, "periodSeconds": 1}
    main = {
        "name": "main", "image": image, "readinessProbe": probe, "livenessProbe": probe | {"periodSeconds": 5},
        "securityContext": RESTRICTED, **container,
    }  # fmt: skip
    labels = {"app": name}
    spec: Json = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [main], "terminationGracePeriodSeconds": 10},
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def labelled(document: Json) -> Json:
    """The same with a labelled template."""
    document["spec"]["template"]["metadata"]["labels"][names.LABEL_INJECT] = names.INJECT_WORKLOAD
    return document


def nginx(shop: Shop, name: str) -> Json:
    """A labelled Deployment that says its command itself."""
    image = reference(shop.sandman.bed, "nginx")
    return labelled(workload("Deployment", name, image, command=["nginx", "-g", "daemon off;"]))


def serves(name: str, pod: Json) -> bool:
    """Whether the service answers in its own words."""
    words = {
        "nginx": (b"GET / HTTP/1.0\r\n\r\n", b"served"),
        "redis": (b"PING\r\n", b"+PONG"),
        # SSLRequest of the protocol, version 3; a server without TLS says N.
        "postgres": (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"N"),
    }
    asked, wanted = words[name]
    with socket.create_connection((pod["status"]["podIP"], services.PORT), 5) as stream:
        stream.settimeout(5)
        stream.sendall(asked)
        data = b""
        while wanted not in data and (more := stream.recv(4096)):
            data += more
    return wanted in data


def pool_pod(name: str) -> Json:
    """A pod that asks to be a sandbox, and is never scheduled."""
    labels = {names.LABEL_INJECT: names.INJECT_POOL, names.LABEL_POOL: "burst"}
    main = {"name": "main", "image": "registry.invalid/x:1", "securityContext": RESTRICTED}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": names.SANDBOX_NAMESPACE, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False, "nodeSelector": {"sandman.dev/nowhere": "true"},
            "containers": [main],
        },
    }  # fmt: skip
