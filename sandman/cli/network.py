"""`sandman network`: another egress profile for a sandbox."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from sandman.cli import complete
from sandman.cli.table import show

if TYPE_CHECKING:
    from sandman.cli.session import Session

COLUMNS = ("what", "expected", "outcome")


@click.command()
@click.argument("sandbox", metavar="SANDBOX", shell_complete=complete.sandboxes)
@click.argument("profile", metavar="PROFILE")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time until it is in force.",
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_obj
def network(session: Session, sandbox: str, profile: str, wait_s: float, *, as_json: bool) -> None:
    """Give SANDBOX the egress profile PROFILE (`none` closes all), and show what was probed from inside it."""
    with session.client() as client:
        applied = client.attach(sandbox).set_network(profile, wait_s=wait_s)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(applied)))
    else:
        show(COLUMNS, applied.probes)
