"""What is written at the end of a run, and said on the terminal."""

from __future__ import annotations

import json
import os
import platform
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from loadtest import report, summary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loadtest.conductor import Conductor
    from loadtest.target import Target


class Written(NamedTuple):
    """What became of it: `is_well`: all that must hold did."""

    is_well: bool
    text: str


def write(conductor: Conductor, reports: Path) -> Written:
    """Put report.json and report.html into a directory of the run's name."""
    told = document(conductor)
    place = reports / conductor.run
    place.mkdir(parents=True, exist_ok=True)
    (place / "report.json").write_text(json.dumps(told) + "\n")
    (place / "report.html").write_text(report.page(told))
    lines = [_line(one) for one in told["bars"]]
    text = "\n".join(
        [f"{told['scenario']}: {told['run']}", *lines, f"report: {place}/report.html", ""]
    )
    return Written(all(one["is_met"] for one in told["bars"] if one["must"]), text)


def document(conductor: Conductor) -> dict[str, Any]:
    """All that a report is made of."""
    run = summary.Run(
        name=conductor.run,
        plan=conductor.plan,
        target=of_target(conductor.target),
        phases=conductor.phases,
        ended=time.time(),
        record=conductor.record,
        readings=conductor.watch.readings,
        missed=conductor.watch.missed,
        end=conductor.end,
        machine=machine(),
    )
    told = summary.document(run)
    told["record"] = conductor.record.document()
    told["readings"] = [[round(at, 3), who, values] for at, who, values in conductor.watch.readings]
    return told


def of_target(target: Target) -> dict[str, Any]:
    """What may be told of it: no keys."""
    return {
        "urls": list(target.urls),
        "pool": target.pool,
        "image": target.image,
        "tenants": {one.name: one.weight for one in target.tenants},
    }


def machine() -> dict[str, Any]:
    """Where the load came from."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": f"Python {platform.python_version()}",
        "load": ", ".join(f"{one:.1f}" for one in os.getloadavg()),
    }


def _line(bar: Mapping[str, Any]) -> str:
    verdict = "met   " if bar["is_met"] else "missed"
    return f"  {verdict}  {bar['what']}: {bar['seen']} ({bar['bar']})"
