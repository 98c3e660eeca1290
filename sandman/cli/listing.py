"""`sandman ls`: the sandboxes that there are."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from sandman.cli.table import show

if TYPE_CHECKING:
    from sandman.cli.session import Session

COLUMNS = ("id", "state", "tier", "image", "node", "run", "expires_at")


@click.command()
@click.option("--run", metavar="RUN", help="Only those of this run.")
@click.option("--json", "as_json", is_flag=True, help="All that is known, as a JSON array.")
@click.pass_obj
def ls(session: Session, run: str | None, *, as_json: bool) -> None:
    """List your sandboxes."""
    with session.client() as client:
        found = [dataclasses.asdict(box.info) for box in client.list(run)]
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)
