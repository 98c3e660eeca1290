"""Pods for the tests: one that is fine, and hypothesis strategies for those that need not be."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from sandman import names
from sandman.service import keyring
from webhook import inject

KEYRING = keyring.fresh("k1", b"d" * 32, b"s" * 32)
SETTINGS = inject.Settings(daemon_image="registry.example/daemon@sha256:12", version="0.1.0")
NAMESPACE = "boxes"


def pod(**spec: Any) -> dict[str, Any]:
    """A placeholder as the API server hands it over, with defaults filled in."""
    base: dict[str, Any] = {
        "containers": [{"name": "sandbox", "image": "registry.example/placeholder:1"}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": True,
        "automountServiceAccountToken": False,
    }
    labels = {names.LABEL_INJECT: names.INJECT_POOL, names.LABEL_POOL: "root"}
    metadata = {"generateName": "root-", "creationTimestamp": None, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": base | spec}


def annotated(document: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """The pod with `sandman.dev/` annotations."""
    result = copy.deepcopy(document)
    entries = {f"{names.DOMAIN}/{name}": value for name, value in annotations.items()}
    result["metadata"].setdefault("annotations", {}).update(entries)
    return result


def container(document: dict[str, Any], index: int = 0, **members: Any) -> dict[str, Any]:
    """The pod with more in one of its containers."""
    result = copy.deepcopy(document)
    result["spec"]["containers"][index].update(members)
    return result


def patch_of(
    document: dict[str, Any], nonce: str = "n1", settings: inject.Settings = SETTINGS
) -> list[dict[str, Any]]:
    """The patch as it goes over the wire."""
    given = inject.credential(KEYRING, NAMESPACE, nonce)
    operations = inject.inject(document, NAMESPACE, given, settings)
    return json.loads(json.dumps([operation.to_json() for operation in operations]))


# --- any pod that is acceptable ------------------------------------------------------------------

_NAME = st.from_regex(r"[a-d]{1,3}", fullmatch=True)
_KEY = st.sampled_from(
    ["a/b", "x~y", "plain", "p~1q/r", names.ANNOTATION_NONCE, names.ANNOTATION_KEY_ID]
)
_MAYBE_NULL = st.none()
_QUANTITIES = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["1", "50m"]), "memory": st.just("1Gi")}
)


def _optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={k: v | _MAYBE_NULL for k, v in members.items()})


_VARIABLE = st.fixed_dictionaries(
    {"name": st.sampled_from(["A", "B", names.ENV_TOKEN_SHA256, names.ENV_PORT])},
    optional={"value": st.text(max_size=4), "valueFrom": st.just({"fieldRef": {"fieldPath": "x"}})},
)
_MOUNT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["v1", "v2"]),
        "mountPath": st.sampled_from(["/", "/data", "/.sandmanx"]),
    }
)
_BODY = _optional(
    image=st.just("i"),
    command=st.lists(st.sampled_from(["sh", "-c"]), max_size=2)
    | st.just(list(names.DAEMON_COMMAND)),
    args=st.lists(st.just("x"), max_size=2),
    env=st.lists(_VARIABLE, max_size=4),
    volumeMounts=st.lists(_MOUNT, max_size=2),
    resources=_optional(requests=_QUANTITIES, limits=_QUANTITIES),
    ports=st.lists(st.just({"containerPort": 80}), max_size=1),
    securityContext=_optional(privileged=st.just(False), runAsUser=st.integers(0, 9)),
    restartPolicy=st.sampled_from(["Always", "Never"]),
    stdin=st.booleans(),
)


@st.composite
def containers(draw: st.DrawFn, prefix: str, least: int) -> list[dict[str, Any]]:
    """Containers with names of their own, some of them plain and some full."""
    bodies = draw(st.lists(_BODY, min_size=least, max_size=3))
    return [{"name": f"{prefix}{i}", **body} for i, body in enumerate(bodies)]


_VOLUME = st.fixed_dictionaries({"name": st.sampled_from(["v1", "v2"]), "emptyDir": st.just({})})


@st.composite
def acceptable(draw: st.DrawFn) -> dict[str, Any]:
    """Any pod that injection takes: parents missing, null, empty or full."""
    spec = draw(
        _optional(
            initContainers=containers("init", 0),
            volumes=st.lists(_VOLUME, max_size=2),
            restartPolicy=st.sampled_from(["Always", "OnFailure", "Never"]),
            terminationGracePeriodSeconds=st.integers(0, 600),
            enableServiceLinks=st.booleans(),
            automountServiceAccountToken=st.booleans(),
            nodeSelector=st.dictionaries(_NAME, _NAME, max_size=2),
            shareProcessNamespace=st.just(False),
        )
    )
    spec["containers"] = draw(containers("main", 1))
    document = pod()
    document["spec"] = spec
    annotations = draw(st.none() | st.dictionaries(_KEY, _NAME, max_size=3))
    if annotations is not None or draw(st.booleans()):
        document["metadata"]["annotations"] = annotations
    labels = document["metadata"]["labels"]
    labels |= draw(st.dictionaries(st.sampled_from([names.LABEL_STATE, "k/l"]), _NAME, max_size=2))
    return document
