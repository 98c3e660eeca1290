"""Puts Sandman on the test cluster: `python -m tests.cluster.install`.

Builds and pushes the images, applies the overlay `test` with their tags, waits until all of it
serves, and makes API keys for two tenants. Again does nothing but look, unless something changed.
Addresses and tokens end up in `client.env` in the cluster's state directory, for shells and tests.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import http.client
import json
import os
import shlex
import ssl
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway import tokens
from gateway.model import Identity
from sandman import names
from scripts import images
from tests.cluster.bed import Bed, BedError, is_up, kubectl, reference
from tests.cluster.bed.shell import attempt, say, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OVERLAY = images.ROOT / "manifests" / "overlays" / "test"
PORT = 30443
"""The overlay's node port."""
SERVER_NAME = f"sandman-gateway.{names.SYSTEM_NAMESPACE}.svc"
ENV_SERVER_NAME = "SANDMAN_SERVER_NAME"
ENV_OTHER_TOKEN = "SANDMAN_OTHER_TOKEN"
WORKLOADS = "sandman-test-workloads"
"""Namespace whose labelled workloads the gateway serves; the overlay says it, too."""
WORKLOADS_USER = "sandman-demo"
"""Whom the cluster knows the tenant `demo` as."""
TENANTS = {"demo": names.ENV_TOKEN, "other": ENV_OTHER_TOKEN}
"""Tenants with a key each, and the variable that holds it; two, for tests of who sees what."""
PATIENCE_S = 180.0
"""Seconds for everything to be ready: pulls of images, start of Python on two busy cores, back-off."""


@dataclass(frozen=True, slots=True)
class Installation:
    """How the installed gateway is reached, and by whom."""

    url: str
    ca: Path
    server_name: str
    token: str
    other_token: str
    images: Mapping[str, str]
    manifests: Path
    """The kustomization that was applied, for `kubectl diff -k`."""

    def environment(self) -> dict[str, str]:
        """What a client reads."""
        return {
            names.ENV_URL: self.url,
            names.ENV_TOKEN: self.token,
            names.ENV_CA: str(self.ca),
            ENV_SERVER_NAME: self.server_name,
            ENV_OTHER_TOKEN: self.other_token,
        }


def install(bed: Bed) -> Installation:
    """Install, or bring up to date; returns when placeholders wait and the gateway answers.

    Raises:
        BedError: something did not become ready; the text has the pods' states and last words.
    """
    if not is_up(bed):
        raise BedError("the test cluster is not up: python -m tests.cluster.bed up")
    with _lock(bed):
        return _install(bed)


@contextlib.contextmanager
def _lock(bed: Bed) -> Iterator[None]:
    """One at a time: a person and a test run may ask together, for different states of the tree."""
    with (bed.cache / "install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(bed: Bed) -> Installation:
    try:
        built = images.publish(images.Target(bed.registry, reference(bed, "python")))
    except images.BuildError as error:
        raise BedError(str(error)) from None
    manifests = _write_kustomization(bed, built)
    kubectl(bed, "apply", "-k", str(manifests))
    keys = _make_keys(bed)
    try:
        _wait_for_services(bed)
        _wait_for_placeholders(bed, built["daemon"])
        made = Installation(
            url=f"https://127.0.0.1:{PORT}",
            ca=_write_ca(bed),
            server_name=SERVER_NAME,
            token=keys["demo"],
            other_token=keys["other"],
            images=built,
            manifests=manifests,
        )
        _wait_for_gateway(made)
    except BedError as error:
        raise BedError(f"{error}\n{report(bed)}") from None
    _write_environment(bed, made)
    return made


def environment_file(bed: Bed) -> Path:
    """Shell lines with what a client needs."""
    return bed.state / "client.env"


# --- applying -----------------------------------------------------------------------------------


def _write_kustomization(bed: Bed, built: Mapping[str, str]) -> Path:
    """The overlay with the tags of what was built, in the state directory and not in the tree."""
    directory = bed.state / "manifests"
    directory.mkdir(exist_ok=True)
    pairs = [image.rsplit(":", 1) for image in built.values()]
    value = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "sortOptions": {"order": "fifo"},
        "resources": [os.path.relpath(OVERLAY, directory.resolve())],
        "images": [{"name": name, "newTag": tag} for name, tag in pairs],
    }
    # As JSON: a tag such as 0533967652738e15 is a text for PyYAML, which leaves out its quotes, and a number for kubectl.
    (directory / "kustomization.yaml").write_text(json.dumps(value))
    return directory


# --- keys ---------------------------------------------------------------------------------------


def _make_keys(bed: Bed) -> dict[str, str]:
    """A key for each tenant: the one that is there if its token is known here, else a new one."""
    known = read_environment(bed)
    there = _secret(bed, names.API_KEYS_SECRET)
    keys: dict[str, str] = {}
    new: dict[str, str] = {}
    for tenant, variable in TENANTS.items():
        token = known.get(variable) or tokens.make_api_key(tenant)
        identity = Identity(WORKLOADS_USER) if tenant == "demo" else Identity("sandman-other")
        entry = tokens.api_key_entry(token, tenant, identity=identity)
        if there.get(tenant) != entry:
            new[tenant] = base64.b64encode(entry).decode()
        keys[tenant] = token
    if new:
        patch = json.dumps({"data": new})
        secret = ["secret", names.API_KEYS_SECRET, "-n", names.SYSTEM_NAMESPACE]
        # On standard input, and only the hashes: tokens are in nobody's process list.
        kubectl(bed, "patch", *secret, "--type=merge", "--patch-file=/dev/stdin", input=patch)
    return keys


def _secret(bed: Bed, name: str) -> dict[str, bytes]:
    text = kubectl(bed, "get", "secret", name, "-n", names.SYSTEM_NAMESPACE, "-o", "json")
    data = json.loads(text).get("data") or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


def _write_ca(bed: Bed) -> Path:
    found: dict[str, bytes] = {}

    def has_authority() -> bool:
        found.update(_secret(bed, names.GATEWAY_TLS_SECRET))
        return "ca.crt" in found

    wait_until("the gateway has a certificate", has_authority, PATIENCE_S, 0.5)
    path = bed.state / "gateway-ca.crt"
    path.write_bytes(found["ca.crt"])
    return path


def _write_environment(bed: Bed, made: Installation) -> None:
    lines = [f"export {key}={shlex.quote(value)}" for key, value in made.environment().items()]
    path = environment_file(bed)
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")


def read_environment(bed: Bed) -> dict[str, str]:
    """What `client.env` says; empty when there is none."""
    path = environment_file(bed)
    if not path.exists():
        return {}
    words = [shlex.split(line)[-1] for line in path.read_text().splitlines() if line]
    return dict(word.split("=", 1) for word in words)


# --- waiting ------------------------------------------------------------------------------------


def _wait_for_services(bed: Bed) -> None:
    for name in ("sandman-webhook", "sandman-gateway"):
        options = ["-n", names.SYSTEM_NAMESPACE, f"--timeout={PATIENCE_S:.0f}s"]
        kubectl(bed, "rollout", "status", f"deployment/{name}", *options)


def _wait_for_placeholders(bed: Bed, daemon: str) -> None:
    """Until as many wait as the pools ask for, all with this daemon.

    Placeholders keep the daemon that they were made with: those of an earlier build are deleted, and
    again, for a webhook of the earlier build still answers while it ends.
    """

    def all_wait() -> bool:
        _delete_placeholders_of_another(bed, daemon)
        return all(
            one.get("status", {}).get("readyReplicas", 0) >= one["spec"]["replicas"]
            and one["status"].get("observedGeneration") == one["metadata"]["generation"]
            and one["status"].get("updatedReplicas", 0) >= one["spec"]["replicas"]
            for one in _objects(bed, "deployments", names.LABEL_POOL)
        ) and not _placeholders_of_another(bed, daemon)

    wait_until("every pool has its placeholders", all_wait, PATIENCE_S, 0.5)


def _placeholders_of_another(bed: Bed, daemon: str) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in _objects(bed, "pods", f"{names.LABEL_STATE}={names.STATE_FREE}")
        if daemon not in json.dumps(one["spec"]) and "deletionTimestamp" not in one["metadata"]
    ]


def _delete_placeholders_of_another(bed: Bed, daemon: str) -> None:
    if old := _placeholders_of_another(bed, daemon):
        say(f"replacing {len(old)} placeholders of an earlier build")
        options = ["-n", names.SANDBOX_NAMESPACE, "--wait=false", "--ignore-not-found"]
        kubectl(bed, "delete", "pod", *options, *old)


def _wait_for_gateway(made: Installation) -> None:
    """By its node port, as a client comes: certificate, key and pools are all in it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        trouble = _ask_for_pools(made)
        if trouble is None:
            return
        if time.monotonic() > deadline:
            raise BedError(f"the gateway at {made.url} does not serve pools: {trouble}")
        time.sleep(0.5)


def _ask_for_pools(made: Installation) -> str | None:
    """What is wrong, or None."""
    context = ssl.create_default_context(cafile=str(made.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=5, context=context)
    try:
        connection.request("GET", "/v1/pools", headers={"Authorization": f"Bearer {made.token}"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except OSError as error:
        return str(error)
    finally:
        connection.close()
    return None if answer.status == http.client.OK else f"{answer.status} {text[:300]}"


def _objects(bed: Bed, kind: str, selector: str) -> list[dict[str, Any]]:
    text = kubectl(bed, "get", kind, "-n", names.SANDBOX_NAMESPACE, "-l", selector, "-o", "json")
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


# --- when it goes wrong -------------------------------------------------------------------------


def report(bed: Bed) -> str:
    """States, complaints and last words of Sandman's pods."""
    kube = [bed.bin / "kubectl", f"--kubeconfig={bed.kubeconfig}"]
    parts = []
    for namespace in (names.SYSTEM_NAMESPACE, names.SANDBOX_NAMESPACE):
        parts.append(f"==> {namespace}")
        parts.append(attempt([*kube, "get", "pods,deployments", "-n", namespace, "-o", "wide"]))
        events = [*kube, "get", "events", "-n", namespace, "--sort-by=.lastTimestamp"]
        warnings = attempt([*events, "--field-selector=type=Warning"]).splitlines()
        parts += warnings[-15:]
    for name in ("sandman-webhook", "sandman-gateway"):
        selector = f"--selector=app.kubernetes.io/name={name}"
        logs = ["logs", "-n", names.SYSTEM_NAMESPACE, selector, "--tail=25", "--prefix"]
        parts.append(f"==> logs of {name}\n{attempt([*kube, *logs])}")
    return "\n".join(parts)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.install", description=__doc__)
    parser.add_argument("--env-file", action="store_true", help="only say where client.env is")
    options = parser.parse_args()
    bed = Bed.from_env()
    if options.env_file:
        say(str(environment_file(bed)))
        return 0
    began = time.monotonic()
    try:
        made = install(bed)
    except BedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    say(f"Sandman answers at {made.url} ({time.monotonic() - began:.0f} s)")
    say(f"for a shell: source {environment_file(bed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
