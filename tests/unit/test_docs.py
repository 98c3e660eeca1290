"""Documents are tested: what a program knows by name stands in them too."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from daemon import http1
from gateway import config as gateway_config
from gateway.allocation import Allocation
from gateway.attached import Attached
from gateway.metrics import Metrics
from gateway.model import Instance, PoolSpec, Ready, Timings
from gateway.outcomes import Outcomes
from gateway.provider import PoolSeen, Seen
from gateway.registry import Registry
from gateway.roster import Roster
from gateway.routes.forward import FORWARDED
from gateway.routes.sockets import SOCKETS
from sandman import errors, handles, names, problems, sessions, wire
from webhook import config as webhook_config

if TYPE_CHECKING:
    from prometheus_client import Metric

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def source(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(gateway_config.Settings)])
def test_every_setting_of_the_gateway_is_documented(field):
    assert f"`{gateway_config.PREFIX}{field.upper()}`" in text("docs/operations.md")


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(webhook_config.Config) if f.name != "version"]
)
def test_every_setting_of_the_webhook_is_documented(field):
    assert f"`{webhook_config.PREFIX}{field.upper()}`" in text("docs/operations.md")


LEAVES = sorted(
    reason
    for reason, cls in problems.by_reason().items()
    if not cls.__subclasses__() and cls.__module__ == errors.__name__
)


@pytest.mark.parametrize("reason", LEAVES)
def test_every_error_is_documented_with_status_and_cause(reason):
    cls = problems.by_reason()[reason]
    row = f"| `{reason}` | {cls.status} | {cls.cause} |"
    assert row in text("docs/api.md")
    assert re.search(rf"{cls.__name__} +{cls.status} {reason}\b", errors.__doc__ or "")


@pytest.mark.parametrize("status", sorted(http1.REASONS.keys() - {200, 204}))
def test_every_status_of_the_daemon_is_documented(status):
    assert re.search(rf"\b{status}\b", text("docs/api.md"))


def test_every_route_is_documented():
    routes = set(re.findall(r'Route\(\s*f?"([^"]+)"', source("gateway/routes")))
    assert len(routes) >= 8
    api = text("docs/api.md")
    for route in routes:
        for tail in FORWARDED if "{path}" in route else [""]:
            shown = route.replace("{{id}}", "{id}").replace("{path}", tail).replace(":path}", "}")
            short = shown.replace("/v1/sandboxes/{id}/", "…/")
            assert shown in api or short in api, shown
    for tail in SOCKETS:
        assert f"| `…/{tail.replace(':path}', '}')}` |" in api, tail


@pytest.mark.parametrize(
    "name",
    sorted(k for k in vars(names) if k.startswith(("LABEL_", "ANNOTATION_", "GATE_"))),
)
def test_every_label_and_annotation_is_documented(name):
    value = getattr(names, name)
    short = value.removeprefix(names.DOMAIN)
    operations = text("docs/operations.md")
    assert f"`{value}" in operations or f"`{short}`" in operations or value.startswith("cluster-")


def test_every_metric_is_documented_with_its_labels_and_no_other():
    known = re.findall(
        r'"(sandman_[a-z_]+)"', text("gateway/metrics.py") + text("gateway/gauges.py")
    )
    assert len(known) >= 16
    told = {family.name: family for family in whole_metrics() if family.name not in PROCESS}
    assert set(told) == set(known)
    rows = re.findall(
        r"^\| `(sandman_[a-z_]+)(?:\{([a-z,]+)\})?` \|", text("docs/operations.md"), re.MULTILINE
    )
    shown = {name: set(labels.split(",")) - {""} for name, labels in rows}
    assert shown == {
        name + ("_total" if family.type == "counter" else ""): labels_of(family)
        for name, family in told.items()
    }


PROCESS = {
    *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
    *("process_cpu_seconds", "process_open_fds", "process_max_fds"),
}  # fmt: skip
"""What prometheus-client tells of any program."""


def test_metrics_of_the_process_are_told_and_documented():
    assert {family.name for family in whole_metrics()} >= PROCESS
    row = next(line for line in text("docs/operations.md").splitlines() if "`process_" in line)
    assert {
        name.removesuffix("_total") for name in re.findall(r"`(process_[a-z_]+)`", row)
    } == PROCESS


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml"])
def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_there_are(file):
    samples = {
        sample.name: set(sample.labels) for family in whole_metrics() for sample in family.samples
    }
    asked = expressions(file)
    assert len(asked) >= 10
    for expression in asked:
        used = set(re.findall(r"\bsandman_[a-z_]+", expression))
        assert used, expression
        assert used <= set(samples), expression
        may = set.union(*(samples[name] for name in used))
        grouped = re.findall(r"\bby \(([a-z, ]+)\)", expression)
        matched = re.findall(r"([a-z]+)(?:=|!=|=~|!~)\"", expression)
        assert {label.strip() for one in grouped for label in one.split(",")} <= may, expression
        assert set(matched) <= may, expression


def expressions(file: str) -> list[str]:
    """The PromQL in a file."""
    document = yaml.safe_load(text(f"manifests/components/monitoring/{file}"))
    if file.endswith(".json"):
        return [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in document["spec"]["groups"] for rule in group["rules"]]


def whole_metrics() -> list[Metric]:
    """All that a gateway tells, with one sample of each series."""
    roster = Roster(Registry(keep_ended=1), Allocation(cold_max=1, claims_max=1))
    roster.apply(PoolSeen(PoolSpec("ns", "root", "x", True, 1, None)))
    roster.apply(
        Seen(Instance(namespace="ns", name="p", uid="u", version="1", pool="root", state="free"))
    )
    ready = Ready(roster.registry.all()[0], "b", Timings(1.0, 1.0, 1.0))
    pool = SimpleNamespace(outcomes=Outcomes(), waiting=lambda: [("acme", 1.0)])
    with pool.outcomes.of("root", {"root"}) as outcome:
        outcome.made(ready)
    metrics = Metrics(roster)
    metrics.watch_pool(pool)
    metrics.watch_writes({("patch", "pods", "ok"): 1}, {"warm": 1})
    metrics.watch_networks({"ns": True})
    metrics.watch_ends({("oom", "sandbox"): 1})
    attached = Attached(roster.ledger, lambda: 0.0, keep_ended=1)
    metrics.watch_attachments(attached, {("released", "caller"): 1})
    metrics.watch_authentications({("key", "ok"): 1})
    metrics.allocated(ready)
    metrics.firsts.made("x", 1.0)
    metrics.commanded("x", "warm", 2.0)
    metrics.failed("capacity")
    return list(text_string_to_metric_families(metrics.render_all().decode()))


def labels_of(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


@pytest.mark.parametrize("kind", sorted(wire.FRAME_TYPES.values()))
def test_every_frame_is_documented(kind):
    assert kind.upper() in text("docs/api.md")


@pytest.mark.parametrize("field", wire.ExecResult._fields)
def test_every_member_of_a_result_is_documented(field):
    assert f"`{field}`" in text("docs/api.md")


@pytest.mark.parametrize("field", wire.ExecSpec._fields)
def test_every_option_of_a_command_is_documented(field):
    assert f"`{field}`" in text("docs/api.md")


@pytest.mark.parametrize("field", handles.ProcessInfo._fields)
def test_every_member_of_a_started_command_is_documented(field):
    assert re.search(rf"\b{field}\b", text("docs/api.md"))


@pytest.mark.parametrize(
    "field",
    sorted({*sessions.SessionSpec._fields, *sessions.SessionInfo._fields})
    + sorted({*sessions.SessionResult._fields, *sessions.TurnSpec._fields} - {"kind"}),
)
def test_every_member_of_a_session_is_documented(field):
    assert re.search(rf"\b{field}\b", text("docs/api.md").partition("### `…/sessions`")[2])


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} → {target}"


def test_the_readmes_python_is_python():
    for block in re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL):
        ast.parse("async def block():\n" + "".join(f"    {line}\n" for line in block.splitlines()))


def test_modules_stay_small():
    """400 lines is where a second noun hides."""
    for folder in ("sandman", "gateway", "webhook", "daemon", "loadtest"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = path.read_text().count("\n")
            assert lines <= 400, f"{path}: {lines} lines"


THREATS = [
    re.split(r" *(?<!\\)\| *", line.strip())[1:-1]
    for line in text("docs/security.md").splitlines()
    if line.startswith("| ") and not line.startswith("| threat |")
]
HELD_BY = re.compile(r"`([a-z_0-9/]+)(?:::([a-z_0-9]+))?`")


def test_the_threats_are_all_read():
    assert len(THREATS) >= 54
    assert {len(row) for row in THREATS} == {3}


@pytest.mark.parametrize("row", THREATS, ids=lambda row: row[0][:40])
def test_every_threat_names_the_tests_that_hold_it(row):
    named = HELD_BY.findall(row[2])
    assert named
    assert HELD_BY.sub("", row[2]).strip(", ") == "", (
        "the third column names tests and nothing else"
    )
    for module, function in named:
        path = ROOT / "tests" / f"{module}.py"
        assert path.name.startswith("test_"), module
        assert path.is_file(), module
        found = re.findall(r"^ *(?:async )?def (test_[a-z0-9_]+)\(", path.read_text(), re.MULTILINE)
        assert found, module
        assert function in {"", *found}, f"{module}::{function}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/cluster").glob("test_hostile_*.py")), ids=str
)
def test_every_suite_of_attempts_stands_in_the_threat_model(path):
    assert f"`cluster/{path.stem}" in text("docs/security.md")
