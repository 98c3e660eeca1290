"""Documents are tested: what a program knows by name stands in them too."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from daemon import http1
from gateway import config as gateway_config
from gateway.routes.forward import FORWARDED
from gateway.routes.sockets import SOCKETS
from sandman import errors, handles, names, sessions, wire
from webhook import config as webhook_config

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
    for reason, cls in errors.by_reason().items()
    if not cls.__subclasses__() and cls.__module__ == errors.__name__
)


@pytest.mark.parametrize("reason", LEAVES)
def test_every_error_is_documented_with_status_and_cause(reason):
    cls = errors.by_reason()[reason]
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


def test_every_metric_is_documented():
    known = set(re.findall(r'"(sandman_[a-z_]+)"', text("gateway/metrics.py")))
    assert len(known) >= 5
    for metric in known:
        assert metric in text("docs/operations.md")


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
    for folder in ("sandman", "gateway", "webhook", "daemon"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = path.read_text().count("\n")
            assert lines <= 400, f"{path}: {lines} lines"
