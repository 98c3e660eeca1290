"""`sandman ls`: the sandboxes that there are."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from sandman.cli.table import show

if TYPE_CHECKING:
    from sandman.cli.session import Session

COLUMNS = ("id", "state", "tier", "image", "node", "run", "expires_at")
ENDED_COLUMNS = ("id", "reason", "run", "at", "detail")


@click.command()
@click.option("--run", metavar="RUN", help="Only those of this run.")
@click.option("--ended", is_flag=True, help="Those that are over, and why, as far back as is kept.")
@click.option("--json", "as_json", is_flag=True, help="All that is known, as a JSON array.")
@click.pass_obj
def ls(session: Session, run: str | None, *, ended: bool, as_json: bool) -> None:
    """List your sandboxes."""
    with session.client() as client:
        found = [dataclasses.asdict(box.info) for box in client.list(run, ended=ended)]
    if as_json:
        click.echo(json.dumps(found))
    elif ended:
        show(ENDED_COLUMNS, map(_with_end, found))
    else:
        show(COLUMNS, found)


def _with_end(box: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(ENDED_COLUMNS), **box, **(box["ended"] or {})}
