"""Pods as people write them, most after the examples of kubernetes.io, and exactly what injection does
to each: the table of `test_workload`.

The expected patches are written here without any of the webhook's code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sandman import grants
from tests.unit.webhook import pods

Json = dict[str, Any]
DAEMON = ["/.sandman/bin/python3", "-I", "-S", "/.sandman/app", "serve", "--"]
IMAGE = "registry.example/daemon@sha256:12"


@dataclass(frozen=True)
class Case:
    """`patch` None: it is left as it is, because of `left`."""

    name: str
    pod: Json
    patch: list[Json] | None = None
    left: str = ""


def pod(*containers: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """A labelled pod as the API server hands it over."""
    metadata: Json = {"generateName": "web-", "labels": {"sandman.dev/inject": "workload"}}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers), **spec},
    }


def c(name: str = "app", image: str = "example/app:1", **members: Any) -> Json:
    return {"name": name, "image": image, **members}


def add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


def digest(container: str) -> str:
    token = grants.daemon_token(pods.KEYRING.daemon["k1"], pods.NAMESPACE, f"n1/{container}")
    return hashlib.sha256(token.encode()).hexdigest()


def notes(ports: dict[str, int]) -> dict[str, str]:
    return {
        "sandman.dev/nonce": "n1",
        "sandman.dev/key-id": "k1",
        "sandman.dev/injected": "0.1.0",
        "sandman.dev/containers": json.dumps(ports, separators=(",", ":")),
    }


def meta(ports: dict[str, int], *, there: bool = False) -> list[Json]:
    """`there`: the pod has annotations."""
    if not there:
        return [add("/metadata/annotations", notes(ports))]
    return [
        add(f"/metadata/annotations/{k.replace('/', '~1')}", v) for k, v in notes(ports).items()
    ]


def copy(*, volumes: bool = False, inits: bool = False, asks: Json | None = None) -> list[Json]:
    """The volume and the container that fills it. `volumes`, `inits`: the pod has some; `asks`: the resources
    of the container that the daemon is for."""
    container: Json = {
        "name": "sandman-copy",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/python3", "-I", "-S", "/app", "copy", "/.sandman"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "sandman", "mountPath": "/.sandman"}],
    }
    if asks is not None:
        container["resources"] = asks
    return [*_volume({"emptyDir": {"sizeLimit": "128Mi"}}, volumes), _first(container, inits)]


def _volume(source: Json, there: bool) -> list[Json]:
    volume = {"name": "sandman", **source}
    return [add("/spec/volumes/-", volume) if there else add("/spec/volumes", [volume])]


def _first(container: Json, there: bool) -> Json:
    return (
        add("/spec/initContainers/0", container)
        if there
        else add("/spec/initContainers", [container])
    )


def by_image(*, volumes: bool = False) -> list[Json]:
    return _volume({"image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}}, volumes)


def into(
    index: int,
    name: str,
    command: list[str],
    *,
    args: list[str] | None = None,
    port: int = 21763,
    env: bool = False,
    mounts: bool = False,
) -> list[Json]:
    """What is done to one container. `env`, `mounts`: it has some."""
    at = f"/spec/containers/{index}"
    variables = [
        {"name": "SANDMAN_TOKEN_SHA256", "value": digest(name)},
        {"name": "SANDMAN_PORT", "value": str(port)},
    ]
    mount = {"name": "sandman", "mountPath": "/.sandman", "readOnly": True}
    steps = [add(f"{at}/env/-", one) for one in variables] if env else [add(f"{at}/env", variables)]
    steps.append(
        add(f"{at}/volumeMounts/-", mount) if mounts else add(f"{at}/volumeMounts", [mount])
    )
    steps.append(add(f"{at}/command", [*DAEMON, *command]))
    return steps if args is None else [*steps, add(f"{at}/args", args)]


def done(
    name: str,
    document: Json,
    command: list[str],
    *,
    args: list[str] | None = None,
    there: bool = False,
    env: bool = False,
    mounts: bool = False,
    volumes: bool = False,
    inits: bool = False,
    asks: Json | None = None,
    index: int = 0,
    container: str = "app",
    port: int = 21763,
) -> Case:
    """The usual: one container, the copy."""
    patch = [
        *meta({container: port}, there=there),
        *copy(volumes=volumes, inits=inits, asks=asks),
        *into(index, container, command, args=args, env=env, mounts=mounts, port=port),
    ]
    return Case(name, document, patch)


def known(
    container: str = "app", image: str = "example/app:1", **members: list[str]
) -> dict[str, str]:
    """What `sandman inject` writes."""
    value = {container: {"image": image, "digest": "sha256:ab", **members}}
    return {"sandman.dev/commands": json.dumps(value)}


SLEEP = ["sleep", "3600"]
APP = c(command=SLEEP)
REQUESTS = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}
EXACT = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
TIGHT = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "20m", "memory": "32Mi"}}
PROBE = {"exec": {"command": ["cat", "/tmp/healthy"]}, "periodSeconds": 5}
HTTP = {"httpGet": {"path": "/healthz", "port": 8080}}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
VOLUME = {"name": "data", "emptyDir": {}}
MOUNT = {"name": "data", "mountPath": "/data"}
TOKEN = {
    "name": "kube-api-access-x",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
}
TOKEN_MOUNT = {
    "name": "kube-api-access-x",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    "readOnly": True,
}
NGINX = known(entrypoint=["/docker-entrypoint.sh"], cmd=["nginx", "-g", "daemon off;"])


def _affinity(*values: str, key: str = "kubernetes.io/arch", operator: str = "In") -> Json:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
    }


_COMMANDS = [
    done("command alone", pod(APP), SLEEP),
    done(
        "command with args: the args stay",
        pod(c(command=["/bin/sh"], args=["-c", "echo $(HOSTNAME)"])),
        ["/bin/sh"],
    ),
    done(
        "a variable in a command stays the kubelet's",
        pod(c(command=["echo", "$(NODE)", "$$(X)"])),
        ["echo", "$(NODE)", "$$(X)"],
    ),
    Case(
        "no command, no args",
        pod(c(image="nginx")),
        left="container app has no command: set it, or run `sandman inject` on the workload",
    ),
    Case(
        "args without a command",
        pod(c(args=["redis-server"])),
        left="container app has no command: set it, or run `sandman inject` on the workload",
    ),
    Case(
        "an empty command is none",
        pod(c(command=[])),
        left="container app has no command: set it, or run `sandman inject` on the workload",
    ),
    done(
        "an image's entrypoint and cmd",
        pod(c(), annotations=NGINX),
        ["/docker-entrypoint.sh"],
        args=["nginx", "-g", "daemon off;"],
        there=True,
    ),
    done(
        "args of the pod replace the image's cmd",
        pod(c(args=["--port", "1"]), annotations=NGINX),
        ["/docker-entrypoint.sh"],
        there=True,
    ),
    done(
        "a command of the pod replaces both",
        pod(c(command=["true"]), annotations=NGINX),
        ["true"],
        there=True,
    ),
    done(
        "an image with an entrypoint alone",
        pod(c(), annotations=known(entrypoint=["/server"])),
        ["/server"],
        there=True,
    ),
    done(
        "an image with a cmd alone",
        pod(c(), annotations=known(cmd=["bash"])),
        [],
        args=["bash"],
        there=True,
    ),
    done(
        "args for an image with neither",
        pod(c(args=["/tool", "x"]), annotations=known()),
        [],
        there=True,
    ),
    Case(
        "an image with neither",
        pod(c(), annotations=known()),
        left="container app: neither the pod nor its image has a command: set one",
    ),
    done(
        "what an image says is not expanded",
        pod(c(), annotations=known(entrypoint=["sh", "-c", "echo $HOME $(id)"])),
        ["sh", "-c", "echo $$HOME $$(id)"],
        there=True,
    ),
    Case(
        "another image since",
        pod(c(image="example/app:2"), annotations=NGINX),
        left="container app runs another image than `sandman inject` saw: run it again",
    ),
    Case(
        "an annotation that cannot be read",
        pod(c(), annotations={"sandman.dev/commands": "[]"}),
        left="annotation sandman.dev/commands: not an object: run `sandman inject` again",
    ),
]

_LIFE = [
    done(
        "a Deployment's pod with probes",
        pod(
            c(command=["/server"], livenessProbe=PROBE, readinessProbe=HTTP, startupProbe=HTTP),
            restartPolicy="Always",
        ),
        ["/server"],
    ),
    done(
        "lifecycle hooks",
        pod(
            c(
                command=["nginx"],
                lifecycle={
                    "preStop": {"exec": {"command": ["nginx", "-s", "quit"]}},
                    "postStart": {"sleep": {"seconds": 1}},
                },
            ),
            terminationGracePeriodSeconds=60,
        ),
        ["nginx"],
    ),
    done(
        "a Job's pod",
        pod(
            c("pi", "perl:5.34.0", command=["perl", "-Mbignum=bpi", "-wle", "print bpi(2000)"]),
            restartPolicy="Never",
        ),
        ["perl", "-Mbignum=bpi", "-wle", "print bpi(2000)"],
        container="pi",
    ),
    done(
        "a CronJob's pod",
        pod(
            c(
                "hello",
                "busybox:1.28",
                imagePullPolicy="IfNotPresent",
                command=["/bin/sh", "-c", "date; echo Hello"],
            ),
            restartPolicy="OnFailure",
        ),
        ["/bin/sh", "-c", "date; echo Hello"],
        container="hello",
    ),
    done(
        "restart rules of its own",
        pod(
            c(
                command=SLEEP,
                restartPolicy="Never",
                restartPolicyRules=[
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
                ],
            )
        ),
        SLEEP,
    ),
    done(
        "a deadline and a priority",
        pod(APP, activeDeadlineSeconds=60, priorityClassName="high"),
        SLEEP,
    ),
    done("a terminal", pod(c(command=["bash"], stdin=True, tty=True)), ["bash"]),
    done(
        "a working directory and a message path",
        pod(c(command=["./run"], workingDir="/srv", terminationMessagePath="/tmp/end")),
        ["./run"],
    ),
    done(
        "a StatefulSet's pod",
        pod(
            c(
                "mysql",
                "mysql:5.7",
                command=["mysqld"],
                ports=[{"name": "mysql", "containerPort": 3306}],
                volumeMounts=[{"name": "data", "mountPath": "/var/lib/mysql", "subPath": "mysql"}],
            ),
            hostname="mysql-0",
            subdomain="mysql",
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data-mysql-0"}}],
        ),
        ["mysqld"],
        container="mysql",
        mounts=True,
        volumes=True,
    ),
    done(
        "a DaemonSet's pod",
        pod(
            c(
                "fluentd",
                "fluentd:v5",
                command=["fluentd"],
                volumeMounts=[{"name": "varlog", "mountPath": "/var/log"}],
            ),
            tolerations=[{"operator": "Exists"}],
            volumes=[{"name": "varlog", "hostPath": {"path": "/var/log"}}],
        ),
        ["fluentd"],
        container="fluentd",
        mounts=True,
        volumes=True,
    ),
    done(
        "a ServiceAccount's token stays",
        pod(c(command=SLEEP, volumeMounts=[TOKEN_MOUNT]), serviceAccountName="x", volumes=[TOKEN]),
        SLEEP,
        mounts=True,
        volumes=True,
    ),
    done("service links stay", pod(APP, enableServiceLinks=True), SLEEP),
]

_RESOURCES = [
    done("a Burstable pod", pod(c(command=SLEEP, resources=REQUESTS)), SLEEP, asks=REQUESTS),
    done("a Guaranteed pod stays that", pod(c(command=SLEEP, resources=EXACT)), SLEEP, asks=EXACT),
    done("a BestEffort pod stays that", pod(c(command=SLEEP, resources={})), SLEEP),
    done("another asks for something", pod(APP, c("b", resources=REQUESTS)), SLEEP),
    done(
        "an init container asks for something",
        pod(APP, initContainers=[c("init", resources=REQUESTS)]),
        SLEEP,
        inits=True,
    ),
    done(
        "limits of the whole pod",
        pod(c(command=SLEEP, resources=TIGHT), resources=TIGHT),
        SLEEP,
        asks=TIGHT,
    ),
    done(
        "requests alone, of disk too",
        pod(c(command=SLEEP, resources={"requests": {"cpu": "10m", "ephemeral-storage": "1Gi"}})),
        SLEEP,
        asks={"requests": {"cpu": "10m", "ephemeral-storage": "1Gi"}},
    ),
    done(
        "devices are not for the copy",
        pod(c(command=SLEEP, resources={"limits": {"example.com/gpu": "1", "memory": "64Mi"}})),
        SLEEP,
        asks={"limits": {"memory": "64Mi"}},
    ),
    done(
        "a device and nothing else",
        pod(c(command=SLEEP, resources={"limits": {"example.com/gpu": "1"}})),
        SLEEP,
    ),
    done(
        "variables of all kinds",
        pod(
            c(
                command=SLEEP,
                env=[
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                envFrom=[{"configMapRef": {"name": "m"}}],
            )
        ),
        SLEEP,
        env=True,
    ),
    done("an empty list of variables", pod(c(command=SLEEP, env=[])), SLEEP, env=True),
    done(
        "null lists",
        pod(c(command=SLEEP, env=None, volumeMounts=None), volumes=None, initContainers=None),
        SLEEP,
    ),
    done(
        "volumes at odd paths",
        pod(
            c(
                command=SLEEP,
                volumeMounts=[
                    {"name": "data", "mountPath": "/bin"},
                    {"name": "data", "mountPath": "/.sandmans"},
                    {"name": "data", "mountPath": "/usr/lib/../lib"},
                ],
            ),
            volumes=[VOLUME],
        ),
        SLEEP,
        mounts=True,
        volumes=True,
    ),
    done(
        "a device and a claim",
        pod(
            c(command=SLEEP, volumeDevices=[{"name": "d", "devicePath": "/dev/xvda"}]),
            volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        ),
        SLEEP,
        volumes=True,
    ),
    done(
        "a user's Sandman client inside",
        pod(c(command=SLEEP, env=[{"name": "SANDMAN_URL", "value": "https://x"}])),
        SLEEP,
        env=True,
    ),
]

_CONTAINERS = [
    done("the first of two", pod(APP, c("sidecar")), SLEEP),
    done(
        "another by name",
        pod(c("proxy"), APP, annotations={"sandman.dev/container": "app"}),
        SLEEP,
        index=1,
        there=True,
    ),
    done(
        "the one that kubectl means",
        pod(c("istio-proxy"), APP, annotations={"kubectl.kubernetes.io/default-container": "app"}),
        SLEEP,
        index=1,
        there=True,
    ),
    done(
        "a default that is not there",
        pod(APP, annotations={"kubectl.kubernetes.io/default-container": "gone"}),
        SLEEP,
        there=True,
    ),
    Case(
        "several",
        pod(APP, c("x"), c("b", command=["b"]), annotations={"sandman.dev/container": "b, app"}),
        [
            *meta({"app": 21763, "b": 21764}, there=True),
            *copy(),
            *into(0, "app", SLEEP),
            *into(2, "b", ["b"], port=21764),
        ],
    ),
    Case(
        "all",
        pod(APP, c("b", command=["b"]), annotations={"sandman.dev/container": "*"}),
        [
            *meta({"app": 21763, "b": 21764}, there=True),
            *copy(),
            *into(0, "app", SLEEP),
            *into(1, "b", ["b"], port=21764),
        ],
    ),
    Case(
        "all, of which one is not known",
        pod(APP, c("b"), annotations={"sandman.dev/container": "*"}),
        left="container b has no command: set it, or run `sandman inject` on the workload",
    ),
    Case(
        "one that is not there",
        pod(APP, annotations={"sandman.dev/container": "web"}),
        left="annotation sandman.dev/container names web: the pod's containers are app",
    ),
    done(
        "init containers run as they did",
        pod(
            APP,
            initContainers=[c("init", command=["sh", "-c", "until nslookup db; do sleep 2; done"])],
        ),
        SLEEP,
        inits=True,
    ),
    done(
        "native sidecars too",
        pod(APP, initContainers=[c("logs", restartPolicy="Always", command=["tail", "-F", "/l"])]),
        SLEEP,
        inits=True,
    ),
    Case(
        "an init container cannot be chosen",
        pod(APP, initContainers=[c("init")], annotations={"sandman.dev/container": "init"}),
        left="annotation sandman.dev/container names init: the pod's containers are app",
    ),
    done(
        "the daemon's port is taken",
        pod(APP, c("b", ports=[{"containerPort": 21763}])),
        SLEEP,
        port=21764,
    ),
    done(
        "and the next one by a sidecar",
        pod(
            c(command=SLEEP, ports=[{"containerPort": 80, "hostPort": 21763}]),
            initContainers=[c("s", restartPolicy="Always", ports=[{"containerPort": 21764}])],
        ),
        SLEEP,
        port=21765,
        inits=True,
    ),
    done(
        "shared process namespace",
        pod(APP, c("shell", "busybox:1.28", stdin=True), shareProcessNamespace=True),
        SLEEP,
    ),
]

_SECURITY = [
    done(
        "restricted",
        pod(
            c(command=SLEEP, securityContext=RESTRICTED),
            securityContext={
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "fsGroup": 2000,
                "supplementalGroups": [4000],
            },
        ),
        SLEEP,
    ),
    done(
        "an arbitrary uid",
        pod(
            APP, securityContext={"runAsUser": 1000730000, "seLinuxOptions": {"level": "s0:c27,c9"}}
        ),
        SLEEP,
    ),
    done("user namespaces", pod(APP, hostUsers=False), SLEEP),
    done(
        "capabilities and privileged false",
        pod(
            c(
                command=SLEEP,
                securityContext={"privileged": False, "capabilities": {"add": ["NET_ADMIN"]}},
            )
        ),
        SLEEP,
    ),
    done("a runtime class", pod(APP, runtimeClassName="gvisor"), SLEEP),
    Case(
        "hostNetwork",
        pod(APP, hostNetwork=True),
        left="hostNetwork: pods that share the node's namespaces get no daemon; remove hostNetwork or the label",
    ),
    Case(
        "hostPID",
        pod(APP, hostPID=True),
        left="hostPID: pods that share the node's namespaces get no daemon; remove hostPID or the label",
    ),
    Case(
        "hostIPC",
        pod(APP, hostIPC=True),
        left="hostIPC: pods that share the node's namespaces get no daemon; remove hostIPC or the label",
    ),
    Case(
        "privileged",
        pod(c(command=SLEEP, securityContext={"privileged": True})),
        left="container app is privileged: such pods get no daemon; remove privileged or the label",
    ),
    Case(
        "a privileged init container",
        pod(APP, initContainers=[c("sysctl", securityContext={"privileged": True})]),
        left="container sysctl is privileged: such pods get no daemon; remove privileged or the label",
    ),
    Case(
        "Windows by name",
        pod(APP, os={"name": "windows"}),
        left="the daemon runs on Linux only: remove the label from pods for Windows nodes",
    ),
    Case(
        "Windows by node",
        pod(APP, nodeSelector={"kubernetes.io/os": "windows"}),
        left="the daemon runs on Linux only: remove the label from pods for Windows nodes",
    ),
    Case(
        "Windows by its options",
        pod(APP, securityContext={"windowsOptions": {"runAsUserName": "x"}}),
        left="the daemon runs on Linux only: remove the label from pods for Windows nodes",
    ),
    done(
        "the daemon's architecture",
        pod(APP, nodeSelector={"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}),
        SLEEP,
    ),
    Case(
        "another architecture",
        pod(APP, nodeSelector={"kubernetes.io/arch": "arm64"}),
        left="the daemon is built for amd64 and the pod may run on arm64: remove the label, or ask for amd64 nodes",
    ),
    Case(
        "one of two architectures",
        pod(APP, affinity=_affinity("arm64", "amd64")),
        left="the daemon is built for amd64 and the pod may run on arm64: remove the label, or ask for amd64 nodes",
    ),
    done(
        "affinity to something else",
        pod(APP, affinity=_affinity("z1", key="topology.kubernetes.io/zone")),
        SLEEP,
    ),
    done("affinity to the daemon's architecture", pod(APP, affinity=_affinity("amd64")), SLEEP),
    Case(
        "the daemon's variable",
        pod(c(command=SLEEP, env=[{"name": "SANDMAN_PORT", "value": "1"}])),
        left="container app sets SANDMAN_PORT, which is the daemon's: rename it",
    ),
    Case(
        "the daemon's place",
        pod(
            c(command=SLEEP, volumeMounts=[{"name": "data", "mountPath": "//.sandman/x"}]),
            volumes=[VOLUME],
        ),
        left="container app mounts data at //.sandman/x: volume sandman and /.sandman are the daemon's; use others",
    ),
    Case(
        "the copy's name",
        pod(APP, c("sandman-copy")),
        left="container name sandman-copy is the daemon's: rename the container",
    ),
    Case(
        "the volume's name",
        pod(APP, volumes=[{"name": "sandman", "configMap": {"name": "x"}}]),
        left="volume sandman is in the pod already and is not the one that injection makes: the name is reserved, rename yours or remove it",
    ),
    Case(
        "two reasons",
        pod(APP, hostNetwork=True, hostPID=True),
        left="hostNetwork: pods that share the node's namespaces get no daemon; remove hostNetwork or the label; hostPID: pods that share the node's namespaces get no daemon; remove hostPID or the label",
    ),
]

_DELIVERY = [
    Case("an image volume", pod(APP, annotations={"sandman.dev/delivery": "image"}), [*meta({"app": 21763}, there=True), *by_image(), *into(0, "app", SLEEP)]),
    Case("an image volume beside others", pod(c(command=SLEEP, volumeMounts=[MOUNT]), volumes=[VOLUME], annotations={"sandman.dev/delivery": "image"}), [*meta({"app": 21763}, there=True), *by_image(volumes=True), *into(0, "app", SLEEP, mounts=True)]),
    done("the copy, asked for", pod(APP, annotations={"sandman.dev/delivery": "init"}), SLEEP, there=True),
    Case("a delivery that is none", pod(APP, annotations={"sandman.dev/delivery": "csi"}), left="annotation sandman.dev/delivery is 'csi': write image or init, or leave it out"),
]  # fmt: skip

CASES = [*_COMMANDS, *_LIFE, *_RESOURCES, *_CONTAINERS, *_SECURITY, *_DELIVERY]
