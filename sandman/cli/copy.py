"""`sandman cp`: one file in or out."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sandman.cli.session import Session


@click.command()
@click.argument("source")
@click.argument("target")
@click.pass_obj
def cp(session: Session, source: str, target: str) -> None:
    """Copy one file between here and a sandbox: one of SOURCE and TARGET is SANDBOX:PATH.

    A target that is a directory here, or ends in / there, takes the file under its own name.
    """
    there_from, there_to = _remote(source), _remote(target)
    if (there_from is None) == (there_to is None):
        raise click.UsageError("exactly one of SOURCE and TARGET must be SANDBOX:PATH")
    with session.client() as client:
        if there_to is not None:
            sandbox, path = there_to
            path = path + Path(source).name if path.endswith("/") else path
            client.attach(sandbox).files.upload(source, path)
        elif there_from is not None:
            sandbox, path = there_from
            local = Path(target)
            local = local / posixpath.basename(path) if local.is_dir() else local
            client.attach(sandbox).files.download(path, local)


def _remote(text: str) -> tuple[str, str] | None:
    """Sandbox and path, when the text is SANDBOX:PATH; ./a:b is a file here."""
    sandbox, colon, path = text.partition(":")
    return (sandbox, path) if colon and sandbox and path and "/" not in sandbox else None
