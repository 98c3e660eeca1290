"""The manifests say what the programs say: the same names, and the rules that every object keeps.

The YAML is read as it is, without kustomize, so that these tests need no other program.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import profiles, sizing
from gateway.choice import DEFAULT_POOL
from gateway.config import PREFIX as GATEWAY_PREFIX
from gateway.config import Settings
from gateway.model import Purpose
from sandman import names
from sandman.version import __version__
from webhook.config import PREFIX as WEBHOOK_PREFIX
from webhook.config import Config

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
GATEWAY_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"


@dataclass(frozen=True)
class Manifest:
    file: Path
    value: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.value['kind']}-{self.value.get('metadata', {}).get('name', self.file.stem)}"


def _read() -> list[Manifest]:
    found = []
    for file in sorted(MANIFESTS.rglob("*.yaml")):
        found += [Manifest(file, value) for value in yaml.safe_load_all(file.read_text()) if value]
    return found


ALL = _read()
OBJECTS = [one for one in ALL if "kind" in one.value and "kustomize" not in one.value["apiVersion"]]


def of_kind(*kinds: str) -> list[Manifest]:
    return [one for one in OBJECTS if one.value["kind"] in kinds]


def get(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one.value for one in of_kind(kind) if one.value["metadata"]["name"] == name]
    return found


DEPLOYMENTS = of_kind("Deployment")
POOLS = [one for one in DEPLOYMENTS if names.LABEL_POOL in one.value["metadata"]["labels"]]
SERVICES = [one for one in DEPLOYMENTS if one not in POOLS]
EVALUATIONS = [
    one for one in POOLS if names.ANNOTATION_POOL_PURPOSE in one.value["metadata"]["annotations"]
]
OTHER_RUNTIMES = [one for one in POOLS if "components" in one.file.parts and one not in EVALUATIONS]
"""Pools that name a runtime class; nobody has shown that an image can be mounted, or a pod resized, there."""


def container(deployment: Manifest) -> dict[str, Any]:
    (only,) = deployment.value["spec"]["template"]["spec"]["containers"]
    return only


# --- every object -------------------------------------------------------------------------------


def test_objects_are_found() -> None:
    assert len(POOLS) == 6
    assert len(EVALUATIONS) == 1
    assert {one.value["metadata"]["name"] for one in SERVICES} == {
        "sandman-gateway",
        "sandman-webhook",
    }


@pytest.mark.parametrize("one", OBJECTS, ids=str)
def test_labelled_and_in_a_namespace_of_ours(one: Manifest) -> None:
    metadata = one.value["metadata"]
    if metadata["name"] != names.WEBHOOK_CONFIGURATION or one.value["kind"] == "Deployment":
        assert metadata.get("labels", {}).get("app.kubernetes.io/part-of") == "sandman"
    assert metadata.get("namespace") in (None, names.SYSTEM_NAMESPACE, names.SANDBOX_NAMESPACE)


def test_every_file_is_listed() -> None:
    for kustomization in MANIFESTS.rglob("kustomization.yaml"):
        listed = yaml.safe_load(kustomization.read_text())
        used = {*listed.get("resources", ()), *listed.get("configurations", ())}
        for file in kustomization.parent.rglob("*.yaml"):
            nearest = next(p for p in file.parents if (p / "kustomization.yaml").exists())
            if file != kustomization and nearest == kustomization.parent:
                assert str(file.relative_to(kustomization.parent)) in used, file


def test_what_judges_pods_comes_before_what_makes_them() -> None:
    base = yaml.safe_load((MANIFESTS / "base" / "kustomization.yaml").read_text())
    order = base["resources"]
    judges = [i for i, name in enumerate(order) if "polic" in name or "webhook-conf" in name]
    assert max(judges) < min(order.index(name) for name in ("webhook", "gateway", "pools"))
    assert order[-1] == "pools"
    for kustomization in MANIFESTS.glob("**/kustomization.yaml"):
        listed = yaml.safe_load(kustomization.read_text())
        if "images" in listed:
            assert listed["sortOptions"] == {"order": "fifo"}, kustomization


# --- names --------------------------------------------------------------------------------------


def test_namespaces() -> None:
    system = get("Namespace", names.SYSTEM_NAMESPACE)["metadata"]["labels"]
    assert system["pod-security.kubernetes.io/enforce"] == "restricted"
    assert names.LABEL_INJECT not in system
    sandboxes = get("Namespace", names.SANDBOX_NAMESPACE)["metadata"]["labels"]
    assert sandboxes["pod-security.kubernetes.io/enforce"] == "baseline"
    assert sandboxes[names.LABEL_INJECT] == names.INJECT_NAMESPACE_ENABLED


def test_secrets_are_empty_so_that_applying_again_erases_nothing() -> None:
    secrets = of_kind("Secret")
    assert {one.value["metadata"]["name"] for one in secrets} == {
        names.KEYS_SECRET,
        names.API_KEYS_SECRET,
        names.GATEWAY_TLS_SECRET,
        names.WEBHOOK_TLS_SECRET,
    }
    for one in secrets:
        assert not {"data", "stringData", "immutable"} & set(one.value)
        assert one.value["metadata"]["namespace"] == names.SYSTEM_NAMESPACE


def test_callers_are_empty_too() -> None:
    config = get("ConfigMap", names.CALLERS_CONFIG)
    assert not {"data", "binaryData", "immutable"} & set(config)
    assert config["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    (rule,) = [
        rule
        for one in of_kind("Role")
        for rule in one.value["rules"]
        if "configmaps" in rule["resources"]
    ]
    assert rule["resourceNames"] == [names.CALLERS_CONFIG]
    assert rule["verbs"] == ["get", "list", "watch"]


def test_ports() -> None:
    for name, port in (
        ("sandman-gateway", names.GATEWAY_PORT),
        ("sandman-webhook", names.WEBHOOK_PORT),
    ):
        (deployment,) = [one for one in SERVICES if one.value["metadata"]["name"] == name]
        assert container(deployment)["ports"] == [{"name": "https", "containerPort": port}]
        (service_port,) = get("Service", name)["spec"]["ports"]
        assert (service_port["port"], service_port["targetPort"]) == (443, "https")
        (rule,) = get("NetworkPolicy", name)["spec"]["ingress"]
        assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    (rule,) = get("NetworkPolicy", "sandman-gateway-to-daemon")["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": names.DAEMON_PORT}]


ENTRIES = {
    "pods.sandman.dev": ("Fail", 3, names.INJECT_NAMESPACE_ENABLED, names.INJECT_POOL),
    "workloads.sandman.dev": (
        "Ignore",
        2,
        names.INJECT_NAMESPACE_WORKLOADS,
        names.INJECT_WORKLOAD,
    ),
}
CONTROL_PLANE = {"kube-system", "kube-public", "kube-node-lease", names.SYSTEM_NAMESPACE}


@pytest.mark.parametrize("entry", ENTRIES)
def test_webhook_configuration_matches_the_namespaces_and_pods_that_the_rest_speaks_of(
    entry: str,
) -> None:
    hooks = get("MutatingWebhookConfiguration", names.WEBHOOK_CONFIGURATION)["webhooks"]
    assert [one["name"] for one in hooks] == list(ENTRIES)
    (hook,) = [one for one in hooks if one["name"] == entry]
    policy, timeout, namespace, pod = ENTRIES[entry]
    service = hook["clientConfig"]["service"]
    assert (service["namespace"], service["name"]) == (names.SYSTEM_NAMESPACE, Config("x").service)
    assert service["path"] == hooks[0]["clientConfig"]["service"]["path"]
    assert "caBundle" not in hook["clientConfig"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == (policy, timeout)
    assert (hook["reinvocationPolicy"], hook["sideEffects"]) == ("IfNeeded", "None")
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    opted_in, own = hook["namespaceSelector"]["matchExpressions"]
    assert opted_in == {"key": names.LABEL_INJECT, "operator": "In", "values": [namespace]}
    assert (own["operator"], set(own["values"])) == ("NotIn", CONTROL_PLANE)
    (asked,) = hook["objectSelector"]["matchExpressions"]
    assert asked == {"key": names.LABEL_INJECT, "operator": "In", "values": [pod]}
    (condition,) = hook["matchConditions"]
    assert "config.mirror" in condition["expression"]


def test_settings_in_the_environment_are_settings_of_the_programs() -> None:
    by_name = {one.value["metadata"]["name"]: container(one)["env"] for one in SERVICES}
    known = {GATEWAY_PREFIX + name.upper() for name in Settings.__dataclass_fields__}
    assert {entry["name"] for entry in by_name["sandman-gateway"]} <= known
    known = {WEBHOOK_PREFIX + name.upper() for name in Config.__dataclass_fields__}
    assert {entry["name"] for entry in by_name["sandman-webhook"]} <= known
    given = {e["name"]: e["value"] for e in by_name["sandman-gateway"] if "value" in e}
    assert Settings.from_env(given) == Settings(sandbox_namespaces=(names.SANDBOX_NAMESPACE,))


def test_programs_name_their_services_as_they_are_called() -> None:
    webhook = Config(daemon_image="x")
    assert get("Service", webhook.service)["metadata"]["namespace"] == webhook.namespace
    service = get("Service", "sandman-gateway")["metadata"]
    assert Settings().server_name == f"{service['name']}.{service['namespace']}.svc"


# --- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", DEPLOYMENTS, ids=str)
def test_images_have_a_version_and_are_replaceable_by_name(one: Manifest) -> None:
    used = [container(one)["image"]]
    used += [e["value"] for e in container(one).get("env", ()) if e["name"].endswith("_IMAGE")]
    listed = {
        image["name"]: image.get("newTag")
        for image in yaml.safe_load((MANIFESTS / "base/kustomization.yaml").read_text())["images"]
    }
    for image in used:
        name, _, tag = image.partition(":")
        assert tag in ("", __version__)
        assert listed[name] == __version__
    assert container(one)["imagePullPolicy"] == "IfNotPresent"


def test_no_image_is_called_latest() -> None:
    for file in MANIFESTS.rglob("*.yaml"):
        assert ":latest" not in file.read_text(), file


# --- what every pod keeps to --------------------------------------------------------------------


@pytest.mark.parametrize("one", DEPLOYMENTS, ids=str)
def test_resources_are_bounded(one: Manifest) -> None:
    resources = container(one)["resources"]
    assert {"cpu", "memory"} <= set(resources["requests"])
    assert "memory" in resources["limits"]
    if one in EVALUATIONS:
        return
    # Burstable, so that a later resize may change either without changing the QoS class.
    assert resources["requests"] != resources["limits"]


@pytest.mark.parametrize("one", EVALUATIONS, ids=str)
def test_a_pool_for_evaluations_gives_all_that_it_promises(one: Manifest) -> None:
    """Guaranteed, with whole cpus: without either no kubelet gives exclusive ones."""
    resources = container(one)["resources"]
    assert resources["requests"] == resources["limits"]
    bounds = sizing.of_template(one.value["spec"]["template"])
    assert bounds.limits.cpu is not None
    assert bounds.limits.cpu % 1000 == 0
    assert bounds.limits.memory is not None
    annotations = one.value["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_POOL_PURPOSE] == Purpose.EVAL
    assert annotations[names.ANNOTATION_POOL_CHOOSE] == "true"
    assert one.value["spec"]["template"]["spec"]["hostname"] == "sandbox"


@pytest.mark.parametrize("one", SERVICES, ids=str)
def test_services_are_restricted_and_stay_available(one: Manifest) -> None:
    pod = one.value["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(one)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # Or the Service of the program's own name becomes a setting that the program refuses.
    assert pod["enableServiceLinks"] is False
    assert one.value["spec"]["replicas"] == 2
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(one)[probe]["httpGet"]["scheme"] == "HTTPS"
    assert container(one)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    budget = get("PodDisruptionBudget", one.value["metadata"]["name"])
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"] == one.value["spec"]["selector"]


def test_grace_periods_leave_room_for_what_the_programs_do_with_them() -> None:
    grace = {
        one.value["metadata"]["name"]: (
            one.value["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            - container(one)["lifecycle"]["preStop"]["sleep"]["seconds"]
        )
        for one in SERVICES
    }
    assert grace["sandman-gateway"] > Settings().lame_duck_s + Settings().grace_s
    assert grace["sandman-webhook"] > Config(daemon_image="x").drain_s


@pytest.mark.parametrize("one", POOLS, ids=str)
def test_pools_are_what_the_gateway_takes_for_pools(one: Manifest) -> None:
    metadata, spec = one.value["metadata"], one.value["spec"]
    pool = metadata["labels"][names.LABEL_POOL]
    assert metadata["name"] == f"sandman-pool-{pool}"
    assert int(metadata["annotations"][names.ANNOTATION_POOL_MAX]) > 0
    assert metadata["annotations"][names.ANNOTATION_POOL_SWAP] == "true"
    assert spec["selector"] == {
        "matchLabels": {names.LABEL_POOL: pool, names.LABEL_STATE: names.STATE_FREE}
    }
    labels = spec["template"]["metadata"]["labels"]
    assert labels == {
        "app.kubernetes.io/part-of": "sandman",
        names.LABEL_POOL: pool,
        names.LABEL_STATE: names.STATE_FREE,
        names.LABEL_INJECT: names.INJECT_POOL,
        names.LABEL_NETWORK: "none",
    }
    annotations = spec["template"]["metadata"]["annotations"]
    by_copy = {names.ANNOTATION_DELIVERY: names.DELIVERY_INIT} if one in OTHER_RUNTIMES else {}
    assert annotations == {names.ANNOTATION_SAFE_TO_EVICT: "true", **by_copy}


@pytest.mark.parametrize("one", POOLS, ids=str)
def test_pool_pods_hold_no_credentials_and_end_at_once(one: Manifest) -> None:
    pod = one.value["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] == 1
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod)
    is_root = one.value["metadata"]["name"].endswith("-root")
    if not is_root and one not in OTHER_RUNTIMES + EVALUATIONS:
        assert pod["securityContext"]["runAsNonRoot"] is True
        security = container(one)["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


# --- rights -------------------------------------------------------------------------------------

ROLES = of_kind("Role", "ClusterRole")


@pytest.mark.parametrize("one", ROLES, ids=str)
def test_rights_are_named_one_by_one(one: Manifest) -> None:
    for rule in one.value["rules"]:
        for field in ("verbs", "resources", "apiGroups"):
            assert "*" not in rule[field]
        if "secrets" in rule["resources"]:
            # A create cannot be limited to names; then an admission policy does it.
            assert rule.get("resourceNames") or (
                rule["verbs"] == ["create"]
                and one.value["metadata"]["name"] == "sandman-webhook"
                and get("ValidatingAdmissionPolicy", "sandman-webhook-secrets")
            )
        forbidden = {"escalate", "bind", "impersonate", "deletecollection"}
        assert not forbidden & set(rule["verbs"])
        assert not {r for r in rule["resources"] if re.match(r"pods/(exec|attach|portforward)", r)}


def test_each_account_has_its_own_roles_and_no_other() -> None:
    for one in of_kind("RoleBinding", "ClusterRoleBinding"):
        (subject,) = one.value["subjects"]
        assert subject["kind"] == "ServiceAccount"
        assert subject["namespace"] == names.SYSTEM_NAMESPACE
        assert subject["name"] == one.value["roleRef"]["name"] == one.value["metadata"]["name"]


def test_only_the_webhook_may_write_keys() -> None:
    writers = [
        (one.value["metadata"]["name"], rule["resourceNames"])
        for one in ROLES
        for rule in one.value["rules"]
        if "secrets" in rule["resources"] and "update" in rule["verbs"]
    ]
    assert sorted(writers) == [
        ("sandman-gateway", [names.GATEWAY_TLS_SECRET]),
        ("sandman-webhook", [names.KEYS_SECRET, names.WEBHOOK_TLS_SECRET]),
    ]


def test_only_the_gateway_may_write_leases() -> None:
    """The names of runs' Leases and of reservations are not known beforehand, so that no rule can name them:
    they are where the allocator's lock is not, which nobody needs to delete."""
    rights = [
        (
            one.value["metadata"]["name"],
            one.value["metadata"].get("namespace"),
            rule.get("resourceNames"),
            set(rule["verbs"]),
        )
        for one in ROLES
        for rule in one.value["rules"]
        if "leases" in rule["resources"]
    ]
    verbs = {"get", "list", "watch", "create", "patch", "delete"}
    assert rights == [
        ("sandman-gateway", names.SYSTEM_NAMESPACE, [names.ALLOCATOR_LEASE], {"get", "patch"}),
        ("sandman-gateway", names.SYSTEM_NAMESPACE, None, {"create"}),
        ("sandman-gateway", names.SANDBOX_NAMESPACE, None, verbs),
    ]


def test_in_the_whole_cluster_the_gateway_sees_nodes_and_asks_who_may() -> None:
    """And of users' workloads it reads the pods, where somebody has bound that: it is bound nowhere here."""
    rules = {
        one.value["metadata"]["name"]: [
            (rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in one.value["rules"]
        ]
        for one in of_kind("ClusterRole")
    }
    read = ["get", "list", "watch"]
    assert rules["sandman-gateway"] == [
        ([""], ["nodes"], read),
        (["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        (["authentication.k8s.io"], ["tokenreviews"], ["create"]),
    ]
    assert rules["sandman-workloads"] == [([""], ["pods"], read)]
    bound = {one.value["roleRef"]["name"] for one in of_kind("RoleBinding", "ClusterRoleBinding")}
    assert "sandman-workloads" not in bound


def test_of_jobs_nothing_but_that_they_are_there_is_asked() -> None:
    rights = [
        (one.value["metadata"]["name"], one.value["metadata"].get("namespace"), rule["verbs"])
        for one in ROLES
        for rule in one.value["rules"]
        if "jobs" in rule["resources"]
    ]
    assert rights == [("sandman-gateway", names.SANDBOX_NAMESPACE, ["get"])]


def test_of_network_policies_nothing_but_a_list_is_asked() -> None:
    found = [
        rule
        for one in ROLES
        for rule in one.value["rules"]
        if "networkpolicies" in rule["resources"]
    ]
    # Who could write one could open what he likes.
    assert [rule["verbs"] for rule in found] == [["list"]]


PROFILES = [
    one
    for one in of_kind("NetworkPolicy")
    if names.LABEL_PROFILE in one.value["metadata"]["labels"]
]


def test_egress_profiles_are_what_the_gateway_takes_for_profiles() -> None:
    known = profiles.of_policies(one.value for one in PROFILES)
    assert set(known) == {"none", "open", "model"}
    # `open` is nobody's before an operator names a canary that his cluster reaches.
    assert names.ANNOTATION_CANARY in known["open"].fault
    assert not known["model"].fault
    for one in PROFILES:
        assert one.value["spec"]["policyTypes"] == ["Egress"]
        # Not a pod that somebody labelled by hand.
        assert one.value["spec"]["podSelector"]["matchExpressions"] == [
            {"key": names.LABEL_POOL, "operator": "Exists"}
        ]


def test_the_profile_for_a_model_opens_its_address_alone() -> None:
    [rule] = get("NetworkPolicy", "sandman-network-model")["spec"]["egress"]
    [peer], [port] = rule["to"], rule["ports"]
    assert ipaddress.ip_network(peer["ipBlock"]["cidr"]).num_addresses == 1
    assert port["protocol"] == "TCP"


@pytest.mark.parametrize("one", POOLS, ids=str)
def test_a_question_for_a_name_that_nobody_answers_ends_soon(one: Manifest) -> None:
    pod = one.value["spec"]["template"]["spec"]
    options = {option["name"]: int(option["value"]) for option in pod["dnsConfig"]["options"]}
    assert pod["dnsPolicy"] == "ClusterFirst"
    assert options["timeout"] * options["attempts"] <= 2
    assert options["ndots"] == 1


def test_what_the_gateway_writes_to_pods_it_may_write() -> None:
    """Claim, creation, release; and the resize, which is a right of its own."""
    [role] = [
        one.value
        for one in ROLES
        if one.value["metadata"].get("namespace") == names.SANDBOX_NAMESPACE
    ]
    rights = {
        (verb, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if resource.startswith("pods")
    }
    assert rights == {
        *((verb, "pods") for verb in ("get", "list", "watch", "create", "patch", "delete")),
        ("patch", "pods/resize"),
    }


@pytest.mark.parametrize("one", [one for one in POOLS if one not in OTHER_RUNTIMES], ids=str)
def test_pools_whose_sandboxes_are_resized_keep_their_qos_class(one: Manifest) -> None:
    annotations = one.value["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_POOL_RESIZE] == "true"
    bounds = sizing.of_template(one.value["spec"]["template"])
    assert None not in (*bounds.requests, *bounds.limits)
    # A policy of RestartContainer would start the daemon anew, and Never forbids it.
    assert "resizePolicy" not in container(one)
    is_offered = (
        one in EVALUATIONS or one.value["metadata"]["name"] == f"sandman-pool-{DEFAULT_POOL}"
    )
    assert annotations.get(names.ANNOTATION_POOL_CHOOSE) == ("true" if is_offered else None)


# --- locks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_by_hash_and_name_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    packages = re.split(r"\n(?=\S)", text.strip())
    assert len(packages) > 40
    for package in packages:
        assert re.match(r"[a-z0-9.-]+==\S+", package), package
        assert "--hash=sha256:" in package, package
