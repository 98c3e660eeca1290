"""`sandman cp`: a file or a directory in or out."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandman.errors import IsADirectoryPathError

if TYPE_CHECKING:
    from sandman.cli.session import Session
    from sandman.sync import Sandbox, TreeInfo


@click.command()
@click.argument("source")
@click.argument("target")
@click.pass_obj
def cp(session: Session, source: str, target: str) -> None:
    """Copy a file, or a directory with all that is in it, between here and a sandbox.

    One of SOURCE and TARGET is SANDBOX:PATH. A target that is a directory here, or ends in / there,
    takes the copy under its own name.
    """
    there_from, there_to = _remote(source), _remote(target)
    if (there_from is None) == (there_to is None):
        raise click.UsageError("exactly one of SOURCE and TARGET must be SANDBOX:PATH")
    with session.client() as client:
        if there_to is not None:
            sandbox, path = there_to
            path = path + Path(source).name if path.endswith("/") else path
            _upload(session, client.attach(sandbox), source, path)
        elif there_from is not None:
            sandbox, path = there_from
            local = Path(target)
            local = local / posixpath.basename(path.rstrip("/")) if local.is_dir() else local
            _download(session, client.attach(sandbox), path, local)


def _upload(session: Session, box: Sandbox, source: str, path: str) -> None:
    if Path(source).is_dir():
        _tell_skipped(session, box.files.upload_dir(source, path))
    else:
        box.files.upload(source, path)


def _download(session: Session, box: Sandbox, path: str, local: Path) -> None:
    try:
        box.files.download(path, local)
    except IsADirectoryPathError:
        _tell_skipped(session, box.files.download_dir(path, local))


def _tell_skipped(session: Session, info: TreeInfo) -> None:
    for name, why in info.skipped:
        session.say(f"skipped {name!r}: {why}")
    if info.skipped_count > len(info.skipped):
        session.say(f"skipped {info.skipped_count} in all")


def _remote(text: str) -> tuple[str, str] | None:
    """Sandbox and path, when the text is SANDBOX:PATH; ./a:b is a file here."""
    sandbox, colon, path = text.partition(":")
    return (sandbox, path) if colon and sandbox and path and "/" not in sandbox else None
