"""The scale bed from the command line: `python -m tests.scale up 1000`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.bed.model import BedError
from tests.cluster.bed.shell import say
from tests.scale import control, model
from tests.scale.nodes import Behaviour


def main() -> int:
    """Parse the command line, do it, return the exit code."""
    options = _parser().parse_args()
    began = time.monotonic()
    try:
        options.act(options)
    except BedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    say(f"{options.command} in {time.monotonic() - began:.0f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    up = commands.add_parser("up", help="bring it up, anew if it is there")
    up.add_argument("pods", type=int, help="placeholders that wait")
    up.add_argument("--most", type=int, help="pods at once, free and leased (default: as many)")
    up.add_argument("--gateways", type=int, default=model.GATEWAYS)
    up.add_argument("--start-ms", type=int, default=0, help="from binding to readiness, at least")
    up.add_argument("--jitter-ms", type=int, default=0, help="and at most so much more")
    up.add_argument("--failing", type=int, default=0, help="of 100 pods, those that fail at once")
    up.add_argument("--slow", type=int, default=0, help="nodes, from the first, that are slow")
    up.add_argument("--slow-ms", type=int, default=10_000, help="to readiness there")
    up.set_defaults(act=_up)
    commands.add_parser("down", help="take it down, leave nothing").set_defaults(act=_down)
    return parser


def _up(options: argparse.Namespace) -> None:
    behaviour = Behaviour(
        options.start_ms,
        options.jitter_ms,
        options.failing,
        tuple(range(options.slow)),
        options.slow_ms,
    )
    control.up(model.bed(), control.Plan(options.pods, options.most, options.gateways, behaviour))
    say(f"{options.pods} placeholders are free; {model.TARGET} says how to reach them")


def _down(_: argparse.Namespace) -> None:
    control.down(model.bed())


if __name__ == "__main__":
    sys.exit(main())
