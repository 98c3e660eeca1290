"""`sandman shell`: a terminal in a sandbox."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sandman.cli import complete
from sandman.cli.command import VERB_SETTINGS, place_options

if TYPE_CHECKING:
    from sandman.cli.session import Session


@click.command(context_settings=VERB_SETTINGS)
@click.argument("sandbox", shell_complete=complete.sandboxes)
@place_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def shell(session: Session, /, sandbox: str, command: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's values
    """Open the image's shell, or COMMAND, in SANDBOX, on this terminal.

    Its exit code becomes this program's. `~.` at the beginning of a line leaves it.
    """
    from sandman.cli import terminal  # noqa: PLC0415 - no other verb needs the async client

    command = command[1:] if command[:1] == ("--",) else command
    sys.exit(terminal.carry_out(session, sandbox, command, given))
