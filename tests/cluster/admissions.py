"""Admissions on the test cluster: asked of the API server without kubectl, counted by its own metrics; and the
webhook's certificate, as it stands in the cluster."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sandman import names
from sandman.service import pki
from tests.cluster.bed import kubectl
from tests.cluster.bed.shell import wait_until
from webhook import rotation

if TYPE_CHECKING:
    from tests.cluster.bed import Bed

Json = dict[str, Any]
NAMES = rotation.Names(
    ("sandman-webhook.sandman-system.svc", "sandman-webhook.sandman-system.svc.cluster.local")
)
IDLE_S = 30.0
"""Seconds without a call after which a connection is not trusted: the server closes idle ones."""
PAUSE_S = 0.05
"""Between two admissions of a stream: the machine has two cores, for everything."""


class Answer(NamedTuple):
    """What the API server said."""

    status: int
    body: Json
    warnings: tuple[str, ...]

    @property
    def object(self) -> Json | None:
        """What it would make, or has made; None when it refuses."""
        return self.body if self.status == http.client.CREATED else None


class Api:
    """The API server as the administrator sees it, on one connection; for one thread."""

    def __init__(self, bed: Bed) -> None:
        config = json.loads(bed.kubeconfig.read_text())
        user = config["users"][0]["user"]
        context = ssl.create_default_context(cafile=str(bed.ca))
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        host = config["clusters"][0]["cluster"]["server"].removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, timeout=60, context=context)
        self._called_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._connection.close()

    def call(self, method: str, path: str, document: Json | None = None) -> Answer:
        body = None if document is None else json.dumps(document)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if time.monotonic() - self._called_at > IDLE_S:
            self._connection.close()  # and opened again by the next request
        self._called_at = time.monotonic()
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        warnings = tuple(answer.headers.get_all("Warning") or ())
        return Answer(answer.status, json.loads(text), warnings)

    def create(self, pod: Json, *, dry_run: bool = True) -> Answer:
        """Make a pod, or only ask: what nobody knows in it is refused, as kubectl has it."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?fieldValidation=Strict"
        return self.call("POST", path + ("&dryRun=All" if dry_run else ""), pod)


class Stream:
    """Admissions by dry run, one after another; `failures` has what went wrong."""

    def __init__(self, bed: Bed, pod: Json) -> None:
        self._bed = bed
        self._pod = pod
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Api(self._bed) as api:
            while not self._stop.wait(PAUSE_S):
                self.count += 1
                answer = api.create(self._pod)
                if answer.object is None:
                    self.failures.append(str(answer.body))


def histogram(bed: Bed, entry: str) -> dict[float, float]:
    """The API server's own histogram of calls to an entry of ours: count by upper bound, seconds."""
    found: dict[float, float] = {}
    for line in kubectl(bed, "get", "--raw", "/metrics").splitlines():
        if (
            line.startswith("apiserver_admission_webhook_admission_duration_seconds_bucket")
            and f'name="{entry}"' in line
        ):
            bound = line.split('le="')[1].split('"')[0]
            key = float("inf") if bound == "+Inf" else float(bound)
            found[key] = found.get(key, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def quantile(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """The bound below which this part of the calls since `before` were."""
    since = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    total = since[float("inf")]
    return next(bound for bound, count in since.items() if count >= part * total)


# --- the certificate -----------------------------------------------------------------------------


def put_certificate(bed: Bed, days: float) -> None:
    """A leaf of ours that ends so soon, in the Secret and beside the bundle that is published."""
    begin = datetime.now(UTC) - timedelta(days=rotation.VALID_DAYS - days)
    authority = pki.make_ca("test", begin, rotation.VALID_DAYS)
    leaf = pki.issue(authority, NAMES.dns, NAMES.addresses, begin, rotation.VALID_DAYS)
    _put(bed, rotation.State(current=rotation.Identity(leaf, authority.certificate)))


def _put(bed: Bed, state: rotation.State) -> None:
    entries = {
        key: base64.b64encode(value).decode() for key, value in rotation.render(state).items()
    }
    kubectl(
        bed, "-n", names.SYSTEM_NAMESPACE, "patch", "secret", names.WEBHOOK_TLS_SECRET, "--type=merge",
        "--patch-file=/dev/stdin", input=json.dumps({"data": entries}),
    )  # fmt: skip


def secret(bed: Bed) -> dict[str, bytes]:
    """The Secret's entries; none when it is not there."""
    query = ("get", "secret", names.WEBHOOK_TLS_SECRET, "--ignore-not-found", "-o", "json")
    text = kubectl(bed, "-n", names.SYSTEM_NAMESPACE, *query)
    data = (json.loads(text).get("data") or {}) if text.strip() else {}
    return {key: base64.b64decode(value) for key, value in data.items()}


def bundle(bed: Bed) -> bytes:
    """What is published."""
    query = "jsonpath={.webhooks[0].clientConfig.caBundle}"
    hook = ("get", "mutatingwebhookconfiguration", names.WEBHOOK_CONFIGURATION)
    return base64.b64decode(kubectl(bed, *hook, "-o", query))


def is_whole(bed: Bed) -> bool:
    """The Secret's leaf is good, and published."""
    leaf = secret(bed).get("tls.crt", b"")
    return bool(leaf) and pki.verifies(bundle(bed), leaf, NAMES.dns[0], datetime.now(UTC))


def served(bed: Bed) -> list[bytes]:
    """The leaf that each replica serves, DER."""
    query = ("get", "pods", "-l", "app.kubernetes.io/name=sandman-webhook", "-o", "json")
    pods = json.loads(kubectl(bed, "-n", names.SYSTEM_NAMESPACE, *query))["items"]
    found = []
    for pod in pods:
        (port,) = (one["containerPort"] for one in pod["spec"]["containers"][0]["ports"])
        text = ssl.get_server_certificate((pod["status"]["podIP"], port), timeout=10)
        found.append(ssl.PEM_cert_to_DER_cert(text))
    return found


def rotate(bed: Bed, pod: Json) -> Stream:
    """A whole rotation under a stream of admissions, from its first step, which is due in 83 days, to the next
    leaf in use at every replica; some 90 s, most of which it waits."""
    now = datetime.now(UTC)
    state = rotation.parse(secret(bed), NAMES, now)
    new = rotation.make(NAMES, now)
    with Stream(bed, pod) as stream:
        _put(bed, dataclasses.replace(state, next=new))
        der = ssl.PEM_cert_to_DER_cert(new.leaf.certificate.decode())

        def is_done() -> bool:
            return set(served(bed)) == {der} and is_whole(bed)

        wait_until("the next leaf is in use", is_done, 300, 2)
        time.sleep(5)
    assert secret(bed)["tls.crt"] == new.leaf.certificate
    return stream
