"""Somebody with Kubernetes' own role `edit` among the sandboxes, and a namespace of his own: more than who may make pods and
Deployments there. For the tests of what that is good for."""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from tests.cluster import faults
from tests.cluster.bed import BedError, kubectl
from tests.cluster.bed.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed
    from tests.cluster.hostile import Box

Json = dict[str, Any]
HOME = "sandman-test-mallory"
MALLORY = f"system:serviceaccount:{HOME}:mallory"
DRY = "--dry-run=server"
PRIVATE = (names.LABEL_TENANT, names.LABEL_RUN, names.LABEL_KEY, names.LABEL_TIER)


class Mallory:
    """Requests in his name, in the sandboxes' namespace or in another."""

    def __init__(self, sandman: Deployed) -> None:
        self.sandman = sandman

    def kubectl(
        self, *arguments: str, where: str = names.SANDBOX_NAMESPACE, stdin: Json | None = None
    ) -> str:
        """Run it as him.

        Raises:
            BedError: what kubectl said.
        """
        text = None if stdin is None else json.dumps(stdin)
        return kubectl(self.sandman.bed, f"--as={MALLORY}", "-n", where, *arguments, input=text)

    def refused(
        self, *arguments: str, where: str = names.SANDBOX_NAMESPACE, stdin: Json | None = None
    ) -> str:
        """Why it is refused: kubectl's complaint."""
        with pytest.raises(BedError) as caught:
            self.kubectl(*arguments, where=where, stdin=stdin)
        return str(caught.value).partition("\n")[2]

    def document(self, kind: str, name: str) -> Json:
        """An object as he sees it."""
        found: Json = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found


@contextlib.contextmanager
def mallory(sandman: Deployed, among: str = names.SANDBOX_NAMESPACE) -> Iterator[Mallory]:
    """Him, with his rights among those whom he is after."""
    bed = sandman.bed
    # Another module's may be going yet.
    kubectl(bed, "delete", "namespace", HOME, "--ignore-not-found")
    kubectl(bed, "create", "namespace", HOME)
    try:
        wait_until(
            "pods can be made there",
            lambda: "default" in kubectl(bed, "-n", HOME, "get", "serviceaccounts", "-o", "name"),
        )
        kubectl(bed, "-n", HOME, "create", "serviceaccount", "mallory")
        account = f"--serviceaccount={HOME}:mallory"
        for role, where in (("admin", HOME), ("edit", among)):
            bind = ["create", "rolebinding", "mallory", f"--clusterrole={role}", account]
            kubectl(bed, "-n", where, *bind)
        # What `edit` has not, and those who look for faults are often given.
        given = ["--verb=get,patch,update", "--resource=pods/ephemeralcontainers"]
        kubectl(bed, "-n", among, "create", "role", "mallory-debug", *given)
        debug = ["create", "rolebinding", "mallory-debug", "--role=mallory-debug", account]
        kubectl(bed, "-n", among, *debug)
        yield Mallory(sandman)
    finally:
        roles = ["rolebinding/mallory", "rolebinding/mallory-debug", "role/mallory-debug"]
        kubectl(bed, "-n", among, "delete", "--ignore-not-found", *roles)
        kubectl(bed, "delete", "namespace", HOME, "--wait=false")


class Refusals:
    """What the API server has forbidden since: verb, who, and the pod."""

    def __init__(self, sandman: Deployed) -> None:
        self._path = sandman.bed.state / "audit.log"
        self._offset = self._path.stat().st_size

    def read(self) -> set[tuple[str, str, str]]:
        """All of them so far."""
        found = set()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                event = json.loads(line) if line.endswith(b"\n") else {}
                if event.get("responseStatus", {}).get("code") == 403:
                    target = event.get("objectRef", {})
                    found.add((event["verb"], event["user"]["username"], target.get("name", "")))
        return found


def denied(policy: str, message: str) -> str:
    """What an admission policy says."""
    return f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"


def forbidden(
    verb: str, resource: str, group: str = "", where: str = names.SYSTEM_NAMESPACE
) -> str:
    """What the API server says to who lacks a right."""
    scope = f'in the namespace "{where}"' if where else "at the cluster scope"
    return f'User "{MALLORY}" cannot {verb} resource "{resource}" in API group "{group}" {scope}'


def pod(image: str, labels: Json, annotations: Json | None = None, **spec: Any) -> Json:
    """A pod of his, which is never scheduled."""
    main = {"name": "main", "image": image, "command": ["sleep", "600"], **spec.pop("main", {})}
    metadata = {"name": f"mallory-{uuid.uuid4().hex[:8]}", "labels": labels}
    whole = {
        "nodeSelector": {"sandman.dev/nowhere": "true"},
        "automountServiceAccountToken": False,
        "containers": [main],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"annotations": annotations or {}},
        "spec": whole | spec,
    }


def controller(kind: str, image: str, labels: Json, own: Json | None = None, **spec: Any) -> Json:
    """A controller of his with these labels in its template, and `own` on itself."""
    template = {"metadata": {"labels": labels}, "spec": pod(image, {}, **spec)["spec"]}
    metadata = {"name": f"mallory-{uuid.uuid4().hex[:8]}", "labels": own or {}}
    group = {"Job": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    whole: Json = {"template": template}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        is_plain = kind == "ReplicationController"
        whole["selector"] = labels if is_plain else {"matchLabels": labels}
    if kind == "StatefulSet":
        whole["serviceName"] = "mallory"
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": whole}


def copied(sandman: Deployed, box: Box) -> Json:
    """The whole of the victim's pod, as far as somebody can write it."""
    found = faults.document(sandman, box.pod)
    assert found is not None
    metadata = {
        "name": f"mallory-{uuid.uuid4().hex[:8]}",
        "labels": dict(found["metadata"]["labels"]),
        "annotations": dict(found["metadata"]["annotations"]),
    }
    spec = copy.deepcopy(found["spec"])
    spec.pop("nodeName", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def without(document: Json, *keys: str) -> Json:
    """The same without these labels and annotations."""
    made = copy.deepcopy(document)
    for part in ("labels", "annotations"):
        kept = made["metadata"][part]
        made["metadata"][part] = {key: value for key, value in kept.items() if key not in keys}
    return made
