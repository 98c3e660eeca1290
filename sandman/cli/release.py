"""`sandman release`: let sandboxes go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sandman.cli import complete

if TYPE_CHECKING:
    from sandman.cli.session import Session


@click.command()
@click.argument("sandboxes", nargs=-1, metavar="[SANDBOX]...", shell_complete=complete.sandboxes)
@click.option("--run", metavar="RUN", help="Every sandbox of this run instead.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_obj
def release(
    session: Session, sandboxes: tuple[str, ...], run: str | None, *, as_json: bool
) -> None:
    """Release sandboxes, with all that is in them. Those that are gone already do not matter."""
    if bool(sandboxes) == (run is not None):
        raise click.UsageError("give either ids of sandboxes or --run RUN")
    with session.client() as client:
        if run is not None:
            count = client.release_run(run)
            session.say(f"released {count}")
        else:
            for sandbox in sandboxes:
                client.release(sandbox)
                session.say(f"released {sandbox}")
            count = len(sandboxes)
    if as_json:
        told = {"run": run, "sandboxes": list(sandboxes), "released": count}
        click.echo(json.dumps(told))
