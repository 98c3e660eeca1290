"""What more sandboxes cost, as a picture: `python -m tests.scale.curve` draws the last `hold` of `build/scale/report.jsonl`."""

from __future__ import annotations

import argparse
import json
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.bars import milliseconds
from loadtest.charts import HEIGHT, WIDTH, Series, chart
from loadtest.panels import plain
from tests.scale import measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLE = (Path(__file__).parents[2] / "loadtest" / "report.css").read_text()
GAP = 34
"""Pixels about each chart: its title is above it."""
_SVG = re.compile(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>(.*)</svg>", re.DOTALL)


def levels(report: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Of the last run that held sandboxes, by their number.

    Raises:
        ValueError: there is none.
    """
    found = [
        one
        for line in report.read_text().splitlines()
        if (one := json.loads(line))["what"] == "hold"
    ]
    if not found:
        raise ValueError(f"{report} has no hold")
    return sorted((int(count), level) for count, level in found[-1]["levels"].items())


def charts(held: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Title and figure of each."""
    at = [count for count, _ in held]

    def timed(call: str) -> list[Series]:
        return [
            Series(name, [(count, level[call][f"{name}_ms"]) for count, level in held], colour)
            for colour, name in enumerate(("p50", "p90", "p99"))
        ]

    cpu = [
        Series(
            "ms", list(zip(at, (one["gateway_cpu_ms_per_exec"] for _, one in held), strict=True))
        )
    ]
    memory = [
        Series(name, [(count, level["memory_mb"][name]) for count, level in held], colour)
        for colour, name in enumerate(sorted(held[0][1]["memory_mb"]))
    ]
    every = {"show_x": plain, "log_x": True}
    return [
        (
            "An allocation: p50, p90, p99",
            chart("", timed("allocation"), show=milliseconds, log=True, **every),
        ),
        (
            "A command: p50, p90, p99",
            chart("", timed("exec"), show=milliseconds, log=True, **every),
        ),
        ("Gateways' processor for a command, ms", chart("", cpu, show=plain, **every)),
        ("Gateways' memory, MB", chart("", memory, show=plain, **every)),
    ]


def picture(held: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """The SVG: four charts, by sandboxes held."""
    width, height = 2 * (WIDTH + GAP), 2 * (HEIGHT + 2 * GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
        f"<style>{STYLE} svg{{overflow:visible;width:auto;height:auto}}</style>"
        '<rect width="100%" height="100%" fill="var(--bg)"/>'
    )
    parts = [head]
    for number, (title, figure) in enumerate(charts(held)):
        x, y = GAP + number % 2 * (WIDTH + GAP), GAP + number // 2 * (HEIGHT + 2 * GAP)
        view, inner = _SVG.search(figure).groups()  # type: ignore[union-attr]
        parts.append(
            f'<text x="{x}" y="{y}" style="font-size:14px">{escape(title)}, by sandboxes held</text>'
        )
        parts.append(
            f'<svg x="{x}" y="{y + 12}" width="{WIDTH}" height="{HEIGHT}" {view}>{inner}</svg>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.curve", description=__doc__)
    parser.add_argument("--report", type=Path, default=measure.REPORT)
    parser.add_argument("--output", type=Path, default=Path("build/scale/curve.svg"))
    given = parser.parse_args()
    given.output.write_text(picture(levels(given.report)))


if __name__ == "__main__":
    main()
