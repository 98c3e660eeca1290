"""What a run comes to: one JSON document of plain numbers (docs/loadtest.md has its members). Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from loadtest.bars import bars_of
from loadtest.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadtest.exposition import Reading
    from loadtest.plan import Plan
    from loadtest.record import Record

FORMAT = 1
"""Of the document: a change that breaks who reads it is another number."""


@dataclasses.dataclass(slots=True)
class End:
    """How it ended: sandboxes that are left, `None` where nobody could tell; of `abandon` when all were gone."""

    left: int | None = None
    released: int = 0
    gone_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All that is known at the end."""

    name: str
    plan: Plan
    target: dict[str, Any]
    phases: Sequence[tuple[str, float]]
    ended: float
    record: Record
    readings: Sequence[Reading]
    missed: int
    end: End
    machine: dict[str, Any]


def document(run: Run) -> dict[str, Any]:
    """The document."""
    record = run.record
    made = len(record.handed)
    told: dict[str, Any] = {
        "format": FORMAT,
        "run": run.name,
        "scenario": run.plan.scenario,
        "plan": run.plan.document(),
        "target": run.target,
        "machine": run.machine,
        "phases": [[name, round(at, 3)] for name, at in run.phases],
        "ended": round(run.ended, 3),
        "calls": {name: _call(record, name, run) for name in _names(record)},
        "stages": {name: numbers(_whole(slots)) for name, slots in sorted(record.stages.items())},
        "tiers": dict(sorted(_tiers(record).items())),
        "errors": [
            {"call": call, "reason": reason, "count": count, "first": record.texts.get(reason, "")}
            for (call, reason), count in sorted(_errors(record).items())
        ],
        "sandboxes": {
            "handed": made,
            "doubles": record.doubles,
            "left": run.end.left,
            "released_at_the_end": run.end.released,
            "gone_s": run.end.gone_s,
        },
        "counters": dict(sorted(record.counters.items())),
        "programs": programs(run.readings, made),
        "readings_missed": run.missed,
    }
    if run.plan.scenario == "multi":
        told["tenants"] = shares(record.counters, run.target["tenants"])
    if run.plan.scenario == "churn":
        told["churn"] = _churn(run)
    told["bars"] = [dataclasses.asdict(one) for one in bars_of(run.plan, told)]
    return told


def numbers(histogram: Histogram) -> dict[str, float | int | None]:
    """Count and percentiles, milliseconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: _rounded(histogram.percentile(share)) for name, share in shares.items()}
    most = histogram.most_ms if histogram.counts else None
    return {
        "count": histogram.count,
        **found,
        "max": _rounded(most),
        "mean": _rounded(histogram.mean_ms),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _names(record: Record) -> list[str]:
    return sorted({*record.calls, *(call for call, _, _ in record.errors)})


def _whole(slots: Mapping[int, Histogram]) -> Histogram:
    whole = Histogram()
    for one in slots.values():
        whole.merge(one)
    return whole


def _call(record: Record, name: str, run: Run) -> dict[str, Any]:
    slots = sorted(record.calls.get(name, {}))
    # In the seconds in which there were such calls: others had their own time.
    seconds = slots[-1] - slots[0] + 1 if slots else 0
    told = numbers(record.whole(name))
    rate = round(record.whole(name).count / seconds, 3) if seconds else 0.0
    retries = sum(count for (call, _), count in record.retries.items() if call == name)
    return {**told, "per_s": rate, "errors": record.failures(name).total(), "retries": retries}


def _tiers(record: Record) -> Counter[str]:
    found: Counter[str] = Counter()
    for (tier, _), count in record.tiers.items():
        found[tier] += count
    return found


def _errors(record: Record) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (call, reason, _), count in record.errors.items():
        found[call, reason] += count
    return found


def programs(readings: Sequence[Reading], made: int) -> dict[str, dict[str, Any]]:
    """Of each program: the most memory, processor time, writes in all and for each sandbox made."""
    found: dict[str, dict[str, Any]] = {}
    for who in sorted({one.who for one in readings}):
        mine = [one for one in readings if one.who == who]
        first, last = mine[0], mine[-1]
        seconds = last.at - first.at
        told: dict[str, Any] = {"seconds": round(seconds, 1)}
        if any("memory" in one.values for one in mine):
            told["memory_most"] = max(one.values.get("memory", 0.0) for one in mine)
        if "cpu" in last.values:
            cpu = last.values["cpu"] - first.values.get("cpu", 0.0)
            told["cpu_s"] = round(cpu, 2)
            told["cores_mean"] = round(cpu / seconds, 3) if seconds else None
        for name in ("writes", "claim writes", "requests", "refused"):
            if name in last.values:
                grown = last.values[name] - first.values.get(name, 0.0)
                key = name.replace(" ", "_")
                told[key] = grown
                told[f"{key}_a_sandbox"] = round(grown / made, 2) if made else None
        found[who] = told
    return found


def shares(counters: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """What each tenant was served of all, and what its weight says."""
    served = {name: counters.get(f"served {name}", 0) for name in weights}
    everything, weight = sum(served.values()), sum(weights.values())
    return {
        name: {
            "weight": weights[name],
            "served": served[name],
            "share": round(served[name] / everything, 4) if everything else None,
            "wanted": round(weights[name] / weight, 4),
        }
        for name in weights
    }


def _churn(run: Run) -> dict[str, float]:
    """Campaigns and sandboxes a second, and what these are in a month."""
    at = dict(run.phases)
    seconds = max(at.get("over", run.ended) - at.get("work", run.ended), 1e-9)
    made = len(run.record.handed) / seconds
    return {
        "campaigns": run.record.counters["campaigns"],
        "campaigns_per_s": round(run.record.counters["campaigns"] / seconds, 3),
        "asked_per_s": round(run.plan.campaigns_per_s, 3),
        "sandboxes_per_s": round(made, 3),
        "sandboxes_a_month": round(made * 30 * 86400),
    }
