"""`sandman ps` and `sandman logs`: commands of a sandbox that were started, and what they wrote."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sandman.cli import complete
from sandman.cli.command import exit_code
from sandman.cli.table import show
from sandman.errors import NotFoundError
from sandman.handles import ENDED
from sandman.sync import Stdout
from sandman.wire import stream_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.cli.session import Session
    from sandman.sync import Client, Follow, ProcessInfo

COLUMNS = ("exec_id", "state", "started_at", "stdout_bytes", "stderr_bytes", "exit_code")


@click.command()
@click.argument("sandbox", shell_complete=complete.sandboxes)
@click.option("--json", "as_json", is_flag=True, help="All that is known, as a JSON array.")
@click.pass_obj
def ps(session: Session, sandbox: str, *, as_json: bool) -> None:
    """List the commands of SANDBOX that run or whose result is kept."""
    with session.client() as client:
        found = [one.info for one in client.attach(sandbox).processes() if one.info is not None]
    if as_json:
        click.echo(json.dumps([one.to_json(streams=False) for one in found]))
    else:
        show(COLUMNS, map(_row, found))


def _row(info: ProcessInfo) -> dict[str, object]:
    return {**info._asdict(), "exit_code": info.result and info.result.exit_code}


@click.command()
@click.argument("sandbox", shell_complete=complete.sandboxes)
@click.argument("exec_id", metavar="ID")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until it ends; its exit code becomes this program's.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="A JSON object a line; the last says how it stands."
)
@click.pass_obj
def logs(session: Session, sandbox: str, exec_id: str, *, follow: bool, as_json: bool) -> None:
    """Print what the command ID of SANDBOX has written so far; `sandman ps` shows the ids."""
    code = 0
    with session.client() as client, _knowing(session, client, sandbox):
        process = client.attach(sandbox).process(exec_id)
        info = process.refresh()
        is_whole = follow or info.state == ENDED
        written = {"stdout": info.stdout_bytes, "stderr": info.stderr_bytes}
        with process.follow() as output:
            if is_whole or any(written.values()):
                _print(output, None if is_whole else written, as_json=as_json)
            if follow:
                code = exit_code(session, exec_id, output.result)
        for gap in output.gaps:
            session.say(f"{gap.stream}: bytes {gap.start} to {gap.end} are no longer kept")
        if as_json:
            last = process.refresh() if follow else info
            told = {**last.to_json(streams=False), "gaps": [gap._asdict() for gap in output.gaps]}
            click.echo(json.dumps(told))
    sys.exit(code)


@contextmanager
def _knowing(session: Session, client: Client, sandbox: str) -> Iterator[None]:
    """Where something is not found, and the sandbox is: advice on commands."""
    try:
        yield
    except NotFoundError:
        client.get(sandbox)
        session.advice = f"sandman ps {sandbox} shows the commands that there are"
        raise


def _print(output: Follow, until: dict[str, int] | None, *, as_json: bool) -> None:
    """Pass on what comes, byte by byte; to its end, or until all of `until` has come."""
    for event in output:
        is_out = isinstance(event, Stdout)
        if as_json:
            click.echo(json.dumps(stream_json("stdout" if is_out else "stderr", event.data)))
        else:
            target = (sys.stdout if is_out else sys.stderr).buffer
            target.write(event.data)
            target.flush()
        if until is not None and all(output.offsets[name] >= until[name] for name in until):
            return
