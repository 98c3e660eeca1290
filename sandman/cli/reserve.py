"""`sandman reserve`: sandboxes that are prepared before they are asked for."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandman.cli.table import show

if TYPE_CHECKING:
    from sandman.cli.session import Session
    from sandman.sync import Client, Reservation, ReservationOptions

COLUMNS = ("id", "state", "image", "run", "count", "ready", "used", "failed", "until")


@click.command()
@click.option("--image", metavar="IMAGE", help="Task image; without it the pool's own.")
@click.option("--pool", metavar="POOL", help="Pool to take them from.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="How many; each is used once.")
@click.option(
    "--for",
    "for_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long they are kept; then those that nobody used are released.",
)
@click.option("--run", metavar="RUN", help="Name of the run that they are for.")
@click.option(
    "--prepare",
    type=click.Path(readable=False, allow_dash=True),
    metavar="FILE",
    help="Steps, as a JSON array; - for standard input.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Wait until all are prepared, so long at most.",
)
@click.option("--list", "is_list", is_flag=True, help="List reservations instead.")
@click.option("--end", metavar="ID", help="End this reservation instead.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_obj
def reserve(session: Session, /, **given: Any) -> None:  # noqa: ANN401 - click's values
    """Have N sandboxes in an image, prepared, before they are asked for. The id is printed.

    Example: sandman reserve --image python:3.12 --count 20 --for 3600 --prepare steps.json --wait 300
    """
    with session.client() as client:
        if given["is_list"]:
            _list(client, as_json=given["as_json"])
        elif given["end"] is not None:
            _end(session, client, given["end"])
        else:
            _reserve(session, client, given)


def _reserve(session: Session, client: Client, given: dict[str, Any]) -> None:
    if given["count"] is None or given["for_s"] is None:
        raise click.UsageError("give --count and --for, or --list, or --end ID")
    options: ReservationOptions = {
        "image": given["image"],
        "pool": given["pool"],
        "count": given["count"],
        "for_s": given["for_s"],
        "run": given["run"],
    }
    if given["prepare"] is not None:
        options["prepare"] = _steps(given["prepare"])
    made = client.reserve(**options)
    if given["wait_s"] is not None:
        with session.waiting(
            f"reservation {made.id}: waiting until {made.info.count} sandboxes are prepared"
        ):
            made.wait(given["wait_s"])
    click.echo(json.dumps(_row(made)) if given["as_json"] else made.id)


def _steps(file: str) -> list[Any]:
    try:
        steps = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"--prepare: {file} is not JSON: {error}") from None
    if not isinstance(steps, list) or not all(isinstance(one, dict) for one in steps):
        raise click.UsageError(f"--prepare: {file} must hold an array of steps")
    return steps


def _list(client: Client, *, as_json: bool) -> None:
    found = [_row(one) for one in client.reservations()]
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)


def _end(session: Session, client: Client, name: str) -> None:
    found = [one for one in client.reservations() if one.id == name]
    for one in found:
        one.cancel()
    session.say(
        f"ended {name}" if found else f"there is no reservation {name}: it has ended, or never was"
    )


def _row(one: Reservation) -> dict[str, Any]:
    return dataclasses.asdict(one.info)
