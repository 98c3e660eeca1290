"""Every reason to refuse a pod, and that the text tells what to do."""

from __future__ import annotations

import pytest

from sandman import names
from tests.unit.webhook import pods
from webhook import inject
from webhook.errors import RefusedError

PORT = names.DAEMON_PORT


def mount(name: str, path: str, **more: object) -> dict[str, object]:
    return pods.container(pods.pod(), volumeMounts=[{"name": name, "mountPath": path, **more}])


def beside(**members: object) -> dict[str, object]:
    return pods.pod(containers=[{"name": "sandbox"}, {"name": "other", **members}])


REFUSED = {
    "hostNetwork": (pods.pod(hostNetwork=True), "remove hostNetwork"),
    "hostPID": (pods.pod(hostPID=True), "remove hostPID"),
    "hostIPC": (pods.pod(hostIPC=True), "remove hostIPC"),
    "shared processes": (pods.pod(shareProcessNamespace=True), "remove shareProcessNamespace"),
    "privileged": (
        pods.container(pods.pod(), securityContext={"privileged": True}),
        "container sandbox is privileged: set privileged to false",
    ),
    "privileged init": (
        pods.pod(initContainers=[{"name": "i", "securityContext": {"privileged": True}}]),
        "container i is privileged",
    ),
    "windows by os": (pods.pod(os={"name": "windows"}), "Linux only"),
    "windows by node": (pods.pod(nodeSelector={"kubernetes.io/os": "windows"}), "Linux only"),
    "windows by options": (
        pods.container(pods.pod(), securityContext={"windowsOptions": {"hostProcess": True}}),
        "Linux only",
    ),
    "token by mount": (
        mount("kube-api-access", "/var/run/secrets/kubernetes.io/serviceaccount/"),
        "set automountServiceAccountToken: false",
    ),
    "token by projection": (
        pods.pod(
            volumes=[
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
            ]
        ),
        "set automountServiceAccountToken: false",
    ),
    "mount over": (mount("data", "/.sandman"), "mounts volume data at /.sandman"),
    "mount inside": (mount("data", "/.sandman/bin"), "remove the mount"),
    "mount in disguise": (mount("data", "//.sandman/./x/"), "remove the mount"),
    "ours writable": (mount("sandman", "/.sandman"), "remove the mount"),
    "ours in part": (
        mount("sandman", "/.sandman", readOnly=True, subPath="x"),
        "remove the mount",
    ),
    "ours in part, by a variable": (
        mount("sandman", "/.sandman", readOnly=True, subPathExpr="$(X)"),
        "remove the mount",
    ),
    "init container that writes the daemon": (
        pods.pod(
            initContainers=[{"name": "i", "volumeMounts": [{"name": "sandman", "mountPath": "/x"}]}]
        ),
        "container i mounts volume sandman",
    ),
    "ours elsewhere": (mount("sandman", "/opt", readOnly=True), "remove the mount"),
    "ours in another": (
        beside(volumeMounts=[{"name": "sandman", "mountPath": "/x"}]),
        "container other mounts volume sandman",
    ),
    "hostPort": (
        pods.container(pods.pod(), ports=[{"containerPort": 80, "hostPort": PORT}]),
        "remove hostPort",
    ),
    "published port": (
        pods.container(pods.pod(), ports=[{"containerPort": PORT, "hostPort": 80}]),
        "remove hostPort",
    ),
    "port taken": (beside(ports=[{"containerPort": PORT}]), "choose another containerPort"),
    "reserved name": (pods.pod(containers=[{"name": "sandman-copy"}]), "rename the container"),
    "no containers": (pods.pod(containers=[]), "has no containers"),
    "null containers": (pods.pod(containers=None), "has no containers"),
    "not a pod": ({"metadata": {"labels": {}}, "spec": 3}, "cannot be read: Expected `object`"),
    "no spec": ({"metadata": {}}, "cannot be read"),
    "odd types": (pods.container(pods.pod(), env="x"), r"cannot be read: .*containers\[0\].env"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_pod_is_refused_with_a_reason(case):
    document, text = REFUSED[case]
    with pytest.raises(RefusedError, match=text):
        pods.patch_of(document)


def test_all_reasons_are_told_at_once():
    with pytest.raises(RefusedError) as caught:
        pods.patch_of(pods.pod(hostPID=True, hostIPC=True))
    assert str(caught.value).count(": remove") == 2


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", names.SYSTEM_NAMESPACE])
def test_the_control_planes_namespaces_get_no_sandboxes(namespace):
    given = inject.credential(pods.KEYRING, namespace, "n")
    with pytest.raises(RefusedError, match="make sandboxes in another one"):
        inject.inject(pods.pod(), namespace, given, pods.SETTINGS)


ACCEPTED = {
    "a path that only begins alike": mount("data", "/.sandmanx"),
    "another container's own mount there": beside(
        volumeMounts=[{"name": "d", "mountPath": "/.sandman"}]
    ),
    "the target declares the port": pods.container(pods.pod(), ports=[{"containerPort": PORT}]),
    "a host port of its own": beside(ports=[{"containerPort": 80, "hostPort": 80}]),
    "a projected volume without token": pods.pod(
        volumes=[{"name": "p", "projected": {"sources": [{"configMap": {"name": "x"}}]}}]
    ),
    "an empty projection": pods.pod(volumes=[{"name": "p", "projected": {"sources": None}}]),
    "linux said aloud": pods.pod(os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "linux"}),
    "more containers": beside(image="x"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_pod_is_taken(case):
    assert pods.patch_of(ACCEPTED[case])
