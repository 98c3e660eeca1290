"""What the scale bed tells KWOK, and what is applied to it. Pure."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

import pytest
import yaml

from sandman import names
from tests.scale import manifests, model, nodes, tenants
from tests.scale.caller import Tally

if TYPE_CHECKING:
    from pathlib import Path

READY = {
    "metadata": {"name": "pod-ready"},
    "spec": {"selector": {"matchExpressions": []}, "next": {"statusTemplate": "ready"}},
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Stages as KWOK has them."""
    for place in (
        "pod/fast/pod-ready", "pod/fast/pod-delete", "node/fast/node-initialize", "node/heartbeat/node-heartbeat",
    ):  # fmt: skip
        path = tmp_path / f"{place}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({**READY, "metadata": {"name": path.stem}}))
    return tmp_path


def stages(own: Path, behaviour: nodes.Behaviour) -> dict[str, dict]:
    found = yaml.safe_load_all(nodes.stages(own, behaviour))
    return {one["metadata"]["name"]: one["spec"] for one in found}


def test_by_default_all_start_at_once(own):
    found = stages(own, nodes.PLAIN)
    assert found.keys() == {"node-initialize", "node-heartbeat", "pod-delete", "pod-ready"}
    assert "delay" not in found["pod-ready"]


def test_a_node_that_is_lost_says_nothing_any_more(own):
    [expression] = stages(own, nodes.PLAIN)["node-heartbeat"]["selector"]["matchExpressions"]
    assert expression["operator"] == "DoesNotExist"
    assert nodes.LABEL_LOST in expression["key"]


def test_starts_take_time_and_some_fail(own):
    found = stages(own, nodes.Behaviour(start_ms=100, jitter_ms=50, failing=5))
    delay = {"durationMilliseconds": 100, "jitterDurationMilliseconds": 150}
    assert found["pod-ready"]["delay"] == found["pod-fails"]["delay"] == delay
    assert (found["pod-ready"]["weight"], found["pod-fails"]["weight"]) == (95, 5)
    assert "phase: Failed" in found["pod-fails"]["next"]["statusTemplate"]
    assert found["pod-ready"]["next"]["statusTemplate"] == "ready"


def test_pods_of_slow_nodes_have_a_stage_of_their_own(own):
    found = stages(own, nodes.Behaviour(slow=(0, 2), slow_ms=9000, failing=1))
    [slow] = found["pod-ready-slow"]["selector"]["matchExpressions"]
    assert (slow["operator"], slow["values"]) == ("In", ["scale-0", "scale-2"])
    assert found["pod-ready-slow"]["delay"]["durationMilliseconds"] == 9000
    for name in ("pod-ready", "pod-fails"):
        [other] = found[name]["selector"]["matchExpressions"]
        assert (other["operator"], other["values"]) == ("NotIn", slow["values"])


def test_every_nodes_pods_are_on_the_loopback_and_nobody_elses():
    ranges = [ipaddress.ip_network(nodes.addresses(number)) for number in range(400)]
    assert len(set(ranges)) == 400
    assert all(one.is_loopback and one.num_addresses > nodes.PODS_A_NODE + 2 for one in ranges)


def test_there_are_nodes_for_all_pods_and_some_to_spare():
    for pods in (1, 110, 111, 11_858):
        assert nodes.count(pods) * nodes.PODS_A_NODE > pods


def test_the_overlay_is_the_base_without_its_pods():
    text = manifests.kustomization(
        model.ROOT, model.ROOT / "build", webhook_port=1234, pods=60, most=100
    )
    value = yaml.safe_load(text)
    assert value["resources"] == ["../manifests/base"]
    assert {one["count"] for one in value["replicas"]} == {0}
    patches = {one["target"]["kind"]: json.loads(one["patch"]) for one in value["patches"]}
    urls = {one["value"]["url"] for one in patches["MutatingWebhookConfiguration"]}
    assert urls == {"https://127.0.0.1:1234/mutate"}
    bounds = {one["path"].rpartition("~1")[2]: one["value"] for one in patches["Deployment"]}
    assert (bounds["min"], bounds["max"]) == ("60", "100")
    assert names.ANNOTATION_POOL_MAX.endswith("/max")
    assert patches["ResourceQuota"][0]["value"] == str(100 + manifests.SLACK)


def test_what_load_is_told_is_read_again(tmp_path):
    target = model.Target(
        ["https://127.0.0.1:1"], ["https://127.0.0.1:3/metrics"], "/ca", {"north": {"key": "k", "weight": 3.0}}, "root", 60,
        {"etcd": 1}, {"url": "https://127.0.0.1:2"}, "/kubeconfig", "/state",
    )  # fmt: skip
    path = tmp_path / "build" / "target.json"
    target.write(path)
    assert model.Target.read(path) == target
    assert path.stat().st_mode & 0o077 == 0


def test_a_tally_tells_of_latencies_errors_and_doubles():
    tally = Tally([0.001 * n for n in range(1, 101)], ["a", "b", "a"], wall_s=2.0)
    told = tally.told()
    assert (told["p50_ms"], told["p99_ms"], told["max_ms"]) == (51.0, 100.0, 100.0)
    assert (told["per_s"], told["doubles"]) == (50.0, 1)
    assert Tally().told()["p99_ms"] == 0.0


def test_how_many_are_free_is_read_from_a_gateways_metrics():
    page = (
        '# HELP x\nsandman_pool_vetted{pool="root"} 300.0\nsandman_pool_vetted{pool="other"} 1.0\n'
    )
    assert tenants._value(page, 'sandman_pool_vetted{pool="root"}') == 300
    assert tenants._value("", "sandman_pool_vetted") == 0
