"""`sandman doctor`: each hop broken in turn, by a kubectl that answers for a whole installation."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from sandman import names
from sandman.cli.doctor import CHECKS
from sandman.doctor import admission, installed, rights, trial
from sandman.doctor.cluster import Cluster
from sandman.doctor.findings import Level
from sandman.service import pki

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BUNDLE = pki.make_ca("ca", NOW, 90).certificate


def deployment(name: str, ready: int = 2, **env: str) -> dict:
    containers = [{"image": "img", "env": [{"name": k, "value": v} for k, v in env.items()]}]
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 2, "template": {"spec": {"containers": containers}}},
        "status": {"readyReplicas": ready},
    }


def node(name: str, runtime: str = "containerd://2.1.4", arch: str = "amd64") -> dict:
    info = {"containerRuntimeVersion": runtime, "architecture": arch}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info}}


class Installation(Cluster):
    """A sound one; a test breaks what it is about."""

    def __init__(self) -> None:
        super().__init__()
        self.version = {"minor": "34", "gitVersion": "v1.34.4"}
        self.deployments = {name: deployment(name) for name in installed.PROGRAMS}
        self.hooks = [
            {"name": name, "clientConfig": {"caBundle": base64.b64encode(BUNDLE).decode()}}
            for name in ("pods.sandman.dev", "workloads.sandman.dev")
        ]
        self.readyz = "ok"
        self.not_after = (NOW + timedelta(days=60)).timestamp()
        self.more: dict[str, dict[str, str]] = {}
        self.namespaces = {"sandman-sandboxes": "enabled", "shop": "workloads"}
        self.nodes = [node("n1")]
        self.pods: list[dict] = []
        self.pools = [deployment("pool")]
        self.quotas = [
            {
                "metadata": {"name": "q"},
                "status": {"hard": {"count/pods": "100"}, "used": {"count/pods": "5"}},
            }
        ]
        self.forbidden: set[tuple[str, str]] = set()
        self.impersonates = True
        self.keeps_images = True
        self.injects = True
        self.left = ""
        self.refusal = ""
        self.made: dict[str, dict] = {}
        self.status: dict[str, dict] = {}
        self.deleted: list[str] = []

    # What kubectl would answer, by its arguments.
    def _call(self, arguments, stdin):
        try:
            said = self._answer(list(arguments), stdin)
        except LookupError as error:
            return subprocess.CompletedProcess(arguments, 1, "", f"Error: {error.args[0]}")
        text = said if isinstance(said, str) else json.dumps(said)
        return subprocess.CompletedProcess(arguments, 0, text, "")

    def _answer(self, words: list[str], stdin: str | None):
        if words[:2] == ["get", "--raw"]:
            return self._raw(words[2])
        if words[0] == "auth":
            if not self.impersonates:
                raise LookupError("cannot impersonate")
            return "no - no rule" if (words[2], words[3]) in self.forbidden else "yes"
        if words[0] == "create":
            return self._create(words, json.loads(stdin))
        if "delete" in words:
            self.deleted.append(words[words.index("pod") + 1])
            return ""
        return self._get(words)

    def _raw(self, path: str) -> str:
        metric = f"sandman_webhook_certificate_not_after_seconds {self.not_after}\n"
        said = {
            "version": json.dumps(self.version),
            "configz": json.dumps({"kubeletconfig": {"podPidsLimit": 4096}}),
            "readyz": self.readyz,
        }
        return said.get(path.rsplit("/", 1)[1], metric)

    def _create(self, words: list[str], document: dict):
        if self.refusal:
            raise LookupError(self.refusal)
        document = copy.deepcopy(document)
        marks = document["metadata"]["annotations"]
        if self.left:
            marks[names.ANNOTATION_NOT_INJECTED] = self.left
        elif self.injects:
            marks[names.ANNOTATION_INJECTED] = "0.1.0"
            volume = {"name": names.VOLUME}
            volume |= {"image": {"reference": "r"}} if self.keeps_images else {}
            document["spec"]["volumes"] = [volume]
        if "--dry-run=server" not in words:
            self.made[document["metadata"]["name"]] = document
        return document

    def _get(self, words: list[str]):
        kinds = {
            "namespaces": [
                {"metadata": {"name": n, "labels": {names.LABEL_INJECT: v}, **self.more.get(n, {})}}
                for n, v in self.namespaces.items()
            ],
            "nodes": self.nodes,
            "pods": self.pods,
            "deployments": self.pools,
            "resourcequotas": self.quotas,
        }
        for kind, items in kinds.items():
            if kind in words:
                return {"items": items}
        if "mutatingwebhookconfiguration" in words:
            return {"webhooks": self.hooks}
        if "pod" in words:
            name = words[words.index("pod") + 1]
            return {**self.made[name], "status": self.status.get(name, {"phase": "Running"})}
        name = words[words.index("deployment") + 1]
        if name not in self.deployments:
            raise LookupError(f'deployments.apps "{name}" not found')
        return self.deployments[name]


@pytest.fixture
def cluster() -> Installation:
    return Installation()


def worst(check, *arguments) -> tuple[Level, str]:
    """The worst finding of a check: level, and text with advice."""
    found = list(check(*arguments))
    order = list(Level)
    one = max(found, key=lambda finding: order.index(finding.level))
    return one.level, f"{one.text} → {one.advice}"


def certificate(cluster: Cluster):
    return installed.certificate(cluster, lambda: NOW)


def test_a_sound_installation_has_nothing_to_say(cluster):
    for hop, check in CHECKS:
        asked = certificate if hop == "certificate" else check
        assert {one.level for one in asked(cluster)} == {Level.OK}, hop


@pytest.mark.parametrize(
    ("minor", "level"),
    [("33", Level.OK), ("34+", Level.OK), ("32", Level.FAILURE), ("", Level.FAILURE)],
)
def test_the_servers_version(cluster, minor, level):
    cluster.version["minor"] = minor
    assert worst(installed.server, cluster)[0] is level


class TestInstalled:
    @pytest.mark.parametrize(("ready", "level"), [(0, Level.FAILURE), (1, Level.WARNING)])
    def test_programs_that_do_not_run(self, cluster, ready, level):
        cluster.deployments["sandman-webhook"] = deployment("sandman-webhook", ready)
        told, text = worst(installed.programs, cluster)
        assert (told, f"{ready} of 2" in text) == (level, True)

    def test_one_replica_alone(self, cluster):
        cluster.deployments["sandman-gateway"]["spec"]["replicas"] = 1
        assert worst(installed.programs, cluster)[0] is Level.WARNING

    @pytest.mark.parametrize("bundle", ["", "%", base64.b64encode(b"no").decode()])
    def test_a_bundle_that_is_none(self, cluster, bundle):
        cluster.hooks[1]["clientConfig"]["caBundle"] = bundle
        level, text = worst(installed.configuration, cluster)
        assert level is Level.FAILURE
        assert "workloads.sandman.dev" in text

    def test_no_entries(self, cluster):
        cluster.hooks = []
        assert worst(installed.configuration, cluster)[0] is Level.FAILURE

    def test_a_webhook_that_is_not_ready_says_why(self, cluster):
        cluster.readyz = "the caBundle of x does not verify the certificate"
        level, text = worst(certificate, cluster)
        assert (level, "does not verify" in text) == (Level.FAILURE, True)

    @pytest.mark.parametrize(
        ("days", "level"), [(-1, Level.FAILURE), (2, Level.WARNING), (30, Level.OK)]
    )
    def test_how_long_the_certificate_is_good(self, cluster, days, level):
        cluster.not_after = (NOW + timedelta(days=days)).timestamp()
        assert worst(certificate, cluster)[0] is level

    def test_a_webhook_that_does_not_say(self, cluster, monkeypatch):
        monkeypatch.setattr(cluster, "raw", lambda path: "ok" if path.endswith("readyz") else "")
        assert worst(certificate, cluster)[0] is Level.SKIPPED


class TestAdmission:
    @pytest.mark.parametrize(
        ("message", "advice"),
        [
            (
                "failed calling webhook: x509: certificate signed by unknown authority",
                "not trusted",
            ),
            ("failed calling webhook: context deadline exceeded", "port 10250"),
            ("failed calling webhook: connect: connection refused", "do not listen"),
            ("failed calling webhook: no endpoints available for service", "no replica"),
            ('service "sandman-webhook" not found', "is missing"),
            ("pods is forbidden", "what refused it"),
        ],
    )
    def test_a_hop_that_breaks_is_told_with_what_to_do(self, cluster, message, advice):
        cluster.refusal = message
        level, text = worst(admission.injection, cluster)
        assert level is Level.FAILURE
        assert message in text
        assert advice in text
        assert worst(admission.delivery, cluster)[0] is Level.FAILURE

    @pytest.mark.parametrize(
        "message",
        [
            "minimum cpu usage per Container is 100m, but request is 10m",
            "cpu max limit to request ratio per Container is 2, but provided ratio is 10.0",
            "exceeded quota: q, requested: pods=1, used: pods=20, limited: pods=20",
        ],
    )
    def test_limits_of_a_namespace_that_refuse_the_doctors_own_pod(self, cluster, message):
        cluster.refusal = f'pods "sandman-doctor" is forbidden: {message}'
        level, text = worst(admission.injection, cluster)
        assert (level, message in text) == (Level.WARNING, True)
        assert "not tried" in text

    def test_pods_that_are_made_without_the_daemon(self, cluster):
        cluster.injects = False
        level, text = worst(admission.injection, cluster)
        assert (level, "without the daemon" in text) == (Level.FAILURE, True)
        cluster.left = "the signing keys"
        assert "the signing keys" in worst(admission.injection, cluster)[1]

    def test_a_namespace_that_is_being_deleted_is_nothing_to_look_at(self, cluster):
        before = [one.text for one in admission.injection(cluster)]
        cluster.namespaces = {**cluster.namespaces, "gone": names.INJECT_NAMESPACE_WORKLOADS}
        assert len(list(admission.injection(cluster))) == len(before) + 1
        cluster.more = {"gone": {"deletionTimestamp": "2026-11-30T09:00:00Z"}}
        assert [one.text for one in admission.injection(cluster)] == before

    def test_namespaces_without_the_label_or_with_a_wrong_one(self, cluster):
        cluster.namespaces = {"x": "yes"}
        levels = [one.level for one in admission.injection(cluster)]
        assert levels == [Level.FAILURE, Level.WARNING]
        assert worst(admission.delivery, cluster)[0] is Level.SKIPPED

    def test_image_volumes_that_are_dropped(self, cluster):
        cluster.keeps_images = False
        level, text = worst(admission.delivery, cluster)
        assert level is Level.WARNING
        assert "SANDMAN_WEBHOOK_DEFAULT_DELIVERY=init" in text

    @pytest.mark.parametrize(
        ("runtime", "good"),
        [
            ("containerd://2.1.0", True), ("containerd://v2.2.1-k3s1", True), ("containerd://1.7.27", False),
            ("cri-o://1.33.1", True), ("cri-o://1.32.9", False), ("docker://27.0", False), ("", False),
        ],
    )  # fmt: skip
    def test_runtimes_that_mount_images(self, cluster, runtime, good):
        assert admission.mounts_images(runtime) is good
        cluster.nodes.append(node("n2", runtime))
        assert worst(admission.delivery, cluster)[0] is (Level.OK if good else Level.WARNING)

    def test_nodes_of_another_architecture(self, cluster):
        cluster.nodes.append(node("n2", arch="arm64"))
        assert "arm64" in worst(admission.architectures, cluster)[1]
        env = {"SANDMAN_WEBHOOK_ARCHITECTURE": "arm64"}
        cluster.deployments["sandman-webhook"] = deployment("sandman-webhook", **env)
        assert "amd64" in worst(admission.architectures, cluster)[1]


class TestRights:
    def test_a_right_that_is_missing_is_named(self, cluster):
        cluster.forbidden.add(("patch", "pods"))
        level, text = worst(rights.accounts, cluster)
        assert level is Level.FAILURE
        assert "sandman-gateway may not patch pods sandman-sandboxes" in text

    def test_who_may_not_ask_is_told(self, cluster):
        cluster.impersonates = False
        level, text = worst(rights.accounts, cluster)
        assert (level, "impersonate" in text) == (Level.SKIPPED, True)

    def test_workloads_that_the_gateway_cannot_see(self, cluster):
        cluster.forbidden.add(("watch", "pods"))
        level, text = worst(rights.workloads, cluster)
        assert level is Level.WARNING
        assert "create rolebinding sandman-workloads" in text

    @pytest.mark.parametrize(
        ("annotations", "why"),
        [({}, "did not answer"), ({names.ANNOTATION_NOT_INJECTED: "hostNetwork"}, "hostNetwork")],
    )
    def test_labelled_pods_without_the_daemon(self, cluster, annotations, why):
        cluster.pods = [{"metadata": {"name": "web", "annotations": annotations}}]
        level, text = worst(rights.workloads, cluster)
        assert level is Level.WARNING
        assert "shop/web" in text
        assert why in text

    def test_a_volume_that_came_empty(self, cluster):
        text = 'exec: "/.sandman/bin/python3": stat: no such file or directory'
        status = {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"message": text}},
        }
        injected = {"name": "web", "annotations": {names.ANNOTATION_INJECTED: "1"}}
        cluster.pods = [{"metadata": injected, "status": {"containerStatuses": [status]}}]
        level, told = worst(rights.workloads, cluster)
        assert level is Level.FAILURE
        assert "sandman.dev/delivery: init" in told
        cluster.pods = [{"metadata": injected}]
        assert worst(rights.workloads, cluster)[0] is Level.OK

    def test_quotas(self, cluster):
        cluster.quotas[0]["status"]["used"]["count/pods"] = "90"
        assert "90 of 100 count/pods" in worst(rights.quotas, cluster)[1]
        cluster.quotas = []
        assert worst(rights.quotas, cluster)[0] is Level.WARNING


class TestTrial:
    def test_pods_by_each_way_run_and_are_taken_away(self, cluster):
        found = list(trial.delivered(cluster, lambda _s: None))
        assert [one.level for one in found] == [Level.OK, Level.OK]
        assert cluster.deleted == ["sandman-doctor-init", "sandman-doctor-image"]
        assert cluster.made["sandman-doctor-init"]["spec"]["containers"][0]["image"] == "img"

    @pytest.mark.parametrize(
        ("state", "why"),
        [
            (
                {"waiting": {"reason": "RunContainerError", "message": "no such file"}},
                "no such file",
            ),
            ({"terminated": {"exitCode": 2, "message": "m"}}, "ended with 2"),
        ],
    )
    def test_an_empty_volume_is_caught(self, cluster, state, why):
        cluster.status["sandman-doctor-image"] = {
            "phase": "Pending", "containerStatuses": [{"name": "main", "state": state}],
        }  # fmt: skip
        level, text = worst(trial.delivered, cluster, lambda _s: None)
        assert level is Level.WARNING
        assert why in text
        assert len(cluster.deleted) == 2

    def test_one_that_starts_late_and_one_that_never_does(self, cluster, monkeypatch):
        waits = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                cluster.status.clear()
            if len(waits) == 4:
                monkeypatch.setattr(trial, "START_S", 0.0)
                cluster.status["sandman-doctor-image"] = {}

        waiting = {"waiting": {"reason": "ContainerCreating"}}
        pending = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]}
        cluster.status = {"sandman-doctor-init": pending}
        found = list(trial.delivered(cluster, sleep))
        assert found[0].level is Level.OK
        assert len(waits) >= 2

    def test_no_pool_and_a_pod_that_is_refused(self, cluster):
        cluster.refusal = "exceeded quota"
        assert worst(trial.delivered, cluster, lambda _s: None)[0] is Level.FAILURE
        cluster.pools = []
        assert worst(trial.delivered, cluster, lambda _s: None)[0] is Level.SKIPPED
        cluster.namespaces = {}
        assert worst(trial.delivered, cluster, lambda _s: None)[0] is Level.SKIPPED
