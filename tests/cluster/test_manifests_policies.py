"""The admission policies on a real API server: what each refuses, and what it lets through."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster.bed import BedError, kubectl
from tests.cluster.bed.shell import wait_until
from tests.cluster.judged import (
    COLLECTOR,
    DRY,
    GATEWAY,
    MANAGER,
    REPLICASETS,
    RIGHTS,
    SANDBOXES,
    SOMEBODY,
    WEBHOOK,
    as_user,
    create,
    create_refused,
    pod,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed import Bed
    from tests.cluster.deployed import Deployed


@pytest.fixture(scope="module", autouse=True)
def rights(sandman: Deployed) -> Iterator[None]:
    bed = sandman.bed
    kubectl(
        bed,
        "create",
        "role",
        RIGHTS,
        "-n",
        SANDBOXES,
        "--verb=*",
        "--resource=pods,pods/status,pods/binding",
    )
    binding = ["rolebinding", RIGHTS, "-n", SANDBOXES]
    kubectl(bed, "create", *binding, f"--role={RIGHTS}", f"--group={RIGHTS}")
    yield
    kubectl(bed, "delete", f"role/{RIGHTS}", f"rolebinding/{RIGHTS}", "-n", SANDBOXES)


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
        ("label", ["sandman.dev/network=open", "--overwrite"]),
        ("label", ["sandman.dev/network-"]),
        ("annotate", ["sandman.dev/nonce=known", "--overwrite"]),
        ("annotate", ["sandman.dev/lease={}"]),
        ("annotate", ["sandman.dev/key-id-"]),
    ],
)
@pytest.mark.parametrize("user", [SOMEBODY, WEBHOOK, REPLICASETS])
def test_nobody_else_changes_state(
    bed: Bed, stored: Any, user: str, kind: str, change: list[str]
) -> None:
    name = stored(pod(state=names.STATE_FREE, network=names.NETWORK_NONE))
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


@pytest.mark.parametrize("user", [SOMEBODY, REPLICASETS, MANAGER])
def test_nobody_makes_a_pod_with_a_network(bed: Bed, user: str) -> None:
    value = pod(bare=user == SOMEBODY, network="open")
    create_refused(bed, user, value, because="a new pod has no network")
    create(bed, GATEWAY, pod(state=names.STATE_LEASED, network="open"), DRY)


@pytest.mark.parametrize("annotation", ["lease", "claim", "request", "ended", "network-changed"])
def test_nor_with_annotations(bed: Bed, annotation: str) -> None:
    value = pod(state=names.STATE_FREE)
    value["metadata"]["annotations"][f"{names.DOMAIN}/{annotation}"] = "{}"
    create_refused(bed, REPLICASETS, value, because="may not carry the state of a leased sandbox")


# --- guard-subresources -------------------------------------------------------------------------

WAYS_ROUND = f"{BY_SANDMAN}, and never by way of pods/status or a binding"
FORGED = [("labels", "state"), ("labels", "network"), ("annotations", "lease")]


@pytest.mark.parametrize(("what", "key"), FORGED)
@pytest.mark.parametrize("value", ["mine", None])
def test_no_state_is_written_along_with_a_status(
    bed: Bed, stored: Any, what: str, key: str, value: str | None
) -> None:
    name = f"{names.DOMAIN}/{key}"
    there = pod(state=names.STATE_FREE, network=names.NETWORK_NONE)
    there["metadata"]["annotations"][f"{names.DOMAIN}/lease"] = "{}"
    patch = {"metadata": {what: {name: value}}, "status": {"message": "seen"}}
    refused(
        bed, SOMEBODY, "patch", "pod", stored(there), "--subresource=status", "-p",
        json.dumps(patch), DRY, because=f"{what} below sandman.dev/ {WAYS_ROUND}",
    )  # fmt: skip


def test_a_status_and_labels_of_others_are_written(bed: Bed, stored: Any) -> None:
    patch = {"metadata": {"labels": {"example.com/mine": "1"}}, "status": {"message": "seen"}}
    status = ("patch", "pod", stored(pod(state=names.STATE_FREE)), "--subresource=status")
    said = as_user(bed, SOMEBODY, *status, "-p", json.dumps(patch), DRY, "-o", "json")
    assert json.loads(said)["status"]["message"] == "seen"
    assert json.loads(said)["metadata"]["labels"]["example.com/mine"] == "1"


@pytest.mark.parametrize(("what", "key"), FORGED)
def test_no_state_comes_with_a_binding(bed: Bed, stored: Any, what: str, key: str) -> None:
    def bind(metadata: dict[str, Any]) -> tuple[list[str], str]:
        name = stored(pod(state=names.STATE_FREE))
        binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n"}}
        path = f"/api/v1/namespaces/{SANDBOXES}/pods/{name}/binding?dryRun=All"
        return ["create", "--raw", path, "-f", "-"], json.dumps(
            {**binding, "metadata": {"name": name, **metadata}}
        )

    forged, body = bind({what: {f"{names.DOMAIN}/{key}": "mine"}})
    refused(bed, SOMEBODY, *forged, because=f"{what} below sandman.dev/ {WAYS_ROUND}", input=body)
    honest, body = bind({what: {"example.com/mine": "1"}})
    assert json.loads(as_user(bed, SOMEBODY, *honest, input=body))["status"] == "Success"


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
        (
            changed("spec containers 0 command", [names.DAEMON_COMMAND[0], "-c", "1"]),
            "does not start the daemon",
        ),
        (changed("spec containers 0 args", ["x"]), "does not start the daemon"),
        (changed("spec containers 0 volumeMounts 0 readOnly", False), "without the daemon's volume"),
        (changed("spec containers 0 volumeMounts 0 subPath", "x"), "without the daemon's volume"),
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
