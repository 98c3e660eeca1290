"""Flags, the same for `python -m loadtest`, for `locust -f loadtest/locustfile.py` and for each of its workers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loadtest import target
from loadtest.plan import SCENARIOS, Plan

if TYPE_CHECKING:
    from argparse import Namespace

    from loadtest.target import Target

ENV = "SANDMAN_LOAD_"
"""Each flag may be set in the environment, too: `--ttl-s` as `SANDMAN_LOAD_TTL_S`."""
DEFAULT_REPORTS = "build/load"
_HELP = {
    "n": "sandboxes: of a burst in one moment, else held at once",
    "callers": "callers at once; 0: as many as the scenario needs",
    "batch": "sandboxes asked for in one call",
    "seconds": "how long it goes on once it is filled; of ramp: until all callers are there",
    "rate": "commands and file calls a second over all that are held",
    "files": "share of these that are files, 0 to 1",
    "times": "churn: multiple of the rate that makes 3.1 million sandboxes a month",
    "ttl_s": "lease of what is made, kept by heartbeats",
    "wait_s": "how long a caller waits for a sandbox",
    "fill_s": "most seconds until all sandboxes are there",
    "rest_s": "multi: how long each sandbox is kept",
}


class Parser(Protocol):
    """What Locust's parser and that of the standard library have in common."""

    def add_argument(self, *flags: str, **options: Any) -> Any: ...  # noqa: ANN401 - argparse's own


def add(parser: Parser) -> None:
    """All of them."""
    parser.add_argument(
        "--scenario", choices=SCENARIOS, default=_default("scenario", "burst"), help="what to do"
    )
    for field in dataclasses.fields(Plan):
        if field.name == "scenario":
            continue
        kind = int if isinstance(field.default, int) else float
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(
            flag, type=kind, default=_default(field.name, field.default), help=_HELP[field.name]
        )
    parser.add_argument("--target", default=_default("target", ""), help="target file")
    parser.add_argument(
        "--base-url", action="append", default=None, help="address of a gateway; may be repeated"
    )
    parser.add_argument("--image", default=_default("image", ""), help="image to ask for")
    parser.add_argument("--pool", default=_default("pool", ""), help="pool to ask for")
    parser.add_argument(
        "--mine", action="append", default=None, help="a host that is yours, beside this machine"
    )
    parser.add_argument(
        "--report",
        default=_default("report", DEFAULT_REPORTS),
        help="directory for report.html and report.json, below it one for each run",
    )
    parser.add_argument("--name", default=_default("name", ""), help="name of the run")


def _default(name: str, otherwise: object) -> Any:  # noqa: ANN401 - as argparse takes it
    return os.environ.get(ENV + name.upper(), otherwise)


def plan_of(given: Namespace) -> Plan:
    """What is to be done.

    Raises:
        PlanError: a number out of bounds.
    """
    return Plan(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Plan)})


def target_of(given: Namespace, plan: Plan) -> Target:
    """What it is done to, claimed and complete.

    Raises:
        TargetError: there is none, or it may not be used.
    """
    if given.target:
        found = target.read(Path(given.target))
    else:
        found = target.from_environment(os.environ, given.base_url or ())
    image, pool = given.image or found.image, given.pool or found.pool
    found = dataclasses.replace(found, image=image, pool=pool)
    target.check(found, given.mine or ())
    if plan.scenario == "multi" and len(found.tenants) < 2:
        raise target.TargetError("multi needs two tenants at least: name their keys")
    return found
