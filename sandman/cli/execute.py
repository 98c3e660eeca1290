"""`sandman exec`: a command in a sandbox that is there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from sandman.cli import complete
from sandman.cli.command import (
    VERB_SETTINGS,
    carry_out,
    command_options,
    exec_options,
    uid_or_name,
)

if TYPE_CHECKING:
    from sandman.cli.session import Session


@click.command("exec", context_settings=VERB_SETTINGS)
@click.argument("sandbox", shell_complete=complete.sandboxes)
@click.option("-t", "--tty", "in_tty", is_flag=True, help="In a terminal, which is this one.")
@click.option(
    "-d", "--detach", is_flag=True, help="Only start it, and print its id, for ps and logs."
)
@command_options
@click.pass_obj
def execute(session: Session, /, sandbox: str, command: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's values
    """Run COMMAND in SANDBOX; its output and exit code become this program's."""
    # Options end at the first word, so that a `--` after it is still there.
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise click.UsageError("missing the command")
    if given["detach"] and (given["stdin"] or given["in_tty"]):
        raise click.UsageError("--detach goes with neither --stdin nor --tty")
    if given["in_tty"]:
        sys.exit(_in_terminal(session, sandbox, command, given))
    options = exec_options(given)
    options["env"] = given["env"]
    options["cwd"] = given["workdir"]
    options["user"] = uid_or_name(given["user"])
    with session.client() as client:
        box = client.attach(sandbox)
        if given["detach"]:
            started = box.start(command, **options).exec_id
            told = {"sandbox": box.id, "exec_id": started}
            click.echo(json.dumps(told) if given["as_json"] else started)
            return
        code = carry_out(session, box, command, options, as_json=given["as_json"])
    sys.exit(code)


def _in_terminal(
    session: Session, sandbox: str, command: tuple[str, ...], given: dict[str, Any]
) -> int:
    from sandman.cli import terminal  # noqa: PLC0415 - few calls need the async client

    if given["stdin"] or given["as_json"]:
        raise click.UsageError("--tty goes with neither --stdin nor --json")
    return terminal.carry_out(session, sandbox, command, given)
