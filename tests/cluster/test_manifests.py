"""The manifests on a real API server: what each policy refuses and lets through, rights, network, quota.

Most requests are dry runs on the server: admission and authorization judge them as any other, and
nothing is left behind. Impersonation (`--as`) makes them in another's name; the administrator's own
name is in system:masters, which the policies let pass on purpose.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster import install
from tests.cluster.bed import BedError, kubectl, reference
from tests.cluster.bed.shell import run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed import Bed
    from tests.cluster.deployed import Deployed

pytestmark = pytest.mark.usefixtures("installation")

SANDBOXES = names.SANDBOX_NAMESPACE
SYSTEM = names.SYSTEM_NAMESPACE
GATEWAY = f"system:serviceaccount:{SYSTEM}:sandman-gateway"
WEBHOOK = f"system:serviceaccount:{SYSTEM}:sandman-webhook"
REPLICASETS = "system:serviceaccount:kube-system:replicaset-controller"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
MANAGER = "system:kube-controller-manager"
SOMEBODY = "somebody"
RIGHTS = "test-rights"
"""A group with every right on pods, so that what is refused is refused by admission and not by RBAC.
Whoever is impersonated is put into it, but for Sandman's own accounts: they must do with their own."""
DRY = "--dry-run=server"


@pytest.fixture(scope="module")
def installation(sandman: Deployed) -> install.Installation:
    return sandman.installation


@pytest.fixture(scope="module", autouse=True)
def rights(bed: Bed, installation: install.Installation) -> Iterator[None]:
    kubectl(bed, "create", "role", RIGHTS, "-n", SANDBOXES, "--verb=*", "--resource=pods")
    binding = ["rolebinding", RIGHTS, "-n", SANDBOXES]
    kubectl(bed, "create", *binding, f"--role={RIGHTS}", f"--group={RIGHTS}")
    yield
    kubectl(bed, "delete", f"role/{RIGHTS}", f"rolebinding/{RIGHTS}", "-n", SANDBOXES)


def as_user(bed: Bed, user: str, *arguments: str, **options: Any) -> str:
    group = [] if user in (GATEWAY, WEBHOOK) else [f"--as-group={RIGHTS}"]
    return kubectl(bed, f"--as={user}", *group, "-n", SANDBOXES, *arguments, **options)


def refused(bed: Bed, user: str, *arguments: str, because: str, **options: Any) -> None:
    with pytest.raises(BedError, match=re.escape(because)):
        as_user(bed, user, *arguments, **options)


def pod(name: str = "", *, bare: bool = False, **labels: str) -> dict[str, Any]:
    """A pod that every policy lets pass; with `bare` one that is nobody's pool pod."""
    keyed = {f"{names.DOMAIN}/{key}": value for key, value in labels.items()}
    metadata: dict[str, Any] = {
        "name": name or f"test-{uuid.uuid4().hex[:8]}",
        "namespace": SANDBOXES,
        "labels": keyed,
    }
    container: dict[str, Any] = {"name": "sandbox", "image": "example.invalid/none:1"}
    spec: dict[str, Any] = {"containers": [container], "automountServiceAccountToken": False}
    if not bare:
        metadata["labels"] = {names.LABEL_POOL: "test", **keyed}
        metadata["annotations"] = {names.ANNOTATION_NONCE: "n", names.ANNOTATION_KEY_ID: "k"}
        container["command"] = list(names.DAEMON_COMMAND)
        container["env"] = [{"name": names.ENV_TOKEN_SHA256, "value": "0" * 64}]
        container["volumeMounts"] = [{"name": names.VOLUME, "mountPath": names.MOUNT_PATH}]
        spec["volumes"] = [{"name": names.VOLUME, "emptyDir": {}}]
        spec["restartPolicy"] = "Never"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(bed: Bed, user: str, value: dict[str, Any], *options: str) -> str:
    return as_user(bed, user, "create", "-f", "-", *options, input=json.dumps(value))


def create_refused(bed: Bed, user: str, value: dict[str, Any], *, because: str) -> None:
    refused(bed, user, "create", "-f", "-", DRY, because=because, input=json.dumps(value))


@pytest.fixture
def stored(bed: Bed) -> Iterator[Any]:
    """Makes pods as the administrator, and takes them away."""
    made: list[str] = []

    def make(value: dict[str, Any]) -> str:
        # No node has this name: what is stored is never started.
        value["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "none"}
        kubectl(bed, "create", "-f", "-", input=json.dumps(value))
        made.append(value["metadata"]["name"])
        return made[-1]

    yield make
    if made:
        kubectl(bed, "delete", "pod", "-n", SANDBOXES, "--force", "--ignore-not-found", *made)


# --- keep-leased --------------------------------------------------------------------------------

IN_USE = "this pod is a sandbox in use"


@pytest.mark.parametrize("state", [names.STATE_LEASED, names.STATE_RESERVED])
@pytest.mark.parametrize("controller", [REPLICASETS, MANAGER])
def test_replicaset_controller_cannot_delete_a_sandbox_in_use(
    bed: Bed, stored: Any, state: str, controller: str
) -> None:
    name = stored(pod(bare=True, state=state))
    refused(bed, controller, "delete", "pod", name, DRY, because=f"{IN_USE} (sandman.dev/state)")
    # All at once is no way around: the server asks for each.
    many = f"/api/v1/namespaces/{SANDBOXES}/pods?labelSelector=sandman.dev/state={state}"
    refused(bed, controller, "delete", "--raw", f"{many}&dryRun=All", because=IN_USE)


@pytest.mark.parametrize("state", [names.STATE_FREE, names.STATE_ENDED])
def test_replicaset_controller_may_delete_what_is_not_in_use(
    bed: Bed, stored: Any, state: str
) -> None:
    name = stored(pod(bare=True, state=state))
    as_user(bed, REPLICASETS, "delete", "pod", name, DRY)


def test_collector_deletes_only_what_an_owner_was_given_to(bed: Bed, stored: Any) -> None:
    name = stored(pod(bare=True, state=names.STATE_LEASED))
    refused(bed, COLLECTOR, "delete", "pod", name, DRY, because=IN_USE)
    owned = pod(bare=True, state=names.STATE_LEASED)
    # An owner that exists, or the real collector would come.
    config_map = json.loads(
        kubectl(bed, "get", "cm", "kube-root-ca.crt", "-n", SANDBOXES, "-o", "json")
    )
    owner = {"apiVersion": "v1", "kind": "ConfigMap"}
    owned["metadata"]["ownerReferences"] = [
        {**owner, "name": "kube-root-ca.crt", "uid": config_map["metadata"]["uid"]}
    ]
    as_user(bed, COLLECTOR, "delete", "pod", stored(owned), DRY)


def test_gateway_administrator_and_drain_end_sandboxes_in_use(bed: Bed, stored: Any) -> None:
    name = stored(pod(bare=True, state=names.STATE_LEASED))
    as_user(bed, GATEWAY, "delete", "pod", name, DRY)
    as_user(bed, SOMEBODY, "delete", "pod", name, DRY)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": SANDBOXES},
        "deleteOptions": {"dryRun": ["All"]},
    }
    path = f"/api/v1/namespaces/{SANDBOXES}/pods/{name}/eviction"
    kubectl(bed, "create", "--raw", path, "-f", "-", input=json.dumps(eviction))


def test_a_namespace_with_sandboxes_in_use_can_be_deleted(bed: Bed) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    namespace = {"metadata": {"name": name, "labels": {names.LABEL_INJECT: "enabled"}}}
    namespace |= {"apiVersion": "v1", "kind": "Namespace"}  # type: ignore[dict-item]
    kubectl(bed, "create", "-f", "-", input=json.dumps(namespace))
    value = pod(bare=True, state=names.STATE_LEASED)
    value["metadata"]["namespace"] = name
    value["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "none"}
    wait_until(
        "the namespace has its ServiceAccount",
        lambda: "default" in kubectl(bed, "get", "serviceaccount", "-n", name, "-o", "name"),
    )
    kubectl(bed, "create", "-f", "-", input=json.dumps(value))
    kubectl(bed, "delete", "namespace", name, "--timeout=60s")


# --- guard-state --------------------------------------------------------------------------------

BY_SANDMAN = "are set and changed by Sandman alone"


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("label", ["sandman.dev/state=leased", "--overwrite"]),
        ("label", ["sandman.dev/tenant=mine"]),
        ("label", ["sandman.dev/pool-"]),
        ("annotate", ["sandman.dev/nonce=known", "--overwrite"]),
        ("annotate", ["sandman.dev/lease={}"]),
        ("annotate", ["sandman.dev/key-id-"]),
    ],
)
@pytest.mark.parametrize("user", [SOMEBODY, WEBHOOK, REPLICASETS])
def test_nobody_else_changes_state(
    bed: Bed, stored: Any, user: str, kind: str, change: list[str]
) -> None:
    name = stored(pod(state=names.STATE_FREE))
    what = "labels" if kind == "label" else "annotations"
    if user == WEBHOOK:
        refused(bed, user, kind, "pod", name, *change, DRY, because="Forbidden")
        return
    refused(
        bed,
        user,
        kind,
        "pod",
        name,
        *change,
        DRY,
        because=f"{what} below sandman.dev/ {BY_SANDMAN}",
    )


def test_gateway_claims_with_one_patch(bed: Bed, stored: Any) -> None:
    name = stored(pod(state=names.STATE_FREE))
    patch = [
        {"op": "test", "path": "/metadata/labels/sandman.dev~1state", "value": "free"},
        {"op": "replace", "path": "/metadata/labels/sandman.dev~1state", "value": "leased"},
        {"op": "add", "path": "/metadata/labels/sandman.dev~1tenant", "value": "demo"},
        {"op": "add", "path": "/metadata/annotations/sandman.dev~1lease", "value": "{}"},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "example.invalid/other:1"},
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 60},
    ]
    as_user(bed, GATEWAY, "patch", "pod", name, "--type=json", f"--patch={json.dumps(patch)}", DRY)
    refused(
        bed, SOMEBODY, "patch", "pod", name, "--type=json", f"--patch={json.dumps(patch)}", DRY,
        because=BY_SANDMAN,
    )  # fmt: skip


def test_other_labels_and_status_are_nobodys_business(bed: Bed, stored: Any) -> None:
    name = stored(pod(state=names.STATE_FREE))
    as_user(bed, SOMEBODY, "label", "pod", name, "example.com/mine=1", DRY)
    as_user(bed, SOMEBODY, "annotate", "pod", name, "example.com/mine=1", DRY)
    status = json.dumps({"status": {"message": "seen"}})
    kubectl(bed, "-n", SANDBOXES, "patch", "pod", name, "--subresource=status", "-p", status, DRY)


def test_break_glass(bed: Bed, stored: Any) -> None:
    name = stored(pod(state=names.STATE_FREE))
    kubectl(
        bed, "-n", SANDBOXES, "label", "pod", name, "sandman.dev/state=ended", "--overwrite", DRY
    )


def test_only_sandman_and_replicasets_make_pool_pods(bed: Bed) -> None:
    create_refused(
        bed, SOMEBODY, pod(state=names.STATE_FREE), because="pool pods (label sandman.dev/pool)"
    )
    create(bed, REPLICASETS, pod(state=names.STATE_FREE), DRY)
    create(bed, MANAGER, pod(state=names.STATE_FREE), DRY)
    create(bed, GATEWAY, pod(state=names.STATE_FREE), DRY)
    create(bed, GATEWAY, pod(state=names.STATE_LEASED, tenant="demo"), DRY)
    create(bed, SOMEBODY, pod(bare=True), DRY)


@pytest.mark.parametrize("user", [SOMEBODY, REPLICASETS])
@pytest.mark.parametrize(
    "labels", [{"state": "leased"}, {"state": "reserved"}, {"tenant": "demo"}, {"run": "r"}]
)
def test_nobody_makes_a_pod_that_looks_leased(bed: Bed, user: str, labels: dict[str, str]) -> None:
    value = pod(bare=user == SOMEBODY, **labels)
    create_refused(
        bed, user, value, because="a new pod may not carry the state of a leased sandbox"
    )


@pytest.mark.parametrize("annotation", ["lease", "claim", "request", "ended"])
def test_nor_with_annotations(bed: Bed, annotation: str) -> None:
    value = pod(state=names.STATE_FREE)
    value["metadata"]["annotations"][f"{names.DOMAIN}/{annotation}"] = "{}"
    create_refused(bed, REPLICASETS, value, because="may not carry the state of a leased sandbox")


# --- require-injection --------------------------------------------------------------------------


def without(path: str) -> dict[str, Any]:
    """The pod without one part of what the webhook puts in."""
    value = pod(state=names.STATE_FREE)
    at, last = _reach(value, path)
    del at[last]
    return value


def changed(path: str, to: Any) -> dict[str, Any]:
    """The pod with one part of what the webhook puts in made into something else."""
    value = pod(state=names.STATE_FREE)
    at, last = _reach(value, path)
    at[last] = to
    return value


def _reach(value: Any, path: str) -> tuple[Any, Any]:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(" ")]
    for parent in parents:
        value = value[parent]
    return value, last


@pytest.mark.parametrize(
    ("value", "because"),
    [
        (without("spec containers 0 volumeMounts"), "without the daemon's volume"),
        (changed("spec containers 0 volumeMounts 0 mountPath", "/x"), "without the daemon's volume"),
        (changed("spec volumes 0", {"name": "sandman", "configMap": {"name": "x"}}), "without the daemon's volume"),
        (without("spec containers 0 command"), "does not start the daemon"),
        (changed("spec containers 0 command", ["/bin/sh"]), "does not start the daemon"),
        (without("spec containers 0 env"), "without SANDMAN_TOKEN_SHA256"),
        (changed("spec containers 0 env 0 value", "short"), "without SANDMAN_TOKEN_SHA256"),
        (without("metadata annotations"), "without nonce and key id"),
        (without("metadata annotations sandman.dev/nonce"), "without nonce and key id"),
        (without("metadata annotations sandman.dev/key-id"), "without nonce and key id"),
        (without("spec restartPolicy"), "restartPolicy other than Never"),
        (changed("spec restartPolicy", "Always"), "restartPolicy other than Never"),
        (without("spec automountServiceAccountToken"), "with a ServiceAccount token"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("user", [GATEWAY, REPLICASETS])
def test_a_pool_pod_that_was_not_injected_is_refused(
    bed: Bed, user: str, value: dict[str, Any], because: str
) -> None:
    create_refused(bed, user, value, because=because)


def test_not_even_an_administrator_makes_one(bed: Bed) -> None:
    value = without("spec containers 0 command")
    with pytest.raises(BedError, match="does not start the daemon"):
        kubectl(bed, "create", "-f", "-", DRY, input=json.dumps(value))


def test_the_webhook_makes_what_the_policy_asks_for(bed: Bed) -> None:
    value = pod(bare=True, pool="root", state=names.STATE_FREE, inject=names.INJECT_POOL)
    made = json.loads(create(bed, GATEWAY, value, DRY, "-o", "json"))
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["spec"]["containers"][0]["command"][0] == names.DAEMON_COMMAND[0]


# --- rights -------------------------------------------------------------------------------------

Right = tuple[str, str, str, str]
"""Verb, resource (with group and subresource), namespace, name."""

GATEWAY_MAY: list[Right] = [
    *[(verb, "pods", SANDBOXES, "") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[(verb, "events", SANDBOXES, "") for verb in ("get", "list", "watch")],
    *[(verb, "deployments.apps", SANDBOXES, "") for verb in ("get", "list", "watch")],
    ("patch", "deployments.apps/scale", SANDBOXES, ""),
    *[(verb, "nodes", "", "") for verb in ("get", "list", "watch")],
    *[(verb, "leases.coordination.k8s.io", SYSTEM, names.ALLOCATOR_LEASE) for verb in ("get", "patch")],
    ("create", "leases.coordination.k8s.io", SYSTEM, ""),
    *[
        (verb, "secrets", SYSTEM, name)
        for verb in ("get", "list", "watch")
        for name in (names.KEYS_SECRET, names.API_KEYS_SECRET, names.GATEWAY_TLS_SECRET)
    ],
    ("update", "secrets", SYSTEM, names.GATEWAY_TLS_SECRET),
]  # fmt: skip
GATEWAY_MAY_NOT: list[Right] = [
    ("create", "pods/exec", SANDBOXES, ""),
    ("get", "pods/log", SANDBOXES, ""),
    ("update", "pods", SANDBOXES, ""),
    ("deletecollection", "pods", SANDBOXES, ""),
    ("patch", "deployments.apps", SANDBOXES, ""),
    ("delete", "deployments.apps", SANDBOXES, ""),
    ("get", "secrets", SANDBOXES, ""),
    *[(verb, "pods", "default", "") for verb in ("get", "list", "create", "delete")],
    *[(verb, "pods", SYSTEM, "") for verb in ("get", "list", "create", "delete")],
    ("list", "secrets", SYSTEM, ""),
    ("get", "secrets", SYSTEM, names.WEBHOOK_TLS_SECRET),
    ("update", "secrets", SYSTEM, names.KEYS_SECRET),
    ("update", "secrets", SYSTEM, names.API_KEYS_SECRET),
    ("create", "secrets", SYSTEM, ""),
    ("delete", "leases.coordination.k8s.io", SYSTEM, names.ALLOCATOR_LEASE),
    ("patch", "leases.coordination.k8s.io", SYSTEM, "another"),
    ("patch", "nodes", "", ""),
    ("create", "serviceaccounts/token", SYSTEM, ""),
    ("create", "tokenreviews.authentication.k8s.io", "", ""),
    ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "", names.WEBHOOK_CONFIGURATION),
]  # fmt: skip
CONFIGURATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
WEBHOOK_MAY: list[Right] = [
    *[
        (verb, "secrets", SYSTEM, name)
        for verb in ("get", "watch", "update")
        for name in (names.KEYS_SECRET, names.WEBHOOK_TLS_SECRET)
    ],
    *[
        (verb, CONFIGURATIONS, "", names.WEBHOOK_CONFIGURATION)
        for verb in ("get", "watch", "patch")
    ],
]
WEBHOOK_MAY_NOT: list[Right] = [
    *[(verb, "pods", SANDBOXES, "") for verb in ("get", "list", "create", "patch", "delete")],
    *[(verb, "pods", SYSTEM, "") for verb in ("get", "list", "create", "delete")],
    ("get", "secrets", SYSTEM, names.API_KEYS_SECRET),
    ("get", "secrets", SYSTEM, names.GATEWAY_TLS_SECRET),
    ("list", "secrets", SYSTEM, ""),
    ("delete", "secrets", SYSTEM, names.KEYS_SECRET),
    ("get", CONFIGURATIONS, "", "another"),
    ("patch", CONFIGURATIONS, "", "another"),
    ("delete", CONFIGURATIONS, "", names.WEBHOOK_CONFIGURATION),
    ("create", CONFIGURATIONS, "", ""),
    ("get", "nodes", "", ""),
]
POOL_ACCOUNT = f"system:serviceaccount:{SANDBOXES}:default"
POOL_MAY_NOT: list[Right] = [
    (verb, resource, SANDBOXES, "")
    for resource in ("pods", "secrets", "events", "deployments.apps", "pods/exec")
    for verb in ("get", "list", "create", "patch", "delete")
]


def review(user: str, right: Right) -> dict[str, Any]:
    verb, resource, namespace, name = right
    resource, _, subresource = resource.partition("/")
    resource, _, group = resource.partition(".")
    asked = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
    asked |= {"namespace": namespace, "name": name}
    account = user.split(":")
    groups = [
        "system:authenticated",
        "system:serviceaccounts",
        f"system:serviceaccounts:{account[2]}",
    ]
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": asked},
    }


@pytest.mark.parametrize(
    ("user", "may", "may_not"),
    [
        (GATEWAY, GATEWAY_MAY, GATEWAY_MAY_NOT),
        (WEBHOOK, WEBHOOK_MAY, WEBHOOK_MAY_NOT),
        (POOL_ACCOUNT, [], POOL_MAY_NOT),
    ],
)
def test_rights(bed: Bed, user: str, may: list[Right], may_not: list[Right]) -> None:
    rights = [*may, *may_not]
    reviews = [review(user, right) for right in rights]
    asked = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    verdict = 'jsonpath={.status.allowed}{"\\n"}'
    granted = kubectl(bed, "create", "-f", "-", "-o", verdict, input=asked).split()
    assert [right for right, yes in zip(rights, granted, strict=True) if yes == "true"] == may


# --- pod security, quota, applying again --------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "because"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"hostPID": True}, "host namespaces"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "hostPath"),
    ],
)
def test_nobody_gets_the_host(bed: Bed, part: dict[str, Any], because: str) -> None:
    value = pod(bare=True)
    value["spec"] |= part
    create_refused(bed, GATEWAY, value, because=because)
    with pytest.raises(BedError, match=because):
        kubectl(bed, "create", "-f", "-", DRY, input=json.dumps(value))


def test_no_privileged_container_and_nothing_unrestricted_beside_the_gateway(bed: Bed) -> None:
    value = pod(bare=True)
    value["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    create_refused(bed, GATEWAY, value, because="privileged")
    value = pod(bare=True)
    value["metadata"]["namespace"] = SYSTEM
    with pytest.raises(BedError, match='violates PodSecurity "restricted'):
        kubectl(bed, "create", "-f", "-", DRY, input=json.dumps(value))


def test_quota_stops_a_flood(bed: Bed) -> None:
    quota = ["resourcequota", "sandman-pods", "-n", SANDBOXES]
    usual = json.loads(kubectl(bed, "get", *quota, "-o", "json"))["spec"]["hard"]
    assert set(usual) == {"count/pods"}
    try:
        kubectl(bed, "patch", *quota, "--type=merge", "-p", '{"spec":{"hard":{"count/pods":"1"}}}')
        create_refused(bed, GATEWAY, pod(bare=True), because="exceeded quota: sandman-pods")
    finally:
        patch = json.dumps({"spec": {"hard": usual}})
        kubectl(bed, "patch", *quota, "--type=merge", "-p", patch)


def test_applying_again_changes_nothing(bed: Bed, installation: install.Installation) -> None:
    assert kubectl(bed, "diff", "-k", str(installation.manifests)) == ""
    before = secrets(bed)
    again = install.install(bed)
    assert again == installation
    assert secrets(bed) == before
    assert all(before[name] for name in before), "a program has not filled its Secret"


def secrets(bed: Bed) -> dict[str, Any]:
    text = kubectl(bed, "get", "secrets", "-n", SYSTEM, "-o", "json")
    return {item["metadata"]["name"]: item.get("data") for item in json.loads(text)["items"]}


def test_policies_have_no_type_errors(bed: Bed) -> None:
    """The controller manager reads the expressions with the types of what they are about."""
    items = json.loads(kubectl(bed, "get", "validatingadmissionpolicies", "-o", "json"))["items"]
    ours = [item for item in items if item["metadata"]["name"].startswith("sandman-")]
    assert len(ours) == 3
    for item in ours:
        checked = item.get("status", {}).get("typeChecking")
        assert checked is not None
        assert checked.get("expressionWarnings") is None


# --- network ------------------------------------------------------------------------------------

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
except OSError as error:
    print(error)
else:
    print("connected")
"""
PUBLIC = "192.0.2.1"
"""Stands for the internet: an address of this machine from a range that is nobody's."""
API = ("10.96.0.1", 443)
METADATA = ("169.254.169.254", 80)


class Net:
    """Pods that try to connect, and where they try to."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.addresses: dict[str, str] = {}
        self.namespaces: dict[str, str] = {}

    def start(self, name: str, namespace: str, labels: dict[str, str], **spec: Any) -> None:
        image = reference(self.bed, "python")
        container = {"name": "sandbox", "image": image, "command": ["sleep", "3600"]}
        container |= spec.pop("container", {})
        defaults = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        value = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {**defaults, **spec, "containers": [container]},
        }
        kubectl(self.bed, "create", "-f", "-", input=json.dumps(value))
        self.namespaces[name] = namespace

    def wait(self) -> None:
        for name, namespace in self.namespaces.items():
            kubectl(
                self.bed, "wait", "pod", name, "-n", namespace, "--for=condition=Ready", "--timeout=90s"
            )  # fmt: skip
            pod = json.loads(kubectl(self.bed, "get", "pod", name, "-n", namespace, "-o", "json"))
            self.addresses[name] = pod["status"]["podIP"]

    def tries(self, who: str, where: tuple[str, int]) -> str:
        """`connected`, or why not."""
        python = ["python3", "-c", CONNECT, where[0], str(where[1])]
        if who == "gateway":
            pod = ["deployment/sandman-gateway", "-n", SYSTEM]
        else:
            pod = [who, "-n", self.namespaces[who]]
        return kubectl(self.bed, "exec", *pod, "--", *python).strip()

    def daemon(self, of: str) -> tuple[str, int]:
        return self.addresses[of], names.DAEMON_PORT


@pytest.fixture(scope="module")
def net(bed: Bed) -> Iterator[Net]:
    made = Net(bed)
    pool = {names.LABEL_POOL: "test", names.LABEL_STATE: names.STATE_ENDED}
    pool |= {names.LABEL_INJECT: names.INJECT_POOL}
    closed, opened = {names.LABEL_NETWORK: "none"}, {names.LABEL_NETWORK: "open"}
    like_gateway = {"app.kubernetes.io/name": "sandman-gateway"}
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    made.start("test-closed", SANDBOXES, pool | closed)
    made.start("test-open", SANDBOXES, pool | opened)
    made.start("test-outside", "default", like_gateway)
    made.start(
        "test-beside", SYSTEM, {}, securityContext=restricted, container={"securityContext": limits}
    )
    run(["ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"])
    try:
        with socket.create_server((PUBLIC, 0)) as server:
            made.wait()
            made.addresses["public"] = str(server.getsockname()[1])
            yield made
    finally:
        run(["ip", "address", "delete", f"{PUBLIC}/32", "dev", "lo"])
        for name, namespace in made.namespaces.items():
            kubectl(bed, "delete", "pod", name, "-n", namespace, "--wait=false")


def settled(net: Net, who: str, where: tuple[str, int], *, connects: bool) -> None:
    """The network plugin takes a moment for a new pod; then its answer must stay."""
    wait_until(
        f"{who} to {where}: {'connects' if connects else 'does not connect'}",
        lambda: (net.tries(who, where) == "connected") == connects,
        30,
        0.5,
    )
    assert (net.tries(who, where) == "connected") == connects


def test_gateways_alone_reach_daemons(bed: Bed, net: Net) -> None:
    settled(net, "gateway", net.daemon("test-closed"), connects=True)
    # Not by the label alone, and not by the namespace alone.
    settled(net, "test-outside", net.daemon("test-closed"), connects=False)
    settled(net, "test-beside", net.daemon("test-closed"), connects=False)
    settled(net, "test-open", net.daemon("test-closed"), connects=False)
    # The network as such does carry them: the same two reach a port that is open to all.
    gateway = _address(bed, "sandman-gateway"), names.GATEWAY_PORT
    assert net.tries("test-outside", gateway) == "connected"
    assert net.tries("test-beside", gateway) == "connected"


def test_sandboxes_reach_nothing(bed: Bed, net: Net) -> None:
    places = {
        "API server": API,
        "node": (bed.node_ip, 6443),
        "metadata": METADATA,
        "gateway": (_address(bed, "sandman-gateway"), names.GATEWAY_PORT),
        "webhook": (_address(bed, "sandman-webhook"), names.WEBHOOK_PORT),
        "another": net.daemon("test-open"),
        "public": (PUBLIC, int(net.addresses["public"])),
    }
    for where in places.values():
        settled(net, "test-closed", where, connects=False)
    assert net.tries("test-outside", places["API server"]) == "connected"


def test_open_sandboxes_reach_public_addresses_and_nothing_else(bed: Bed, net: Net) -> None:
    settled(net, "test-open", (PUBLIC, int(net.addresses["public"])), connects=True)
    for where in (
        API,
        METADATA,
        (bed.node_ip, 6443),
        (_address(bed, "sandman-gateway"), names.GATEWAY_PORT),
        net.daemon("test-closed"),
    ):
        settled(net, "test-open", where, connects=False)


def _address(bed: Bed, name: str) -> str:
    label = f"app.kubernetes.io/name={name}"
    output = "jsonpath={.items[0].status.podIP}"
    return kubectl(bed, "get", "pods", "-n", SYSTEM, "-l", label, "-o", output)
