"""A run's report: one HTML file with everything in it, from the run's JSON document. Pure."""

from __future__ import annotations

import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest import panels
from loadtest.bars import milliseconds
from loadtest.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STYLE = (Path(__file__).parent / "report.css").read_text()


def page(document: Mapping[str, Any]) -> str:
    """The file."""
    record = Record.of(document["record"])
    line, readings = panels.Timeline(document), document["readings"]
    charts = {
        "Latency": [*panels.latencies(line, record), panels.distribution(record)],
        "What was served": [panels.tiers(line, record), panels.rates(line, record)],
        "Errors": [panels.failures(line, record)],
        "Where time went": panels.stages(line, record),
        "Programs": panels.programs(line, readings),
    }
    sections = [
        _summary(document),
        _bars(document["bars"]),
        _section("Calls", [_calls(document["calls"])], is_wide=True),
    ]
    if "tenants" in document:
        sections.append(_section("Tenants", [_tenants(document["tenants"])], is_wide=True))
    if document["errors"]:
        sections.append(_section("Errors, by reason", [_errors(document["errors"])], is_wide=True))
    sections += [_section(title, drawn) for title, drawn in charts.items()]
    sections.append(
        _section("Programs, in numbers", [_programs(document["programs"])], is_wide=True)
    )
    sections.append(_section("Asked for", [_asked(document)], is_wide=True))
    return whole(f"{document['scenario']} · {document['run']}", "".join(sections))


def whole(title: str, body: str) -> str:
    """A page of ours."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """A table whose first so many columns are text, the others numbers."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{"text" if n < texts else "number"}">{escape(str(cell))}</td>'
            for n, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(title: str, parts: Sequence[str], *, is_wide: bool = False) -> str:
    drawn = [part for part in parts if part]
    if not drawn:
        return ""
    kind = "wide" if is_wide else "charts"
    return f'<section><h2>{escape(title)}</h2><div class="{kind}">{"".join(drawn)}</div></section>'


def _summary(document: Mapping[str, Any]) -> str:
    began = document["phases"][0][1]
    when = datetime.datetime.fromtimestamp(began, datetime.UTC)
    machine, made = document["machine"], document["sandboxes"]
    create = document["calls"].get("create", {})
    errors = sum(one["count"] for one in document["errors"])
    tiles = [
        ("sandboxes", f"{made['handed']:,}", _tiers(document["tiers"])),
        (
            "allocation, p50",
            milliseconds(create.get("p50")),
            f"p99 {milliseconds(create.get('p99'))}",
        ),
        (
            "errors",
            f"{errors:,}",
            f"{sum(one['retries'] for one in document['calls'].values()):,} tries made again",
        ),
        ("left at the end", _or_unknown(made["left"]), _gone(made)),
    ]
    if (command := document["calls"].get("exec")) is not None:
        tiles.insert(
            2, ("exec, p50", milliseconds(command["p50"]), f"p99 {milliseconds(command['p99'])}")
        )
    told = "".join(
        f"<div class=tile><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(more)}</small></div>"
        for name, value, more in tiles
    )
    where = " · ".join(str(machine[name]) for name in ("system", "processor", "python"))
    return (
        f"<header><h1>{escape(document['scenario'])}</h1><p>{escape(document['run'])} · "
        f"{when:%Y-%m-%d %H:%M} UTC · {document['ended'] - began:.0f} s</p>"
        f"<p>{escape(where)} · {machine['cores']} cores, load {machine['load']}</p></header>"
        f'<div class="tiles">{told}</div>'
    )


def _tiers(tiers: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {tier}" for tier, count in tiers.items()) or "none"


def _gone(made: Mapping[str, Any]) -> str:
    if made["gone_s"] is not None:
        return f"all reclaimed after {made['gone_s']:.1f} s"
    return f"{made['released_at_the_end']:,} released at the end"


def _or_unknown(value: object) -> str:
    return "?" if value is None else str(value)


def _bars(bars: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f'<tr class="{"met" if one["is_met"] else "missed"}"><td class="text">{escape(one["what"])}</td>'
        f'<td class="number">{escape(one["bar"])}</td><td class="number">{escape(one["seen"])}</td>'
        f'<td class="verdict">{"met" if one["is_met"] else "missed"}</td></tr>'
        for one in bars
    )
    return (
        '<section><h2>Bars</h2><div class="wide"><div class="scroll"><table><thead><tr><th>what</th><th>bar</th>'
        f"<th>seen</th><th></th></tr></thead><tbody>{rows}</tbody></table></div></div></section>"
    )


def _calls(calls: Mapping[str, Mapping[str, Any]]) -> str:
    heads = (
        "call",
        "count",
        "a second",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "most",
        "tried again",
        "errors",
    )
    return table(
        heads,
        (
            (
                name,
                f"{calls[name]['count']:,}",
                f"{calls[name]['per_s']:.1f}",
                *(milliseconds(calls[name][key]) for key in ("p50", "p90", "p99", "p999", "max")),
                f"{calls[name]['retries']:,}",
                f"{calls[name]['errors']:,}",
            )
            for name in panels.ordered(calls)
        ),
    )


def _errors(errors: Sequence[Mapping[str, Any]]) -> str:
    rows = ((one["call"], one["reason"], one["first"], f"{one['count']:,}") for one in errors)
    return table(("call", "reason", "the first of that reason", "count"), rows, texts=3)


def _tenants(tenants: Mapping[str, Mapping[str, Any]]) -> str:
    rows = (
        (name, one["weight"], f"{one['served']:,}", _part(one["share"]), _part(one["wanted"]))
        for name, one in tenants.items()
    )
    return table(("tenant", "weight", "served", "share", "by its weight"), rows)


def _part(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"


def _programs(programs: Mapping[str, Mapping[str, Any]]) -> str:
    heads = (
        "program",
        "most memory",
        "processor",
        "cores, mean",
        "writes",
        "writes a sandbox",
        "claim writes a sandbox",
    )
    return table(
        heads,
        (
            (
                name,
                panels.megabytes(one["memory_most"]) if "memory_most" in one else "—",
                f"{one['cpu_s']:.1f} s" if "cpu_s" in one else "—",
                _number(one.get("cores_mean")),
                _number(one.get("writes")),
                _number(one.get("writes_a_sandbox")),
                _number(one.get("claim_writes_a_sandbox")),
            )
            for name, one in programs.items()
        ),
    )


def _number(value: float | None) -> str:
    return "—" if value is None else panels.plain(value)


def _asked(document: Mapping[str, Any]) -> str:
    target = document["target"]
    rows = [
        *document["plan"].items(),
        *((f"target {name}", value) for name, value in target.items()),
    ]
    return table(("flag", "value"), ((name, value) for name, value in rows), texts=2)
