"""What a run is measured by: facts that must hold on any machine, and times that are a machine's own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loadtest.plan import Plan

BURST = 300
BURST_MS, LARGE_BURST_MS = 1_500.0, 60_000.0
"""p99 of an allocation in a burst of up to `BURST`, and of more."""
SUSTAINED_MS = 500.0
GATEWAY_BYTES = 400e6
RECLAIM_S = 30.0
"""From the end of a lease until what nobody released is gone."""
SHARE = 0.15
"""By how much of its share a tenant may be served more or less."""
PACE_MS = 250.0
"""Calls that begin later than that, 1 of 100, are too many: then the load is less than it says."""
RATE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """One of them.

    Args:
        must: holds on any machine, or the run has failed; else a time, of which the report tells.
    """

    what: str
    bar: str
    seen: str
    is_met: bool
    must: bool


def bars_of(plan: Plan, told: Mapping[str, Any]) -> list[Bar]:
    """Those that the scenario is measured by."""
    return [*_always(told), *_by_scenario(plan, told)]


def _always(told: Mapping[str, Any]) -> Iterator[Bar]:
    errors = sum(one["count"] for one in told["errors"])
    sandboxes = told["sandboxes"]
    made = sandboxes["handed"]
    yield Bar("sandboxes handed over", "some", str(made), made > 0, must=True)
    yield Bar("errors that callers were left with", "0", str(errors), errors == 0, must=True)
    doubles, left = sandboxes["doubles"], sandboxes["left"]
    yield Bar("sandboxes handed over twice", "0", str(doubles), doubles == 0, must=True)
    yield Bar("sandboxes left at the end", "0", _known(left), left == 0, must=True)


def _by_scenario(plan: Plan, told: Mapping[str, Any]) -> Iterator[Bar]:
    match plan.scenario:
        case "burst":
            most = BURST_MS if plan.n <= BURST else LARGE_BURST_MS
            yield _time("allocation, p99", told, "create", most)
        case "hold" | "ramp":
            yield from _pace(told)
            yield from _memory(told)
        case "churn":
            yield from _pace(told)
            yield _time("allocation, p99", told, "create", SUSTAINED_MS)
            churn = told["churn"]
            asked, got = churn["asked_per_s"], churn["campaigns_per_s"]
            yield Bar(
                "campaigns a second", f"≥ {RATE * asked:.2f}", f"{got:.2f}", got >= RATE * asked,
                must=False,
            )  # fmt: skip
        case "multi":
            yield from _shares(told)
        case "abandon":
            gone, most = told["sandboxes"]["gone_s"], plan.ttl_s + RECLAIM_S
            seen = "never" if gone is None else f"{gone:.1f} s"
            is_met = gone is not None and gone <= most
            yield Bar(
                "all reclaimed after the last word", f"≤ {most:g} s", seen, is_met, must=False
            )


def _time(what: str, told: Mapping[str, Any], call: str, most_ms: float) -> Bar:
    seen = told["calls"].get(call, {}).get("p99")
    is_met = seen is not None and seen <= most_ms
    return Bar(what, f"≤ {milliseconds(most_ms)}", milliseconds(seen), is_met, must=False)


def _pace(told: Mapping[str, Any]) -> Iterator[Bar]:
    if (late := told["stages"].get("late")) is not None:
        yield Bar(
            "the load kept its pace: calls begun late, p99", f"≤ {milliseconds(PACE_MS)}",
            milliseconds(late["p99"]), late["p99"] <= PACE_MS, must=False,
        )  # fmt: skip


def _memory(told: Mapping[str, Any]) -> Iterator[Bar]:
    for who, values in told["programs"].items():
        if who.startswith("gateway") and "memory_most" in values:
            most = values["memory_most"]
            seen = f"{most / 1e6:.0f} MB"
            yield Bar(f"memory of {who}", "≤ 400 MB", seen, most <= GATEWAY_BYTES, must=False)


def _shares(told: Mapping[str, Any]) -> Iterator[Bar]:
    for name, one in told["tenants"].items():
        share, wanted = one["share"], one["wanted"]
        is_met = share is not None and abs(share - wanted) <= SHARE * wanted
        bar = f"{wanted:.0%} ± {SHARE:.0%} of it"
        seen = "none" if share is None else f"{share:.1%}"
        yield Bar(f"share of {name} while all wait", bar, seen, is_met, must=False)


def milliseconds(value: float | None) -> str:
    """As people read it."""
    if value is None:
        return "—"
    if value >= 1_000:
        digits = 1 if value >= 10_000 else 2
        return f"{value / 1e3:g} s" if value % 100 == 0 else f"{value / 1e3:.{digits}f} s"
    return f"{value:.0f} ms" if value >= 100 or value == int(value) else f"{value:.1f} ms"


def _known(value: object) -> str:
    return "not known" if value is None else str(value)
