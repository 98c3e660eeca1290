"""The documents' commands that want a cluster, as they stand and in their order, on the installation that all tests share.

The namespace is put in that this installation serves workloads in already, so that nothing starts anew. Installation and
removal are in test_zzz_installation.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from sandman import names
from tests.cluster import faults, reading, services
from tests.cluster.bed import kubectl, reference
from tests.cluster.install import WORKLOADS
from tests.cluster.shop import RESTRICTED, Shop, opened, workload
from tests.examples import blocks, reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def test_the_demo_resolves_its_task(sandman, tmp_path):
    commands, has = reading.typed("README.md"), reader.Reader(has=reader.CACHE)
    said = reading.run(sandman, "README.md", commands, tmp_path, has)
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
    found = blocks.of(blocks.ROOT / reading.OPERATIONS)
    [text] = [one.text for one in found if "sortOptions" in one.text]
    text = text.replace("…/manifests", os.path.relpath(blocks.ROOT / "manifests", place.resolve()))
    text = text.replace("registry.example", sandman.bed.registry)
    for image in sandman.installation.images.values():
        name, _, tag = image.rpartition(":")
        text, times = re.subn(rf"(newName: {name}, newTag: )…", rf'\1"{tag}"', text)
        assert times == 1, f"{name} is not what the document says"
    return text


def test_operations_bring_the_daemon_into_a_workload_and_to_its_callers(sandman, shop, tmp_path):
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
    commands = reading.typed(reading.OPERATIONS)
    commands = [one for one in commands if not one.startswith(reading.REMOVE)]
    reading.run(sandman, reading.OPERATIONS, commands, tmp_path)
    shop.one_ready("app", injected=True)
    template = shop.get("deployment", "web")["spec"]["template"]
    assert names.LABEL_INJECT not in template["metadata"]["labels"]
    with shop.client() as client:
        box = shop.attach(client, "app")
        assert box.exec(["nginx", "-v"]).exit_code == 0
        box.release()
