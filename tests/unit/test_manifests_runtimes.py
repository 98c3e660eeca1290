"""Pools under other container runtimes, and with user namespaces: what their components say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sandman import names
from sandman.version import __version__

COMPONENTS = Path(__file__).parents[2] / "manifests" / "components"
BASE_POOLS = COMPONENTS.parent / "base" / "pools"


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def without_comments(path: Path) -> dict[str, Any]:
    """A pool's document with what tells one pool from another taken out."""
    document = read(path)
    pool = document["metadata"]["labels"].pop(names.LABEL_POOL)
    assert document["metadata"].pop("name") == f"sandman-pool-{pool}"
    spec = document["spec"]
    assert spec["selector"]["matchLabels"].pop(names.LABEL_POOL) == pool
    assert spec["template"]["metadata"]["labels"].pop(names.LABEL_POOL) == pool
    del spec["replicas"]
    return document


@pytest.mark.parametrize("runtime", ["gvisor", "kata"])
def test_a_pool_under_another_runtime_is_as_root_but_for_what_that_runtime_cannot(
    runtime: str,
) -> None:
    component = read(COMPONENTS / runtime / "kustomization.yaml")
    assert (component["kind"], component["resources"]) == ("Component", ["pool.yaml"])
    pool, root = (
        without_comments(COMPONENTS / runtime / "pool.yaml"),
        without_comments(BASE_POOLS / "root.yaml"),
    )
    template = pool["spec"]["template"]
    assert template["spec"].pop("runtimeClassName") == runtime
    # A component is beyond the base's own `images`, which give the tag there.
    (sandbox,), (usual_one,) = (
        template["spec"]["containers"],
        root["spec"]["template"]["spec"]["containers"],
    )
    assert (sandbox.pop("image"), usual_one.pop("image")) == (
        f"sandman-placeholder:{__version__}",
        "sandman-placeholder",
    )
    # An image volume stays empty, or fails, there.
    assert template["metadata"]["annotations"].pop(names.ANNOTATION_DELIVERY) == names.DELIVERY_INIT
    annotations, usual = pool["metadata"]["annotations"], root["metadata"]["annotations"]
    assert (
        annotations.pop(names.ANNOTATION_POOL_RESIZE),
        usual.pop(names.ANNOTATION_POOL_RESIZE),
    ) == ("false", "true")
    # Chosen for nobody who did not name it: it is slower, and a few system calls are not there.
    assert usual.pop(names.ANNOTATION_POOL_CHOOSE) == "true"
    assert pool == root


def test_user_namespaces_are_for_every_pool_and_nothing_else() -> None:
    component = read(COMPONENTS / "user-namespaces" / "kustomization.yaml")
    (patch,) = component["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": "sandman-pool-.*"}
    assert yaml.safe_load(patch["patch"]) == [
        {"op": "add", "path": "/spec/template/spec/hostUsers", "value": False}
    ]
    assert set(component) == {"apiVersion", "kind", "patches"}
    for pool in BASE_POOLS.glob("r*.yaml"):
        assert "hostUsers" not in read(pool)["spec"]["template"]["spec"]
