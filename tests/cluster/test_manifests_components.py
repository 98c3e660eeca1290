"""Kustomize builds each component, and all of them together, into objects whose names are distinct."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from sandman.version import __version__
from tests.cluster.bed import kubectl

if TYPE_CHECKING:
    from tests.cluster.bed import Bed

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMPONENTS = sorted(path.name for path in (MANIFESTS / "components").iterdir())


@pytest.mark.parametrize("chosen", [[], *([name] for name in COMPONENTS), COMPONENTS], ids=str)
def test_components_build(bed: Bed, chosen: list[str], tmp_path: Path) -> None:
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    overlay = {
        "sortOptions": {"order": "fifo"},
        "resources": ["manifests/base"],
        "components": [f"manifests/components/{name}" for name in chosen],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    built = kubectl(bed, "kustomize", str(tmp_path), "--load-restrictor=LoadRestrictionsNone")
    objects = [one for one in yaml.safe_load_all(built) if one]
    keys = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects
    ]
    assert len(set(keys)) == len(keys) > 20
    if "second-namespace" in chosen:
        made = [one for one in keys if one[1] == "sandman-sandboxes-2"]
        # Components of one namespace: an example of a profile, as its own text says, and pools. One copies them.
        assert {one[::2] for one in made} == {
            one[::2] for one in keys if one[1] == "sandman-sandboxes"
        } - {
            ("NetworkPolicy", "sandman-network-model"),
            ("Deployment", "sandman-pool-eval"),
            ("Deployment", "sandman-pool-gvisor"),
            ("Deployment", "sandman-pool-kata"),
        }
        second = [one for one in objects if one["metadata"].get("namespace") == made[0][1]]
        accounts = [
            subject["namespace"]
            for one in second
            if one["kind"] == "RoleBinding"
            for subject in one["subjects"]
        ]
        assert accounts == ["sandman-system"]
    pools = [
        one["spec"]["template"]["spec"] for one in objects
        if one["kind"] == "Deployment" and "sandman.dev/pool" in one["metadata"]["labels"]
    ]  # fmt: skip
    assert len(pools) == len([one for one in keys if one[2].startswith("sandman-pool-")]) >= 2
    assert {one["containers"][0]["image"] for one in pools} == {
        f"sandman-placeholder:{__version__}"
    }
    # Whichever namespace and runtime class they have; and not one of them without the component.
    users = {False} if "user-namespaces" in chosen else {None}
    assert {one.get("hostUsers") for one in pools} == users
    classes = {one["runtimeClassName"] for one in pools if "runtimeClassName" in one}
    assert classes == {"gvisor", "kata"} & set(chosen)
    if "monitoring" in chosen:
        [gateway] = [
            one for one in objects
            if one["kind"] == "Deployment" and one["metadata"]["name"] == "sandman-gateway"
        ]  # fmt: skip
        [container] = gateway["spec"]["template"]["spec"]["containers"]
        assert {one["name"] for one in container["ports"]} == {"https", "metrics"}
        [dashboard] = [
            one for one in objects
            if one["kind"] == "ConfigMap" and "dashboard.json" in one.get("data", {})
        ]  # fmt: skip
        assert '"title": "Sandman"' in dashboard["data"]["dashboard.json"]
