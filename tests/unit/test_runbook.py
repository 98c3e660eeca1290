"""Whoever is woken by an alert finds what to do: each has a section, and no section is of one that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "manifests/components/monitoring/alerts.yaml"
RUNBOOK = (ROOT / "docs/runbook.md").read_text()


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def sections() -> dict[str, str]:
    found = re.findall(r"^### (Sandman\w+)\n\n(.*?)(?=^#|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert len(found) == len({name for name, _ in found})
    return dict(found)


def test_each_alert_has_a_section_and_each_section_an_alert():
    assert len(alerts()) >= 12
    assert set(sections()) == alerts()


def test_each_section_says_where_to_look_and_what_to_do():
    for name, text in sections().items():
        assert "Look: " in text, name
        assert "Do: " in text, name


def test_metrics_that_it_names_are_told_of():
    known = set(re.findall(r"`(sandman_[a-z_]+)", (ROOT / "docs/operations.md").read_text()))
    named = set(re.findall(r"sandman_[a-z_]+", RUNBOOK))
    assert len(named) >= 6
    assert named <= known
