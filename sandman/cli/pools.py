"""`sandman pools`: where sandboxes come from."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from sandman.cli.table import show

if TYPE_CHECKING:
    from sandman.cli.session import Session

COLUMNS = ("name", "image", "free", "leased", "wanted", "max", "swap")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@click.pass_obj
def pools(session: Session, *, as_json: bool) -> None:
    """List pools with their counts: free and leased now, and free ones wanted."""
    with session.client() as client:
        found = [dataclasses.asdict(pool) for pool in client.pools()]
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)
