"""The charts of a report, each from the document of a run. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from loadtest.bars import milliseconds
from loadtest.charts import Series, chart
from loadtest.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from loadtest.record import Record

BINS = 100
"""Points of a line at most."""
SHOWN = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
MAIN = ("create", "create (eval)", "exec", "file put", "file get", "release")
"""Calls in the order in which they are shown; others follow by name."""


class Timeline:
    """Seconds since the beginning, in bins: all charts of a report have the same."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.start: int = math.floor(document["phases"][0][1])
        self.seconds: float = max(1.0, document["ended"] - self.start)
        self.width: int = max(1, math.ceil(self.seconds / BINS))
        self.marks = [(at - self.start, name) for name, at in document["phases"][1:]]

    def bin(self, slot: float) -> int:
        """The bin of a moment."""
        second = max(0, int(slot - self.start))
        return second // self.width

    def at(self, number: int) -> float:
        """Where a bin stands."""
        return float(number * self.width)

    def bins(self) -> range:
        """All of them."""
        return range(math.ceil(self.seconds / self.width) + 1)


def seconds(value: float) -> str:
    """A moment, as people read it."""
    return f"{value:g} s" if value < 600 else f"{value / 60:g} min"


def plain(value: float) -> str:
    """A count."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def megabytes(value: float) -> str:
    """Memory."""
    return f"{value / 1e6:,.0f} MB"


def share(value: float) -> str:
    """A part of all, close to the whole of it most of all."""
    return f"{100 * value:g} %"


def ordered(names: Iterable[str]) -> list[str]:
    """Calls as they are shown."""
    return sorted(names, key=lambda one: (MAIN.index(one) if one in MAIN else len(MAIN), one))


def latencies(line: Timeline, record: Record) -> list[str]:
    """Percentiles over time, a chart for each call; what was called once or twice has none."""
    return [
        _percentiles(line, f"{name}, latency", record.calls[name])
        for name in ordered(record.calls)
        if record.whole(name).count >= 10
    ]


def _percentiles(line: Timeline, title: str, slots: Mapping[int, Histogram]) -> str:
    bins: dict[int, Histogram] = defaultdict(Histogram)
    for slot, histogram in slots.items():
        bins[line.bin(slot)].merge(histogram)
    series = [
        Series(
            name,
            [(line.at(n), bins[n].percentile(part) if n in bins else None) for n in line.bins()],
            colour,
        )
        for colour, (name, part) in enumerate(SHOWN)
    ]
    return chart(title, series, show=milliseconds, show_x=seconds, log=True, marks=line.marks)


def distribution(record: Record) -> str:
    """How many of 100 calls took how long, the slowest of 1,000 in sight."""
    parts = [*(n / 100 for n in range(1, 100)), 0.995, 0.999]
    series = []
    for colour, name in enumerate(ordered(record.calls)):
        whole = record.whole(name)
        if whole.count >= 10:
            points = [(whole.percentile(part) or 0.0, part) for part in parts]
            series.append(Series(name, points, colour))
    return chart(
        "Share of calls that took at most so long",
        series,
        show=share,
        show_x=milliseconds,
        log_x=True,
    )


def rates(line: Timeline, record: Record) -> str:
    """Calls a second, by call."""
    counts = {
        name: Counter({slot: one.count for slot, one in slots.items()})
        for name, slots in record.calls.items()
    }
    # Those of the load's own keeping are few, and lines on the ground.
    shown = [name for name in ordered(counts) if counts[name].total() >= 10]
    return _per_second(
        line, "Calls a second that succeeded", {name: counts[name] for name in shown}
    )


def failures(line: Timeline, record: Record) -> str:
    """Errors a second, by reason."""
    by_reason: dict[str, Counter[int]] = defaultdict(Counter)
    for (_, reason, slot), count in record.errors.items():
        by_reason[reason][slot] += count
    return _per_second(line, "Errors a second, by reason", by_reason)


def _per_second(line: Timeline, title: str, counts: Mapping[str, Mapping[int, int]]) -> str:
    series = []
    for colour, (name, slots) in enumerate(counts.items()):
        bins: Counter[int] = Counter()
        for slot, count in slots.items():
            bins[line.bin(slot)] += count
        series.append(
            Series(name, [(line.at(n), bins[n] / line.width) for n in line.bins()], colour)
        )
    return chart(title, series, show=plain, show_x=seconds, marks=line.marks)


def tiers(line: Timeline, record: Record) -> str:
    """Sandboxes handed over so far, by tier, one on the other."""
    bins: dict[str, Counter[int]] = defaultdict(Counter)
    for (tier, slot), count in record.tiers.items():
        bins[tier][line.bin(slot)] += count
    below, series = [0.0] * len(line.bins()), []
    for colour, tier in enumerate(sorted(bins)):
        so_far, points = 0, []
        for n in line.bins():
            so_far += bins[tier][n]
            below[n] += so_far
            points.append((line.at(n), below[n]))
        series.append(Series(tier, points, colour, is_area=True))
    # The highest first: each hides what of the one before is not its own.
    return chart(
        "Sandboxes handed over so far, by tier", series[::-1], show=plain, show_x=seconds,
        marks=line.marks,
    )  # fmt: skip


def stages(line: Timeline, record: Record) -> list[str]:
    """What the gateway says of its own part of allocations, and how late the load itself was."""
    titles = {
        "queued": "In the queue, as the gateway tells",
        "claim": "Claim's write, as the gateway tells",
        "ready": "Claimed until ready, as the gateway tells",
        "late": "Calls begun after they were due, by the load's own fault",
    }
    return [
        _percentiles(line, title, record.stages[name])
        for name, title in titles.items()
        if name in record.stages
    ]


def gauge(
    line: Timeline,
    readings: Sequence[Any],
    title: str,
    wanted: Sequence[tuple[str, str]],
    show: Callable[[float], str],
) -> str:
    """Values as they stood: of programs whose names begin so, by the names of the values."""
    series: list[Series] = []
    for who in sorted({who for _, who, _ in readings}):
        for prefix, key in wanted:
            points = [
                (at - line.start, values[key])
                for at, one, values in readings
                if one == who and key in values
            ]
            if who.startswith(prefix) and points:
                name = f"{who}: {key}" if len(wanted) > 1 else who
                series.append(Series(name, points, len(series)))
    return _of_programs(line, title, series, show)


def growth(
    line: Timeline,
    readings: Sequence[Any],
    title: str,
    wanted: Sequence[tuple[str, str]],
    show: Callable[[float], str] = plain,
) -> str:
    """How fast counters grew between two readings, a second."""
    series: list[Series] = []
    for who in sorted({who for _, who, _ in readings}):
        for prefix, key in wanted:
            mine = [
                (at, values[key]) for at, one, values in readings if one == who and key in values
            ]
            if not who.startswith(prefix) or len(mine) < 2:
                continue
            points = [
                # A program that began anew counts from nothing.
                (later[0] - line.start, max(0.0, later[1] - before[1]) / (later[0] - before[0]))
                for before, later in itertools.pairwise(mine)
                if later[0] > before[0]
            ]
            name = f"{who}: {key}" if len(wanted) > 1 else who
            series.append(Series(name, points, len(series)))
    return _of_programs(line, title, series, show)


def _of_programs(
    line: Timeline, title: str, series: Sequence[Series], show: Callable[[float], str]
) -> str:
    """Of several lines those that lie on the ground all the time say nothing."""
    shown = [one for one in series if any(value for _, value in one.points)] or series[:1]
    span = (0.0, line.seconds)
    return chart(title, shown, show=show, show_x=seconds, marks=line.marks, span_x=span)


def programs(line: Timeline, readings: Sequence[Any]) -> list[str]:
    """Gateways, API server and the load itself."""
    waits = [("gateway", f"requests {state}") for state in ("waiting", "claiming", "cold")]
    return [
        gauge(line, readings, "Queue: requests that wait or are in hand", waits, plain),
        gauge(line, readings, "Free placeholders", [("gateway", "free")], plain),
        gauge(line, readings, "Memory of gateways", [("gateway", "memory")], megabytes),
        growth(line, readings, "Cores that gateways use", [("gateway", "cpu")]),
        growth(line, readings, "Gateways' writes to the API server, a second", [("gateway", "writes")]),
        growth(
            line, readings, "API server: requests and writes a second",
            [("API server", "requests"), ("API server", "writes"), ("API server", "refused")],
        ),
        gauge(line, readings, "API server: requests in flight", [("API server", "inflight")], plain),
        growth(line, readings, "Cores that the API server uses", [("API server", "cpu")]),
        gauge(line, readings, "Memory of the API server", [("API server", "memory")], megabytes),
        growth(line, readings, "Cores that the load's leading process uses", [("load", "cpu")]),
    ]  # fmt: skip
