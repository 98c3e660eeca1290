"""`sandman release`: let sandboxes go."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

import click

from sandman.cli import complete
from sandman.errors import NotFoundError, SandmanError

if TYPE_CHECKING:
    from sandman.cli.session import Session
    from sandman.sync import Client


@click.command()
@click.argument("sandboxes", nargs=-1, metavar="[SANDBOX]...", shell_complete=complete.sandboxes)
@click.option("--run", metavar="RUN", help="Every sandbox of this run instead.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_obj
def release(
    session: Session, sandboxes: tuple[str, ...], run: str | None, *, as_json: bool
) -> None:
    """Release sandboxes, with all that is in them. Those that have ended already do not matter."""
    if bool(sandboxes) == (run is not None):
        raise click.UsageError("give either ids of sandboxes or --run RUN")
    with session.client() as client:
        found = {one: _release(session, client, one) for one in dict.fromkeys(sandboxes)}
        count = sum(map(bool, found.values()))
        if run is not None:
            count = client.release_run(run)
            session.say(f"released {count}")
    known = [one for one, released in found.items() if released is not None]
    if as_json:
        click.echo(json.dumps({"run": run, "sandboxes": known, "released": count}))
    if unknown := [one for one in found if one not in known]:
        raise NotFoundError(f"no sandbox {', '.join(unknown)}")


def _release(session: Session, client: Client, sandbox: str) -> bool | None:
    """Whether it was released now, or had ended before; None: nobody knows it.

    Looks first: to a release the gateway says of any id that it is gone, and the one that was meant would live on.
    """
    try:
        client.get(sandbox)
    except SandmanError as error:
        if error.facts.get("foreign"):
            raise
        if error.status == HTTPStatus.GONE:
            session.say(f"{sandbox} had ended before: {error}")
            return False
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    client.release(sandbox)
    session.say(f"released {sandbox}")
    return True
