"""The monitoring component and the program mean the same port, label and path."""

from __future__ import annotations

import json
from typing import Any

import yaml

from gateway.config import PREFIX, Settings
from sandman import names
from tests.unit.test_manifests import MANIFESTS, get

FOLDER = MANIFESTS / "components" / "monitoring"


def component() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def test_the_port_is_the_same_everywhere_and_closed_to_callers() -> None:
    [patch] = component()["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": "sandman-gateway"}
    port, variable = (one["value"] for one in yaml.safe_load(patch["patch"]))
    number = port["containerPort"]
    assert Settings.from_env({variable["name"]: variable["value"]}).metrics_port == number
    assert variable["name"] == f"{PREFIX}METRICS_PORT"
    policy = get("NetworkPolicy", "sandman-gateway-metrics")["spec"]
    assert policy["podSelector"] == get("NetworkPolicy", "sandman-gateway")["spec"]["podSelector"]
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": number}]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {names.LABEL_MONITORING: "enabled"}}}
    ]
    [endpoint] = get("PodMonitor", "sandman-gateway")["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == (
        port["name"],
        "/metrics",
        "https",
    )
    assert endpoint["tlsConfig"]["serverName"] == Settings().server_name
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == names.GATEWAY_TLS_SECRET
    ports = get("Service", "sandman-gateway")["spec"]["ports"]
    assert [one["targetPort"] for one in ports] == ["https"]


def test_without_the_component_there_is_no_such_port() -> None:
    assert Settings().metrics_port == 0


def test_alerts_say_what_to_look_at() -> None:
    [group] = get("PrometheusRule", "sandman")["spec"]["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["for"]
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")


def test_the_dashboard_is_shown_whole_and_its_panels_do_not_overlap() -> None:
    [generated] = component()["configMapGenerator"]
    assert generated["files"] == ["dashboard.json"]
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
