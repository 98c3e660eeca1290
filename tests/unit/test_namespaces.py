"""A further namespace for sandboxes has all that the first one has: the same files make both."""

from __future__ import annotations

from typing import Any

import yaml

from gateway.config import PREFIX, Settings
from gateway.spread import NAMESPACE_PODS
from sandman import names
from sandman.version import __version__
from tests.unit.test_manifests import MANIFESTS, OBJECTS, get

SECOND = MANIFESTS / "components" / "second-namespace"


def listed(folder: Any) -> dict[str, Any]:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def test_all_that_a_namespace_needs_is_in_the_one_folder() -> None:
    """Pools apart, which an installation makes as it likes, and an egress profile, which is an option."""
    here = MANIFESTS / "sandboxes"
    kinds = {one.value["kind"] for one in OBJECTS if one.file.parent == here}
    assert kinds == {"Namespace", "NetworkPolicy", "ResourceQuota", "Role", "RoleBinding"}
    elsewhere = [
        str(one)
        for one in OBJECTS
        if one.value["metadata"].get("namespace") == names.SANDBOX_NAMESPACE
        and one.file.parent != here
    ]
    others = {one for one in elsewhere if not one.startswith("Deployment-")}
    assert others == {"NetworkPolicy-sandman-network-model"}
    assert "../sandboxes" in listed(MANIFESTS / "base")["resources"]


def test_the_second_namespace_is_made_of_it_and_the_gateway_is_told() -> None:
    folder = SECOND / "sandboxes"
    inner = listed(folder)
    made = [(folder / one).resolve() for one in inner["resources"]]
    assert made == [MANIFESTS / "sandboxes", MANIFESTS / "base" / "pools"]
    assert inner["images"] == [{"name": "sandman-placeholder", "newTag": __version__}]
    [patch] = listed(SECOND)["patches"]
    [container] = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    [variable] = container["env"]
    assert variable["name"] == f"{PREFIX}SANDBOX_NAMESPACES"
    told = Settings.from_env({variable["name"]: variable["value"]}).sandbox_namespaces
    assert told == (names.SANDBOX_NAMESPACE, inner["namespace"])


def test_the_quota_is_what_the_gateway_takes_a_namespace_to_hold() -> None:
    assert get("ResourceQuota", "sandman-pods")["spec"]["hard"] == {
        "count/pods": str(NAMESPACE_PODS)
    }
