"""Reports anew from their JSON, and several runs of `hold` side by side: what a sandbox more costs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest import panels, report
from loadtest.bars import milliseconds
from loadtest.charts import Series, chart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RATIO = 1.5
"""The most by which a command may be slower at the most sandboxes than at the fewest, by its p50."""


def main(what: str, arguments: Sequence[str]) -> int:
    """`report JSON` and `curve JSON… --out HTML`."""
    parser = argparse.ArgumentParser(prog=f"python -m loadtest {what}")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    documents = [json.loads(path.read_text()) for path in given.files]
    out = given.out or given.files[0].with_suffix(".html")
    out.write_text(report.page(documents[0]) if what == "report" else page(documents))
    sys.stdout.write(f"{out}\n")
    return 0


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page of a curve."""
    runs = sorted(documents, key=lambda one: int(one["sandboxes"]["handed"]))
    ratio = ratio_of(runs)
    told = "not known" if ratio is None else f"{ratio:.2f}"
    verdict = "" if ratio is None else (" (met)" if ratio <= RATIO else " (missed)")
    charts = "".join(
        [
            _chart(runs, "A command, by sandboxes held", "exec"),
            _chart(runs, "An allocation, by sandboxes made", "create"),
            _programs(runs, "Memory of all gateways", "memory_most", panels.megabytes),
            _programs(runs, "Cores of all gateways, mean", "cores_mean", panels.plain),
        ]
    )
    body = (
        "<header><h1>What more sandboxes cost</h1>"
        f"<p>A command's p50 at the most over that at the fewest: {told}{verdict}, bar {RATIO:g}</p></header>"
        f'<section><h2>Runs</h2><div class="wide">{_table(runs)}</div></section>'
        f'<section><h2>Curves</h2><div class="charts">{charts}</div></section>'
    )
    return report.whole("What more sandboxes cost", body)


def ratio_of(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """A command's p50 at the most sandboxes over that at the fewest."""
    found = [p50 for one in runs if (p50 := one["calls"].get("exec", {}).get("p50"))]
    return found[-1] / found[0] if len(found) > 1 else None


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    heads = (
        "sandboxes",
        "allocation p50",
        "p99",
        "exec p50",
        "p99",
        "gateways' memory",
        "gateways' cores",
        "errors",
    )
    return report.table(
        heads,
        (
            (
                f"{one['sandboxes']['handed']:,}",
                *(
                    milliseconds(one["calls"].get(call, {}).get(share))
                    for call in ("create", "exec")
                    for share in ("p50", "p99")
                ),
                _told(_sum(one, "memory_most"), panels.megabytes),
                _told(_sum(one, "cores_mean"), panels.plain),
                f"{sum(error['count'] for error in one['errors']):,}",
            )
            for one in runs
        ),
    )


def _chart(runs: Sequence[Mapping[str, Any]], title: str, call: str) -> str:
    series = [
        Series(
            share,
            [(_held(one), one["calls"].get(call, {}).get(share)) for one in runs],
            colour,
        )
        for colour, share in enumerate(("p50", "p90", "p99"))
    ]
    return chart(title, series, show=milliseconds, show_x=panels.plain, log=True, log_x=True)


def _programs(
    runs: Sequence[Mapping[str, Any]], title: str, name: str, show: Callable[[float], str]
) -> str:
    points = [(_held(one), _sum(one, name)) for one in runs]
    return chart(title, [Series("gateways", points)], show=show, show_x=panels.plain, log_x=True)


def _held(run: Mapping[str, Any]) -> float:
    return float(run["sandboxes"]["handed"])


def _sum(run: Mapping[str, Any], name: str) -> float | None:
    """Over all gateways; None where none of them tells it."""
    told = [
        values[name]
        for who, values in run["programs"].items()
        if who.startswith("gateway") and values.get(name) is not None
    ]
    return float(sum(told)) if told else None


def _told(value: float | None, show: Callable[[float], str]) -> str:
    return "—" if value is None else show(value)
