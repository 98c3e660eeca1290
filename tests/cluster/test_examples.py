"""The documents' commands that want a cluster, as they stand and in their order, on the installation that all tests share.

A reader's own registry, namespace, port and token are put in; what the installation is, it is again afterwards.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from sandman import names
from tests.cluster import faults, services
from tests.cluster.bed import kubectl, reference
from tests.cluster.calling import cli
from tests.cluster.install import WORKLOADS
from tests.cluster.shop import RESTRICTED, Shop, opened, workload
from tests.examples import blocks, exceptions, reader, script
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUICKSTART, OPERATIONS = "docs/quickstart-cluster.md", "docs/operations.md"
SECONDS = 300


def typed(file: str) -> list[str]:
    """What a reader of this file types at a cluster."""
    found = blocks.of(blocks.ROOT / file)
    return [
        command
        for block in found
        for command in block.commands
        if block.language in {"sh", "console"} and exceptions.on_the_cluster(file, command)
    ]


@pytest.fixture
def own(sandman) -> dict[str, str]:
    """What a reader has; see `tests.examples.reader`."""
    bed = sandman.bed
    return {
        "KUBECONFIG": str(bed.kubeconfig), "PATH": f"{bed.bin}:{os.environ['PATH']}",
        "OWN_REGISTRY": bed.registry, "OWN_BASE": reference(bed, "python"), "OWN_TASK": sandman.image("debian"),
        "OWN_OVERLAY": str(sandman.installation.manifests), "OWN_NAMESPACE": WORKLOADS,
        "OWN_PORT": str(free_port()), "OWN_CACHE": str(bed.cache),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def services_are_left_alone(sandman) -> Iterator[None]:
    """No test after these waits for gateways that start anew."""

    def generations() -> dict[str, int]:
        found = json.loads(faults.system(sandman, "get", "deployments", "-o", "json"))["items"]
        return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}

    before = generations()
    yield
    assert generations() == before
    sandman.wait_nothing_leased(60)


def test_every_document_that_wants_a_cluster_is_here():
    assert {file for file, _ in exceptions.ON_THE_CLUSTER} == {"README.md", QUICKSTART, OPERATIONS}


def test_the_quickstart_leads_to_a_first_sandbox(sandman, own, tmp_path):
    try:
        said = script.run(script.of(QUICKSTART, typed(QUICKSTART)), tmp_path, own, SECONDS)
    finally:
        if "ci" in {one["id"] for one in json.loads(cli(sandman, "keys", "list", "--json"))}:
            cli(sandman, "keys", "revoke", "ci")
    told = dict(line.split() for line in (tmp_path / "images").read_text().splitlines())
    assert told == dict(sandman.installation.images)
    assert "a sandbox cannot connect to another one" in said
    assert re.search(r"^Linux .* GNU/Linux$", said, re.MULTILINE), said


def test_the_demo_resolves_its_task(own, tmp_path):
    one = reader.Reader(has=reader.CACHE)
    said = script.run(script.of("README.md", typed("README.md"), one), tmp_path, own, SECONDS)
    assert "\nresolved\n" in said


@pytest.fixture
def shop(sandman) -> Iterator[Shop]:
    """A user's namespace as it is before anybody has read the document: nothing of ours is in it."""
    services.publish(sandman.bed)
    with opened(sandman, WORKLOADS) as made:
        kubectl(sandman.bed, "label", "namespace", WORKLOADS, f"{names.LABEL_INJECT}-")
        made.kubectl("delete", "rolebinding", "gateway")
        yield made


def overlay(sandman, place: Path) -> str:
    """The document's own, with the images that were built."""
    [text] = [one.text for one in blocks.of(blocks.ROOT / OPERATIONS) if "sortOptions" in one.text]
    text = text.replace("…/manifests", os.path.relpath(blocks.ROOT / "manifests", place.resolve()))
    text = text.replace("registry.example", sandman.bed.registry)
    for image in sandman.installation.images.values():
        name, _, tag = image.rpartition(":")
        text, found = re.subn(rf"(newName: {name}, newTag: )…", rf'\1"{tag}"', text)
        assert found == 1, f"{name} is not what the document says"
    return text


def test_operations_bring_the_daemon_into_a_workload_and_to_its_callers(
    sandman, shop, own, tmp_path
):
    image = reference(sandman.bed, "nginx")
    shop.create(workload("Deployment", "web", image))
    main = {"name": "main", "image": image, "securityContext": RESTRICTED}
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "app", "namespace": WORKLOADS, "labels": {"app": "app"}},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 1},
    }  # fmt: skip
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(pod))
    (tmp_path / "kustomization.yaml").write_text(overlay(sandman, tmp_path))
    script.run(script.of(OPERATIONS, typed(OPERATIONS)), tmp_path, own, SECONDS)
    shop.one_ready("app", injected=True)
    template = shop.get("deployment", "web")["spec"]["template"]
    assert names.LABEL_INJECT not in template["metadata"]["labels"]
    with shop.client() as client:
        box = shop.attach(client, "app")
        assert box.exec(["nginx", "-v"]).exit_code == 0
        box.release()
