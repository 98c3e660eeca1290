"""Charts as SVG, of nothing but text: they need no library, no network, and follow the page's light or dark."""

from __future__ import annotations

import dataclasses
import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 30
NAME_WIDTH = 34
"""Of a phase's name."""
FEW = 12
"""Points of a line each of which is seen: they were measured, what lies between was not."""
COLOURS = 8
"""Classes `c0` to `c7` of the page's style; more series begin anew."""
Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A line: its points by x; `None` where there is nothing breaks it.

    Args:
        colour: number of a class.
        is_area: filled down to the ground.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int = 0
    is_area: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Axes:
    """How numbers become places. `log` for what spans orders of magnitude."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False
    log_x: bool = False

    def place(self, point: Point) -> Point:
        """Where a point is."""
        x = _part(point[0], self.x, log=self.log_x)
        y = _part(point[1], self.y, log=self.log)
        return (
            LEFT + x * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM),
        )


def _part(value: float, span: tuple[float, float], *, log: bool) -> float:
    low, high = span
    if log:
        value, low, high = (math.log10(max(one, 1e-12)) for one in (value, low, high))
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0


def chart(  # noqa: PLR0913 - one figure, all of it by name
    title: str,
    series: Sequence[Series],
    *,
    show: Callable[[float], str],
    show_x: Callable[[float], str],
    log: bool = False,
    log_x: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    span_x: tuple[float, float] | None = None,
) -> str:
    """A figure with lines; an empty text where there is nothing to draw.

    Args:
        show, show_x: a value as people read it.
        marks: upright lines with a name: where a phase begins.
        span_x: from where to where; as far as there are points else.
    """
    values = [y for one in series for _, y in one.points if y is not None]
    places = [x for one in series for x, _ in one.points]
    if not values:
        return ""
    axes = Axes(span_x or _span_x(places, log=log_x), _span(values, log=log), log, log_x)
    drawn = [*_grid(axes, show, show_x), *_marks(axes, marks)]
    for one in series:
        drawn += _line(axes, one, show, show_x)
    legend = "".join(
        f'<span class="key"><i class="c{one.colour % COLOURS}"></i>{html.escape(one.name)}</span>'
        for one in series
    )
    name = html.escape(title)
    return (
        f'<figure><figcaption><b>{name}</b><span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{"".join(drawn)}</svg></figure>'
    )


def _span_x(places: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(places), max(places)
    if high > low:
        return low, high
    return (low / 2, low * 2) if log else (low, low + 1)


def _span(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if not log:
        return 0.0, ticks(0.0, high)[-1] if high > 0 else 1.0
    low, high = max(low, 1e-3), max(high, 2e-3)
    return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    if high <= low:
        return [low, low + 1]
    raw = (high - low) / most
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between, and their threes where they are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    found = [10.0**number for number in range(first, last + 1)]
    if len(found) <= 4:
        found = sorted([*found, *(3 * one for one in found[:-1])])
    return found


def _grid(axes: Axes, show: Callable[[float], str], show_x: Callable[[float], str]) -> list[str]:
    drawn = []
    for value in decades(*axes.y) if axes.log else ticks(*axes.y):
        _, y = axes.place((axes.x[0], value))
        drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        drawn.append(
            f'<text class="y" x="{LEFT - 6}" y="{y + 3.5:.1f}">{html.escape(show(value))}</text>'
        )
    along = decades(*axes.x) if axes.log_x else ticks(*axes.x, most=6)
    for value in along:
        if axes.x[0] <= value <= axes.x[1]:
            x, _ = axes.place((value, axes.y[0]))
            drawn.append(
                f'<text class="x" x="{x:.1f}" y="{HEIGHT - 10}">{html.escape(show_x(value))}</text>'
            )
    drawn.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    return drawn


def _marks(axes: Axes, marks: Sequence[tuple[float, str]]) -> list[str]:
    drawn, free = [], 0.0
    for at, name in marks:
        if axes.x[0] < at < axes.x[1]:
            x, _ = axes.place((at, axes.y[0]))
            drawn.append(f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            # A name that would lie over the one before, or beyond the edge, is left to other charts.
            if free <= x <= WIDTH - NAME_WIDTH:
                free = x + NAME_WIDTH
                drawn.append(
                    f'<text class="mark" x="{x + 3:.1f}" y="{TOP - 4}">{html.escape(name)}</text>'
                )
    return drawn


def _line(
    axes: Axes, one: Series, show: Callable[[float], str], show_x: Callable[[float], str]
) -> list[str]:
    colour = f"c{one.colour % COLOURS}"
    drawn = []
    for part in parts(one.points):
        places = [axes.place(point) for point in part]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if one.is_area and len(places) > 1:
            ground = HEIGHT - BOTTOM
            drawn.append(
                f'<path class="area {colour}" d="M{path}L{places[-1][0]:.1f} {ground}L{places[0][0]:.1f} {ground}Z"/>'
            )
        if len(places) > 1:
            drawn.append(f'<path class="line {colour}" d="M{path}"/>')
        # A point alone is seen, the others tell their numbers to who points at them.
        kind = "dot" if len(places) == 1 or len(one.points) <= FEW else "spot"
        for (x, y), (at, value) in zip(places, part, strict=True):
            text = html.escape(f"{one.name}: {show(value)} at {show_x(at)}")
            drawn.append(
                f'<circle class="{kind} {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{text}</title></circle>'
            )
    return drawn


def parts(points: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """The pieces of a line between its gaps."""
    found: list[list[Point]] = [[]]
    for x, y in points:
        if y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [part for part in found if part]
